"""Services over a fake worker and the small tokenizers."""

from __future__ import annotations

from collections.abc import Iterable

from hypic_sdk.prompt.catalog import CatalogLimits
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import Service
from tests.prompt import tiny
from tests.service.fake_worker import FakeWorker


def service(
    worker: FakeWorker,
    *,
    template: str | None = tiny.CHATML,
    tokenizer: PromptTokenizer | None = None,
    limits: CatalogLimits | None = None,
) -> Service:
    """A service whose clock stands still."""
    tokenizer = tokenizer or tiny.tokenizer()
    return Service(
        tokenizer=tokenizer,
        template=None if template is None else tiny.chat_template(template, tokenizer),
        catalog=MemoryCatalog(
            tokenizer.encode_text, tokenizer.fingerprint, limits=limits or CatalogLimits()
        ),
        worker=worker,
        model_name="tiny",
        now_s=lambda: 1_800_000_000.0,
    )


def saying(text: str, **options: bool) -> FakeWorker:
    """A worker that replies with a text."""
    return FakeWorker(tiny.tokenizer().encode_text(text), **options)


def template_ids(*stretches: str) -> list[int]:
    """Token ids of stretches of template text."""
    return list(_ids(stretches, template=True))


def text_ids(*texts: str) -> list[int]:
    """Token ids of callers' texts, each a piece of its own."""
    return list(_ids(texts, template=False))


def _ids(stretches: Iterable[str], *, template: bool) -> Iterable[int]:
    tokenizer = tiny.tokenizer()
    for one in stretches:
        yield from (
            tokenizer.encode_template(one).token_ids if template else tokenizer.encode_text(one)
        )
