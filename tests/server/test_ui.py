"""The page at `/ui`: its files, and what a person does with it, in a real browser."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from hypic_sdk.server.routes.ui import FOLDER
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenants
from tests.cli.test_serve import server
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve_fake

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KEYS = {"key-of-red-0123456789": "red", "key-of-blue-0123456789": "blue"}
RED, BLUE = KEYS
# each of them would run, or break out of where it stands, if it were read as markup
MARKUP = (
    "<script>window.struck = 1</script>",
    '<img src="x" onerror="window.struck = 1">',
    '"><svg onload="window.struck = 1">',
    "</textarea><iframe srcdoc='<script>parent.struck = 1</script>'>",
)
OURS = sorted(path for path in FOLDER.iterdir() if not path.name.startswith("uplot"))


@pytest.fixture(scope="module")
def fake_url() -> Iterator[str]:
    worker = PushingWorker(tiny.tokenizer().encode_text(f"a town {MARKUP[0]} there"))
    with serve_fake(worker) as url:
        yield url
    worker.join()


class TestFiles:
    def test_the_page_and_all_that_it_names(self, fake_url):
        policy = call(fake_url, "GET", "/ui").headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        html = call(fake_url, "GET", "/ui").text
        files = set(re.findall(r'(?:href|src)="ui/([^"]+)"', html))
        waiting = set(files)
        while waiting:
            name = waiting.pop()
            answer = call(fake_url, "GET", f"/ui/{name}")
            assert answer.status == 200, name
            assert "content-security-policy" in answer.headers
            found = set(re.findall(r'from "\./([^"]+)"', answer.text)) - files
            files |= found
            waiting |= found
        licence = "uplot-licence.txt"
        assert files | {"page.html", licence} == {path.name for path in FOLDER.iterdir()}
        assert "MIT" in call(fake_url, "GET", f"/ui/{licence}").text

    @pytest.mark.parametrize(
        "name",
        [
            "",
            "nothing.js",
            "..%2f..%2fapp.py",
            "%2e%2e%2fapp.py",
            "/page.html",
            "page.html%00",
            ".",
        ],
    )
    def test_no_other_file(self, fake_url, name):
        answer = call(fake_url, "GET", f"/ui/{name}")
        assert answer.status == 404
        assert answer.error["request_id"]

    def test_without_keys_it_is_shown_to_this_machine_only(self, fake_url):
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert call(fake_url, "GET", "/ui", headers=headers).status == 403

    @pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
    def test_our_files_write_no_markup_and_name_no_other_host(self, path):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"https?:|[\"'(]//", text)
        if path.suffix == ".html":
            assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
            assert not re.search(r"<script[^>]*>[^<]", text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium here (Debian's package is chromium-headless-shell)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, *, refusals: int = 0) -> Iterator[Page]:
    """The page; its console stays silent, and nothing is asked of any other origin.

    `refusals`: so many calls that the server refuses are expected, which the console tells.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(15_000)
    told: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{url}/ui")
    yield page
    context.close()
    refused = [one for one in told if "status of 401" in one]
    assert told == refused
    assert len(refused) == refusals
    assert asked
    assert [one for one in asked if not one.startswith(f"{url}/")] == []


def stretches(card: Locator) -> list[tuple[str, int, str | None]]:
    """Kind, tokens and segment of each stretch of a card's picture, in the order of the prompt."""
    return [
        (
            str(one.get_attribute("data-kind")),
            int(one.get_attribute("data-tokens") or 0),
            one.get_attribute("data-segment"),
        )
        for one in card.locator(".stretch").all()
    ]


def ask(page: Page) -> Locator:
    """Ask, wait for the end, and give the card of the answer."""
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("button", name="Stop")).to_be_disabled()
    card = page.locator("#run-now")
    expect(card).to_have_attribute("data-state", "done")
    return card


def statuses(card: Locator) -> list[str | None]:
    return [one.get_attribute("data-status") for one in card.locator(".segments li").all()]


def names(card: Locator) -> list[str]:
    return card.locator(".segments .name").all_inner_texts()


def titles(page: Page) -> list[str]:
    return [one.input_value() for one in page.get_by_placeholder("title").all()]


def fill(page: Page, index: int, title: str, text: str) -> None:
    page.get_by_label(f"Title of document {index}").fill(title)
    page.get_by_label(f"Text of document {index}").fill(text)


@pytest.fixture(scope="module")
def model_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server(cache=tmp_path_factory.mktemp("ui")) as (_, url):
        yield url


