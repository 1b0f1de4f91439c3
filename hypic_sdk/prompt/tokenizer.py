"""Text to token ids and back, piece by piece; a caller's text can not make an added token."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import json
import re
import struct
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from tokenizers import Encoding, Tokenizer

from hypic_sdk.errors import ModelFileError, PromptTooLong, RequestError
from hypic_sdk.prompt import tokenizer_file

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
INDEX_FILE = "model.safetensors.index.json"
_LONG_CHARS = 8192
_HUGE_CHARS = 1 << 17
_FINGERPRINT_TAG = b"hypic.tokenizer.v1\0"


@dataclass(frozen=True, slots=True)
class TokenizedTemplate:
    """A stretch of template text: ids, and where each token ends in the text (in characters)."""

    token_ids: tuple[int, ...]
    ends: tuple[int, ...]


def check_text(text: str, what: str) -> None:
    """Refuse text that has no UTF-8 form.

    Raises:
        RequestError: a lone surrogate, with its position.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} holds a lone surrogate at character {error.start}: it has no UTF-8 form",
            position=error.start,
        ) from None


@final
class PromptTokenizer:
    """Two tokenizers of one file: one for template text, one for callers' texts.

    The template's parses every added token.  The callers' is built from the same file with all
    added tokens removed, special or not, so no document can open a message or close one.  Neither
    puts a space or a beginning-of-text token before a piece; `bos_token_id` is set when the model
    wants one at the start of a prompt.
    """

    def __init__(self, file: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """Build both from the parsed `tokenizer.json` and `tokenizer_config.json`.

        Raises:
            ModelFileError: the file is no tokenizer, or names a token that it does not have.
        """
        self.special_tokens: Mapping[str, str] = MappingProxyType(_special_tokens(config))
        whole = dict(file)
        problem = tokenizer_file.problem_of(whole)
        if problem is not None:
            raise ModelFileError(f"not a tokenizer: {problem}")
        piecewise = tokenizer_file.piecewise(whole)
        self._added = tokenizer_file.added_tokens(whole)
        self._hidden = frozenset(
            int(entry["id"]) for entry in whole.get("added_tokens") or () if entry.get("special")
        )
        self.control_ids = frozenset(self._added) - {tokenizer_file.unknown_token_id(whole)}
        self._template = _build(piecewise)
        callers = tokenizer_file.for_callers(piecewise, self.control_ids)
        self._caller = _build(callers)
        self._most_chars = tokenizer_file.most_chars_per_token(callers)
        self._max_tokens: int | None = None
        self._overlap = _AddedTokenOverlap(tuple(self._added.values()))
        self.bos_token_id = self._find_bos_token(whole, config)
        # byte tokens that decode only as a whole run: nothing is said before the run has ended
        self._byte_fallback = "ByteFallback" in json.dumps(whole.get("decoder"))
        self.vocab_size = max(self._template.get_vocab().values(), default=-1) + 1
        self.fingerprint = _fingerprint(whole, self.bos_token_id)

    @classmethod
    def from_folder(cls, folder: Path) -> PromptTokenizer:
        """Read `tokenizer.json`, and `tokenizer_config.json` where there is one.

        Raises:
            ModelFileError: missing, torn, not a tokenizer, or another than the one that the
                checkpoint's shard index names.
        """
        if not (folder / TOKENIZER_FILE).is_file():
            raise ModelFileError(f"{folder} has no {TOKENIZER_FILE}")
        config_path = folder / CONFIG_FILE
        config = read_json(config_path) if config_path.is_file() else {}
        try:
            file = read_json(folder / TOKENIZER_FILE)
            tokenizer = cls(file, config)
        except ModelFileError as error:
            raise ModelFileError(f"{folder / TOKENIZER_FILE}: {error.message}") from error
        _check_named(folder, file)
        return tokenizer

    def bounded(self, max_tokens: int | None) -> PromptTokenizer:
        """The same, for contexts of `max_tokens` (none: of any size): it refuses longer texts."""
        bounded = copy.copy(self)
        bounded._max_tokens = max_tokens
        return bounded

    def check_length(self, num_chars: int) -> None:
        """Refuse what can not fit the context, before it is tokenised.

        Raises:
            PromptTooLong: so many characters are more tokens than the context holds.
        """
        if self._max_tokens is None or self._most_chars is None:
            return
        min_tokens = -(-num_chars // self._most_chars)
        if min_tokens > self._max_tokens:
            raise PromptTooLong(
                f"{num_chars} characters are {min_tokens} tokens or more, the context holds "
                f"{self._max_tokens}: shorten the text",
                num_chars=num_chars,
                num_tokens=min_tokens,  # or more
                limit_tokens=self._max_tokens,
            )

    def encode_template(self, text: str) -> TokenizedTemplate:
        """Tokenise template text; added tokens are parsed."""
        check_text(text, "the rendered template")
        encoding = _encoded(self._template, text)
        return TokenizedTemplate(tuple(encoding.ids), tuple(stop for _, stop in encoding.offsets))

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokenise one caller's text; it can not make an added token.

        Raises:
            PromptTooLong: more than the context can hold (`bounded`), told by the characters.
            RequestError: a lone surrogate, or a text that the tokenizer fails on.
            ModelFileError: the vocabulary makes an added token out of plain text all the same.
        """
        self.check_length(len(text))
        check_text(text, "a text")
        ids = _encoded(self._caller, text).ids
        if len(text) >= _HUGE_CHARS:
            _give_memory_back()
        if not self.control_ids.isdisjoint(ids):
            made = next(id_ for id_ in ids if id_ in self.control_ids)
            raise ModelFileError(
                f"this tokenizer makes the control token {self._added[made]!r} from plain text",
                token_id=made,
            )
        return tuple(ids)

    def encode_segment(self, text: str) -> tuple[int, ...]:
        """Tokenise a text to be registered; raises as `encode_text` does.

        Raises:
            PromptTooLong: no context that it could stand in holds it.
        """
        ids = self.encode_text(text)
        if self._max_tokens is not None and len(ids) > self._max_tokens:
            raise PromptTooLong(
                f"the text has {len(ids)} tokens, the context holds {self._max_tokens}: cut it",
                num_tokens=len(ids),
                limit_tokens=self._max_tokens,
            )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; special tokens and unknown ids have none."""
        return str(self._template.decode(list(token_ids), skip_special_tokens=True))

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, special tokens by their names."""
        return str(self._template.decode([token_id], skip_special_tokens=False))

    def is_added_token(self, text: str) -> bool:
        """Whether a text is, as a whole, one of the added tokens."""
        return text in self._added.values()

    def has_hidden(self, token_ids: Sequence[int]) -> bool:
        """Whether any of the ids is a special token, which `decode` leaves out."""
        return not self._hidden.isdisjoint(token_ids)

    def ends_in_byte(self, token_ids: Sequence[int]) -> bool:
        """Whether the text ends in a byte token, whose meaning the next token may still change."""
        if not self._byte_fallback:
            return False
        for token_id in reversed(token_ids):
            token = self._template.id_to_token(token_id)
            # tokens without a text do not end a run of bytes
            if token is not None and token_id not in self._hidden:
                return len(token) == 6 and token.startswith("<0x")
        return False

    def touches_added_token(self, text: str) -> bool:
        """Whether text set raw into a template could make an added token.

        It does if it holds one, or starts or ends with a part of one, also in the form that a
        normalizer may give it.  A string that is the middle of one is not meant: a template that
        writes both its sides wants the token.
        """
        if self._overlap.found_in(text):
            return True
        return not text.isascii() and self._overlap.found_in(unicodedata.normalize("NFKC", text))

    def _find_bos_token(self, file: dict[str, Any], config: Mapping[str, Any]) -> int | None:
        """The beginning-of-text token, where the config or the file's own steps add one."""
        wanted = config.get("add_bos_token")
        if wanted is False:
            return None
        if wanted is True:
            name = self.special_tokens.get("bos_token")
            token_id = None if name is None else self._template.token_to_id(name)
            if token_id is None:
                raise ModelFileError(f"add_bos_token is set, but there is no token {name!r}")
            return int(token_id)
        if not file.get("post_processor"):
            return None
        whole = _build(file)
        with_added = whole.encode("a", add_special_tokens=True).ids
        without = whole.encode("a", add_special_tokens=False).ids
        return int(with_added[0]) if with_added[:1] != without[:1] else None

    def check_vocab_size(self, model_vocab_size: int) -> None:
        """Refuse a tokenizer that makes ids the model has no row for.

        Raises:
            ModelFileError: with both sizes.
        """
        if self.vocab_size > model_vocab_size:
            raise ModelFileError(
                f"the tokenizer makes ids up to {self.vocab_size - 1}, the model has "
                f"{model_vocab_size} rows: these files do not belong together",
                tokenizer_size=self.vocab_size,
                model_size=model_vocab_size,
            )

    def check_end_tokens(self, end_token_ids: Iterable[int]) -> None:
        """Refuse a tokenizer that does not know the tokens that end the model's text.

        Raises:
            ModelFileError: naming the ids.
        """
        unknown = sorted(id_ for id_ in end_token_ids if not 0 <= id_ < self.vocab_size)
        if unknown:
            raise ModelFileError(
                f"the model ends its text with ids {unknown}, the tokenizer knows ids up to "
                f"{self.vocab_size - 1}: these files do not belong together",
                end_token_ids=unknown,
                tokenizer_size=self.vocab_size,
            )


def _encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    """One text, tokenised; other threads run meanwhile if it takes long.

    `encode` holds the interpreter's lock for its whole time, 2 s for a million characters, and an
    event loop in this process stands still; the call for batches lets go of it.

    Raises:
        ModelFileError: a tokenizer that can not.
        RequestError: this text is too much for it.
    """
    try:
        if len(text) < _LONG_CHARS:
            return tokenizer.encode(text, add_special_tokens=False)
        [encoding] = tokenizer.encode_batch([text], add_special_tokens=False)
    except Exception as error:
        # the library raises plain `Exception`, where a vocabulary lacks its own unknown token, say
        raise ModelFileError(f"this tokenizer can not encode a text: {error}") from error
    except BaseException as error:
        # a panic of the library (its regular expressions run out of stack, say) is no `Exception`
        if type(error).__name__ != "PanicException":
            raise
        raise RequestError(
            f"the tokenizer fails on a text of {len(text)} characters ({error}): shorten it, or "
            "break its long runs of one kind",
            num_chars=len(text),
        ) from None
    return encoding


def _give_memory_back() -> None:
    """Let go of what the library took for a huge text: some 200 bytes a character.

    It is freed by then, but in pieces, and the allocator would keep it for as long as it runs.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
        if trim is not None:
            trim(0)


def token_ids_of(packed: bytes) -> tuple[int, ...]:
    """The ids that `token_bytes` packed: a kept text takes 4 bytes a token, a tuple takes 36."""
    return struct.unpack(f"<{len(packed) // 4}i", packed)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model folder.

    Raises:
        ModelFileError: unreadable, not JSON, or not an object.
    """
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelFileError(f"can not read {path}: {error}") from error
    if not isinstance(loaded, dict):
        raise ModelFileError(f"{path} holds no JSON object")
    return loaded


def _check_named(folder: Path, file: Mapping[str, Any]) -> None:
    """Refuse a tokenizer that is not the one the weights were made with, where the index names it.

    Ids of the right number may still mean other words; nothing else in a folder would tell.
    """
    if not (folder / INDEX_FILE).is_file():
        return
    metadata = read_json(folder / INDEX_FILE).get("metadata")
    named = metadata.get(tokenizer_file.DIGEST_FIELD) if isinstance(metadata, Mapping) else None
    if named is None:
        return
    found = tokenizer_file.content_digest(file)
    if named != found:
        raise ModelFileError(
            f"{folder / TOKENIZER_FILE} is not the tokenizer that {INDEX_FILE} names: these files "
            "do not belong together",
            named_digest=named,
            found_digest=found,
        )


def _build(file: Mapping[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(file))
    except Exception as error:
        # the library raises plain `Exception` for whatever it can not read
        raise ModelFileError(f"not a tokenizer: {error}") from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Tokens by their names in the config (`bos_token`, ...), as templates expect them."""
    found = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            found[name] = content
    return found


def _fingerprint(file: Mapping[str, Any], bos_token_id: int | None) -> str:
    canonical = json.dumps(file, sort_keys=True, ensure_ascii=True).encode()
    return hashlib.sha256(
        _FINGERPRINT_TAG + str(bos_token_id).encode() + b"\0" + canonical
    ).hexdigest()


@final
class _AddedTokenOverlap:
    """Finds texts that hold an added token, or start or end with a part of one."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._whole = re.compile("|".join(map(re.escape, tokens))) if tokens else None
        self._starts = {token[:size] for token in tokens for size in range(1, len(token))}
        self._ends = {token[-size:] for token in tokens for size in range(1, len(token))}
        self._longest = max(map(len, tokens), default=1) - 1

    def found_in(self, text: str) -> bool:
        if self._whole is None:
            return False
        sizes = range(1, min(len(text), self._longest) + 1)
        return (
            any(text[-size:] in self._starts or text[:size] in self._ends for size in sizes)
            or self._whole.search(text) is not None
        )
