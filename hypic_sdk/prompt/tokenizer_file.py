"""Rewrites of a `tokenizer.json`: no added tokens for callers, no invented space before a piece."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import pre_tokenizers

WORD_MARK = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space so

# stands in a vocabulary list for a piece that may not be matched; a list has no holes
_UNMATCHABLE = "\U0010fffe" * 16


# make one character of several, at most so many
_COMPOSES = ("NFC", "NFD", "NFKC", "NFKD")
_MOST_COMPOSED = 4


DIGEST_FIELD = "tokenizer_sha256"
"""In the metadata of a checkpoint's shard index: `content_digest` of the tokenizer it goes with."""


def content_digest(file: Mapping[str, Any]) -> str:
    """SHA-256 (hexadecimal) of what a `tokenizer.json` says, however it is laid out."""
    canonical = json.dumps(file, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def problem_of(file: Mapping[str, Any]) -> str | None:
    """What makes a file none that the rewrites here can read; none if they can."""
    for number, entry in enumerate(_items(file, "added_tokens")):
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            return f"added token {number} has no content"
        if not _is_id(entry.get("id")):
            return f"added token {number} ({entry['content']!r}) has no id"
    model = file.get("model")
    if not isinstance(model, dict):
        return "there is no model"
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        wrong = next((word for word, id_ in vocab.items() if not _is_id(id_)), None)
        if wrong is not None:
            return f"the word {wrong!r} has no id"
    elif not isinstance(vocab, list) or not all(map(_is_scored, vocab)):
        return "the vocabulary is neither words with ids nor words with scores"
    if not all(map(_is_merge, _items(model, "merges"))):
        return "a merge is no pair of words"
    return None


def _items(owner: Mapping[str, Any], name: str) -> list[Any]:
    """A list, empty where there is none; one item that nothing accepts for anything else."""
    found = owner.get(name)
    return found if isinstance(found, list) else [] if found is None else [None]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def _is_scored(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)


def _is_merge(merge: Any) -> bool:
    if isinstance(merge, str):
        return " " in merge
    return isinstance(merge, list) and len(merge) == 2 and all(isinstance(w, str) for w in merge)


def piecewise(file: dict[str, Any]) -> dict[str, Any]:
    """The same tokenizer for one piece of a prompt: nothing is put before, after or around it.

    The prompt is cut into pieces that are tokenised one by one, so a space that a tokenizer invents
    at the start of each text would stand before every piece.  The decoder is told the same.
    """
    rewritten = dict(file)
    # the post-processor adds beginning-of-text tokens and trims offsets; both are done elsewhere
    rewritten.update(truncation=None, padding=None, post_processor=None)
    for stage in ("normalizer", "pre_tokenizer", "decoder"):
        rewritten[stage] = _without_prefix_space(rewritten.get(stage))
    return rewritten


def _without_prefix_space(stage: Any) -> Any:
    if not isinstance(stage, dict):
        return stage
    changed = dict(stage)
    if "add_prefix_space" in changed:
        changed["add_prefix_space"] = False
    if changed.get("type") == "Metaspace":
        changed["prepend_scheme"] = "never"
    for inner in ("normalizers", "pretokenizers", "decoders"):
        if isinstance(changed.get(inner), list):
            changed[inner] = [
                _without_prefix_space(one) for one in changed[inner] if not _is_prefix_only(one)
            ]
    return None if _is_prefix_only(changed) else changed


def _is_prefix_only(stage: Any) -> bool:
    """Whether a stage only puts the word mark before a text, or takes the space off again."""
    if not isinstance(stage, dict):
        return False
    if stage.get("type") == "Prepend":
        return stage.get("prepend") in (WORD_MARK, " ")
    # one space at the left is what undoes a prepended mark; a strip of anything else is kept
    return stage.get("type") == "Strip" and stage.get("content") == " " and stage.get("stop") == 0


def added_tokens(file: dict[str, Any]) -> dict[int, str]:
    """Id and content of every added token that is more than white space.

    An added token of white space only (some vocabularies have runs of spaces) marks no structure:
    it stays what the model's own vocabulary makes of it.
    """
    return {
        int(entry["id"]): str(entry["content"])
        for entry in file.get("added_tokens") or ()
        if str(entry["content"]).replace(WORD_MARK, " ").strip()
    }


def for_callers(file: dict[str, Any], forbidden: frozenset[int]) -> dict[str, Any]:
    """The same tokenizer without added tokens; no vocabulary entry has a `forbidden` id."""
    rewritten = dict(file)
    rewritten["added_tokens"] = []
    model = dict(rewritten.get("model") or {})
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {word: id_ for word, id_ in vocab.items() if id_ not in forbidden}
        if isinstance(model.get("merges"), list):
            model["merges"] = list(_merges_within(model["merges"], model["vocab"]))
    elif isinstance(vocab, list):
        model["vocab"] = [
            [f"{_UNMATCHABLE}{id_}", entry[1]] if id_ in forbidden else entry
            for id_, entry in enumerate(vocab)
        ]
    rewritten["model"] = model
    return rewritten


def _merges_within(merges: list[Any], vocab: dict[str, int]) -> Iterator[Any]:
    """The merges whose operands and result are all in the vocabulary."""
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if left in vocab and right in vocab and left + right in vocab:
            yield merge


def unknown_token_id(file: dict[str, Any]) -> int | None:
    """The id that stands for text the vocabulary can not spell, if there is one."""
    model = file.get("model") or {}
    if isinstance(model.get("unk_id"), int):
        return int(model["unk_id"])
    vocab = model.get("vocab")
    unknown = model.get("unk_token")
    if isinstance(vocab, dict) and isinstance(unknown, str) and unknown in vocab:
        return int(vocab[unknown])
    return None


def most_chars_per_token(file: Mapping[str, Any]) -> int | None:
    """How many characters of a text one token can stand for, at most; none: no bound is known.

    A bound holds where no step leaves text out and unknown text is not run together.
    """
    model = file.get("model") or {}
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict) or not vocab:
        return None
    steps = [*_steps(file.get("normalizer")), *_steps(file.get("pre_tokenizer"))]
    if not all(map(_keeps_all, steps)):
        return None
    by_bytes = any(step.get("type") == "ByteLevel" for step in steps) and all(
        word in vocab for word in pre_tokenizers.ByteLevel.alphabet()
    )
    knows_unknown = model.get("unk_token") is not None and not model.get("fuse_unk")
    if not (by_bytes or model.get("byte_fallback") or knows_unknown):
        return None
    composes = any(step.get("type") in _COMPOSES for step in steps)
    return max(map(len, vocab)) * (_MOST_COMPOSED if composes else 1)


def _steps(step: Any) -> Iterator[Mapping[str, Any]]:
    """The single steps of a normalizer or pre-tokenizer."""
    if not isinstance(step, dict):
        return
    if step.get("type") == "Sequence":
        for inner in [*_items(step, "normalizers"), *_items(step, "pretokenizers")]:
            yield from _steps(inner)
    else:
        yield step


def _keeps_all(step: Mapping[str, Any]) -> bool:
    kind = step.get("type")
    if kind == "Split":
        return step.get("behavior") != "Removed"
    if kind == "Replace":
        pattern = (step.get("pattern") or {}).get("String")
        return isinstance(pattern, str) and len(pattern) <= len(str(step.get("content")))
    return kind in _COMPOSES or kind in ("ByteLevel", "Metaspace", "Digits", "Lowercase", "Prepend")