class TestPackagedModel:
    """A server process as `hypic serve` starts it."""

    def test_register_ask_reorder_ask(self, browser, model_url):
        with opened(browser, model_url) as page:
            page.get_by_role("button", name="Fill in an example").click()
            lantern, clock, ada = titles(page)
            page.get_by_role("button", name="Register and warm").click()
            expect(page.locator("#warm-words")).to_have_text("3 registered and warm")
            page.get_by_label("ask with mode “off” too").check()
            now, before, off = (page.locator(f"#run-{name}") for name in ("now", "before", "off"))
            ask(page)
            assert names(now) == [lantern, clock, ada]
            self.check_hits(now)
            # another order, by button and by keys: still hits, and the answer stays
            page.get_by_label("Move document 3 up").click()
            page.get_by_label("Text of document 1").press("Alt+ArrowDown")
            assert titles(page) == [ada, lantern, clock]
            ask(page)
            assert names(before) == [lantern, clock, ada]
            assert names(now) == [ada, lantern, clock]
            self.check_hits(before)
            self.check_hits(now)
            # and with the pointer
            page.locator(".handle").nth(2).drag_to(page.locator(".document").nth(0))
            assert titles(page) == [clock, ada, lantern]
            ask(page)
            assert names(now) == [clock, ada, lantern]
            self.check_hits(now)
            fates = page.locator(".document .fate .status").all_inner_texts()
            assert fates == ["hit", "hit", "hit"]
            # mode off computes the same prompt whole
            assert {kind for kind, _, _ in stretches(off)} == {"computed"}
            assert self.num_tokens(off) == self.num_tokens(now)
            expect(page.locator("#compared")).to_contain_text("times as long")
            self.check_requests(page, model_url)
            self.check_pools(page)

    def num_tokens(self, card: Locator) -> int:
        return sum(tokens for _, tokens, _ in stretches(card))

    def check_hits(self, card: Locator) -> None:
        """Every document is reused behind its seam; the question is computed."""
        expect(card.locator(".answer").last).to_contain_text("38")
        assert statuses(card) == ["hit", "hit", "hit"]
        drawn = stretches(card)
        for segment in ("0", "1", "2"):
            kinds = [(kind, tokens) for kind, tokens, owner in drawn if owner == segment]
            assert kinds[0] == ("seam", 8)
            assert kinds[1][0] == "reused"
            assert len(kinds) == 2
        assert drawn[-1][0] == "computed"
        told = card.locator(".bar").get_attribute("aria-label")
        reused = sum(tokens for kind, tokens, _ in drawn if kind == "reused")
        assert f"{reused} reused, 24 recomputed at seams" in str(told)
        hover = card.locator('.stretch[data-kind="reused"][data-segment="1"]').get_attribute(
            "title"
        )
        assert names(card)[1] in str(hover)
        assert "hit" in str(hover)
        assert re.search(r"seg_[a-z2-7]{32}", str(hover))

    def check_requests(self, page: Page, url: str) -> None:
        """The list below shows what the endpoint says."""
        told = call(url, "GET", "/v1/requests/recent").json["data"]
        items = page.locator("#requests > li")
        expect(items).to_have_count(len(told))
        for item, one in zip(items.all(), told, strict=True):
            assert item.get_attribute("data-id") == one["id"]
            tokens: Counter[str] = Counter()
            for kind, number, _ in stretches(item):
                tokens[kind] += number
            assert tokens["reused"] == one["cached_tokens"]
            assert tokens["seam"] == one["seam_tokens"]
            assert tokens.total() == one["prompt_tokens"]
            for term in ("queue", "cold", "first token"):
                expect(item.get_by_text(term, exact=True)).to_be_visible()

    def check_pools(self, page: Page) -> None:
        expect(page.locator("#pool-table tr")).to_have_count(3)
        expect(page.locator(".chart canvas")).to_have_count(2)
        page.get_by_label("Bytes of", exact=True).select_option("kv_slots")
        expect(page.locator(".chart canvas")).to_have_count(2)


