"""A tokenizer for the tiny models: one printable character each, behind three special tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.grammars import GrammarBook
from tests.engine.harness import engine_of, model_of
from tests.engine.prompts import VOCAB

NUM_SPECIAL = 3
CHARACTERS = [chr(code) for code in range(32, 32 + VOCAB - NUM_SPECIAL)]
_SPECIAL = [f"<{number}>" for number in range(NUM_SPECIAL)]


@lru_cache(maxsize=1)
def tokenizer_text() -> str:
    """As a `tokenizer.json`; byte-level, where a space is written as another letter."""
    words = [*_SPECIAL, *(character.replace(" ", "\u0120") for character in CHARACTERS)]
    added = [
        {"id": number, "content": word, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for number, word in enumerate(_SPECIAL)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False,
                  "trim_offsets": False}  # fmt: skip
    model = {"type": "BPE", "vocab": {word: id_ for id_, word in enumerate(words)}, "merges": []}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": model,
        }
    )


def text_of(token_ids: Sequence[int]) -> str:
    """What these ids spell."""
    return "".join(CHARACTERS[token_id - NUM_SPECIAL] for token_id in token_ids)


def book(family: str = "gated_delta_rule") -> GrammarBook:
    spec = model_of(family).spec
    return GrammarBook(tokenizer_text, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids)


def spelling_engine(**settings: object) -> Engine:
    """An engine whose ids are letters, so that it takes grammars."""
    return engine_of(grammars=book(), **settings)
