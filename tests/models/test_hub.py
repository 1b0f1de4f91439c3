"""Hub ids against a hub of our own on the loopback interface; no other traffic."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.doctor.examine import examine_model
from hypic_sdk.errors import ModelFileError, from_payload
from hypic_sdk.models.headers import read_headers
from hypic_sdk.models.hub import HubId, hub_headers, model_folder
from hypic_sdk.models.loader import load_model
from hypic_sdk.models.weights import LoadProgress
from hypic_sdk.offline import find_model
from tests.models.oracle import save, text_model

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class FakeHub:
    """One repository, `team/tiny`, with two revisions; `team/gated` and all else is refused."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {commit: {} for commit in COMMITS.values()}
        self.asked: list[str] = []  # method and path of every request
        self.broken = False
        self.gated = False  # files are refused, what there is may be seen: as real hubs do it
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        self.asked.append(f"{request.command} {path}")
        status, body, headers = self.reply(path)
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

    def reply(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        if self.broken:
            return 503, b"{}", {}
        if "team/gated" in path:
            return 403, b"{}", {"X-Error-Code": "GatedRepo"}
        if "team/tiny" not in path:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        parts = path.partition("team/tiny")[2].strip("/").split("/")
        if parts[0] == "resolve" and self.gated:
            return 403, b"{}", {"X-Error-Code": "GatedRepo"}
        if parts[0] == "resolve":
            return self.file(parts[1], "/".join(parts[2:]))
        revision = parts[1] if len(parts) > 1 else "main"
        commit = COMMITS.get(revision, revision)
        if commit not in self.files:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        if parts[0] == "tree":
            return (
                200,
                json.dumps([entry(*item) for item in self.files[commit].items()]).encode(),
                {},
            )
        return 200, json.dumps({"id": "team/tiny", "sha": commit, "siblings": []}).encode(), {}

    def file(self, commit: str, name: str) -> tuple[int, bytes, dict[str, str]]:
        commit = COMMITS.get(commit, commit)
        if name not in self.files[commit]:
            return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
        content = self.files[commit][name]
        return 200, content, {"ETag": f'"{digest(content)}"', "X-Repo-Commit": commit}


def digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def entry(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": len(content), "oid": digest(content)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(), tmp_path_factory.mktemp("tiny"), max_shard_size="60KB")


@pytest.fixture
def hub(checkpoint: Path) -> Iterator[FakeHub]:
    fake = FakeHub()
    ours = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    for commit in COMMITS.values():
        fake.files[commit] = {
            **ours,
            "chat_template.jinja": commit.encode(),
            "README.md": b"for people",
            "pytorch_model.bin": b"\x80\x04.",
            "model.py": b"raise SystemExit('remote code')",
            "original/model.safetensors": b"another format",
        }
    thread = threading.Thread(target=fake.server.serve_forever, args=(0.01,))
    thread.start()
    yield fake
    fake.server.shutdown()
    thread.join(10)
    fake.server.server_close()


def fetch(hub: FakeHub, cache: Path, model: str = "team/tiny", **options: Any) -> Path:
    return model_folder(model, cache=cache, endpoint=hub.url, **options)


def refusal(hub: FakeHub, cache: Path, model: str) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        fetch(hub, cache, model)
    assert model in caught.value.message
    json.dumps(caught.value.to_payload())
    return caught.value


def test_an_id_is_fetched_and_loads_as_its_files_do(
    hub: FakeHub, checkpoint: Path, tmp_path: Path
) -> None:
    folder = fetch(hub, tmp_path)
    same = load_model(folder, device="cpu").fingerprint
    assert same == load_model(checkpoint, device="cpu").fingerprint


def test_only_what_is_read_here_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path)
    kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert {"config.json", "chat_template.jinja"} <= kept
    assert not {"README.md", "pytorch_model.bin", "model.py", "original"} & kept
    assert not any(word in asked for asked in hub.asked for word in (".bin", ".py", "original/"))


def test_without_weights_no_shard_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    folder = fetch(hub, tmp_path, weights=False)
    assert (folder / "model.safetensors.index.json").is_file()
    assert not list(folder.glob("*.safetensors"))
    assert not any("safetensors" in a and "resolve" in a and "index" not in a for a in hub.asked)


def test_a_revision_is_pinned(hub: FakeHub, tmp_path: Path) -> None:
    for revision, commit in [*COMMITS.items(), (COMMITS["v2"], COMMITS["v2"])]:
        folder = fetch(hub, tmp_path, f"team/tiny@{revision}")
        assert (folder / "chat_template.jinja").read_text() == commit
    assert (fetch(hub, tmp_path) / "chat_template.jinja").read_text() == COMMITS["main"]


def test_what_is_in_the_cache_needs_no_hub(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch(hub, tmp_path)
    hub.broken = True
    assert fetch(hub, tmp_path) == folder
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.asked.clear()
    assert fetch(hub, tmp_path) == folder
    assert not hub.asked


def test_a_commit_in_the_cache_asks_the_hub_nothing(hub: FakeHub, tmp_path: Path) -> None:
    pinned = f"team/tiny@{COMMITS['v2']}"
    folder = fetch(hub, tmp_path, pinned)
    hub.asked.clear()
    assert fetch(hub, tmp_path, pinned) == folder
    assert not hub.asked


def test_each_refusal_has_its_reason(hub: FakeHub, tmp_path: Path) -> None:
    found = {
        model: refusal(hub, tmp_path, model)
        for model in ("team/none", "team/tiny@v9", "team/gated", "team/a--b")
    }
    reasons = {model: error.details["reason"] for model, error in found.items()}
    assert reasons == {
        "team/none": "not_found",
        "team/tiny@v9": "no_such_revision",
        "team/gated": "gated",
        "team/a--b": "refused",
    }
    assert not any(error.retryable for error in found.values())
    assert "HF_TOKEN" in found["team/gated"].message
    assert found["team/tiny@v9"].details["revision"] == "v9"


def test_files_that_are_gated_are_too(hub: FakeHub, tmp_path: Path) -> None:
    hub.gated = True
    assert refusal(hub, tmp_path, "team/tiny").details["reason"] == "gated"


def test_a_hub_that_is_away_is_worth_another_try(hub: FakeHub, tmp_path: Path) -> None:
    hub.broken = True
    error = refusal(hub, tmp_path, "team/tiny")
    assert (error.details["reason"], error.retryable) == ("unreachable", True)
    assert from_payload(error.to_payload()).retryable


def test_offline_is_said(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = refusal(hub, tmp_path, "team/tiny")
    assert error.details["reason"] == "offline"
    assert "HF_HUB_OFFLINE" in error.message
    assert re.search(r"[.:!)]\)$|\.\.\.\)$", error.message), "no sentence breaks off"
    assert not hub.asked


def test_a_cache_that_lacks_a_shard_is_not_taken_for_whole(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(hub, tmp_path, weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refusal(hub, tmp_path, "team/tiny").details["reason"] == "offline"


def test_progress_counts_the_bytes_that_came(hub: FakeHub, tmp_path: Path) -> None:
    seen: list[LoadProgress] = []
    folder = fetch(hub, tmp_path, on_progress=seen.append)
    assert seen[-1].done_bytes == sum(path.stat().st_size for path in folder.iterdir())
    assert all(one.done_bytes <= one.total_bytes for one in seen)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("team/tiny", HubId("team/tiny")),
        ("Qwen/Qwen3.5-0.8B@v1.0", HubId("Qwen/Qwen3.5-0.8B", "v1.0")),
        ("a/b@refs/pr/3", HubId("a/b", "refs/pr/3")),
        ("tiny", None),
        ("a/b/c", None),
        ("./a", None),
        ("/a/b", None),
        ("../b", None),
        ("a/..", None),
        ("a/b@", None),
        ("a/b@x y", None),
        ("a/b@../x", None),
        ("a\n/b", None),
        ("http://a/b", None),
    ],
)
def test_what_is_an_id(text: str, expected: HubId | None) -> None:
    assert HubId.parse(text) == expected
    assert expected is None or str(expected) == text


def test_a_folder_that_is_there_wins(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "team" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert fetch(hub, tmp_path) == Path("team/tiny")
    assert model_folder(Path("team/none"), endpoint=hub.url) == Path("team/none")
    assert not hub.asked


def test_what_is_neither_says_how_an_id_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no such model folder.*owner/name"):
        model_folder(str(tmp_path / "nothing"))


def test_headers_are_those_of_the_shards(hub: FakeHub, checkpoint: Path) -> None:
    told = hub_headers(HubId("team/tiny", "v2"), endpoint=hub.url)
    read = read_headers(sorted(checkpoint.glob("*.safetensors")))
    assert told.keys() == read.keys()
    for name, copies in told.items():
        assert [(c.shape, c.dtype, c.path.name) for c in copies] == [
            (c.shape, c.dtype, c.path.name) for c in read[name]
        ]


def test_a_repository_without_safetensors_is_refused(hub: FakeHub) -> None:
    for name in list(hub.files[COMMITS["main"]]):
        if "safetensors" in name:
            del hub.files[COMMITS["main"]][name]
    with pytest.raises(ModelFileError) as caught:
        hub_headers(HubId("team/tiny"), endpoint=hub.url)
    assert caught.value.details["reason"] == "refused"


def test_the_doctor_fetches_no_shard(hub: FakeHub, tmp_path: Path) -> None:
    """And says of an id what it says of its files."""
    for path in reader_path().glob("tokenizer*"):
        hub.files[COMMITS["main"]][path.name] = path.read_bytes()
    # a tokenizer of fewer words than a tiny model has rows
    tokenizer = json.loads(hub.files[COMMITS["main"]]["tokenizer.json"])
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])[:90]
    tokenizer["model"].update(vocab=dict(words), merges=[])
    tokenizer["added_tokens"] = []
    hub.files[COMMITS["main"]] |= {
        "tokenizer.json": json.dumps(tokenizer).encode(),
        "chat_template.jinja": b"{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    config = EngineConfig(device="cpu")
    afar = examine_model("team/tiny", config, cache=tmp_path, endpoint=hub.url)
    assert not list(tmp_path.rglob("*.safetensors"))
    fetch(hub, tmp_path)
    here = examine_model("team/tiny", config, cache=tmp_path, endpoint=hub.url)
    assert afar.identity == here.identity
    assert afar.template == here.template
    assert afar.identity.num_shards > 2
    # a fetch that was broken off
    one, *others = tmp_path.rglob("*.safetensors")
    one.unlink()
    partly = examine_model("team/tiny", config, cache=tmp_path, endpoint=hub.url)
    assert partly.identity == here.identity
    assert sorted(tmp_path.rglob("*.safetensors")) == sorted(others)


def test_a_model_is_called_by_its_id_and_not_by_its_commit(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = fetch(hub, tmp_path, "team/tiny@v2")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find_model("team/tiny@v2") == (folder, "team/tiny")
    assert find_model(folder) == (folder, folder.name)
    assert find_model(None) == (reader_path(), "hypic-reader")
    with pytest.raises(ModelFileError, match="HF_HUB_OFFLINE"):
        find_model("team/tiny@v1")