class TestFakeWorker:
    """What needs no model."""

    def test_texts_are_never_markup(self, browser, fake_url):
        segments = [{"text": f"{one} {one}", "title": one} for one in MARKUP]
        call(fake_url, "POST", "/v1/segments", {"segments": segments})
        body = {
            "messages": [{"role": "user", "content": "x"}],
            "documents": [{"text": one["text"]} for one in segments],
        }
        call(fake_url, "POST", "/v1/chat/completions", body)
        with opened(browser, fake_url) as page:
            for _ in MARKUP[2:]:
                page.get_by_role("button", name="Add a document").click()
            for index, one in enumerate(MARKUP, start=1):
                fill(page, index, one, f"{one} {one}")
            page.get_by_label("Question").fill(MARKUP[0])
            card = ask(page)
            assert names(card) == list(MARKUP)
            expect(card.locator(".answer")).to_have_text(f"a town {MARKUP[0]} there")
            for request in page.locator("#requests > li").all():
                request.locator("summary").click()
                assert names(request) == list(MARKUP)
            assert page.locator("main script, main img, main svg, main iframe").count() == 0
            assert page.evaluate("() => window.struck") is None

    def test_each_tenant_with_its_key(self, browser):
        worker = PushingWorker(tiny.tokenizer().encode_text("a town"))
        # a tenant has samples from its first request on: soon, lest the page's next look come first
        settings = ServerSettings(sample_s=0.1)
        with serve_fake(worker, tenants=Tenants(KEYS), settings=settings) as url:
            body = {"messages": [{"role": "user", "content": "x"}]}
            headers = {"Authorization": f"Bearer {RED}"}
            mine = call(url, "POST", "/v1/chat/completions", body, headers=headers).json["id"]
            with opened(browser, url, refusals=2) as page:
                notice = page.get_by_role("alert")
                expect(notice).to_contain_text("wants a key")
                use_key(page, RED)
                expect(page.locator("#requests > li")).to_have_attribute("data-id", mine)
                expect(notice).to_be_hidden()
                page.reload()
                expect(page.locator("#requests > li")).to_have_attribute("data-id", mine)
                use_key(page, BLUE)
                expect(page.locator("#model")).to_have_text("tiny")
                expect(page.locator("#no-requests")).to_be_visible()
                expect(page.locator("#requests > li")).to_have_count(0)
                use_key(page, RED)
                expect(page.locator("#requests > li")).to_have_count(1)
                expect(page.locator("#charts")).to_be_visible()
                use_key(page, "a-key-of-nobody-0123456789")
                expect(notice).to_contain_text("wants a key")
                expect(page.locator("#requests > li")).to_have_count(0)
                expect(page.locator("#charts")).to_be_hidden()
                assert page.evaluate("() => localStorage.length") == 0
                assert page.context.cookies() == []
        worker.join()

    def test_an_error_is_told_and_the_next_question_goes(self, browser):
        worker = PushingWorker(tiny.tokenizer().encode_text("a town"), pause_s=0.2)
        with serve_fake(worker) as url, opened(browser, url) as page:
            page.get_by_label("Question").fill("Where?")
            page.get_by_role("button", name="Ask", exact=True).click()
            expect(page.locator("#run-now .answer")).to_contain_text("a")
            page.get_by_role("button", name="Stop").click()
            expect(page.locator("#ask-words")).to_have_text("stopped")
            expect(page.locator("#run-now")).to_have_attribute("data-state", "failed")
            expect(page.locator("#requests .status")).to_have_text("cancelled")
            expect(ask(page).locator(".answer")).to_have_text("a town")
        worker.join()

    def test_every_control_has_a_name(self, browser, fake_url):
        with opened(browser, fake_url) as page:
            page.get_by_role("button", name="Fill in an example").click()
            controls = page.locator("button, input, textarea, select, summary, [tabindex]")
            assert controls.count() > 15
            nameless = controls.evaluate_all(
                """all => all.filter(one => {
                  const labels = [...(one.labels ?? [])].map(label => label.textContent).join("");
                  const own = one.matches("button, summary") ? one.textContent : "";
                  return !(one.getAttribute("aria-label") || labels.trim() || own.trim());
                }).map(one => one.outerHTML)"""
            )
            assert nameless == []

    @pytest.mark.parametrize("width", [360, 1280])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_it_can_be_read(self, browser, fake_url, scheme, width):
        """Texts stand out from what is behind them (WCAG AA); nothing is wider than the page."""
        with opened(browser, fake_url) as page:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 800})
            page.get_by_role("button", name="Fill in an example").click()
            ask(page)
            expect(page.locator("#requests > li").first).to_be_visible()
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
            pairs = page.locator("h1, h2, p, button.main, .status, dt, dd, label, a").evaluate_all(
                """all => all.filter(one => one.checkVisibility() && one.textContent.trim())
                .map(one => {
                  let behind = one;
                  const ground = () => getComputedStyle(behind).backgroundColor;
                  while (ground() === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
                  return [one.textContent, getComputedStyle(one).color, ground()];
                })"""
            )
            assert len(pairs) > 20
            dim = [pair for pair in pairs if contrast(pair[1], pair[2]) < 4.5]
            assert dim == []


def use_key(page: Page, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Use").click()


def contrast(one: str, other: str) -> float:
    """The ratio of two colours as WCAG defines it."""
    lights = sorted((luminance(one), luminance(other)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
