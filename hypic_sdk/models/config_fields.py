"""Reads the fields of a config.json against what a model knows; nothing unknown passes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hypic_sdk.errors import ModelFileError

Fields = Mapping[str, Any]

# no released model is near; more would only make a hostile file cost memory before it is refused
MAX_SIZE = 2**31 - 1

NEUTRAL_FIELDS = frozenset(
    # where a file came from and how it was saved
    "_name_or_path architectures dtype name_or_path torch_dtype transformers_version "
    # training, and what a forward returns
    "attention_dropout initializer_range output_attentions output_hidden_states return_dict "
    "use_cache use_return_dict chunk_size_feed_forward problem_type id2label label2id "
    "finetuning_task tie_last_hidden_states _attn_implementation attn_implementation "
    "output_router_logits router_aux_loss_coef "
    # ids that the tokenizer and the chat template own
    "bos_token_id pad_token_id sep_token_id decoder_start_token_id "
    # defaults of sampling, which belong to the request
    "do_sample temperature top_k top_p typical_p repetition_penalty max_length min_length".split()
)
"""Fields that change no logit of a forward over given token ids."""


class FieldReader:
    """Takes fields out of one JSON object; problems are collected and raised together, by name.

    A field that is neither taken nor neutral is a problem: it might change the mathematics.
    """

    def __init__(
        self,
        fields: Fields,
        *,
        where: str = "",
        problems: list[str] | None = None,
        file: str = "config.json",
    ) -> None:
        self._fields = fields
        self._file = file
        self._where = where
        self._seen: set[str] = set()
        self.problems: list[str] = [] if problems is None else problems

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def is_empty(self) -> bool:
        """Whether the object has no fields."""
        return not self._fields

    def integer(self, name: str, default: int, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number within bounds."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, f"must be a whole number, got {value!r}")
            return default
        if not minimum <= value <= maximum:
            self.refuse(name, f"must be {minimum} to {maximum}, got {value}")
            return default
        return value

    def number(self, name: str, default: float, *, above: float, up_to: float) -> float:
        """A number greater than `above` and at most `up_to`."""
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, f"must be a number, got {value!r}")
            return default
        if not (math.isfinite(value) and above < value <= up_to):
            self.refuse(name, f"must be above {above:g} and at most {up_to:g}, got {value!r}")
            return default
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self._take(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"must be true or false, got {value!r}")
            return default
        return value

    def fixed(self, name: str, *supported: Any) -> None:
        """A field that may be absent, or hold one of a few values that mean what is built here."""
        value = self._take(name, supported[0])
        # 0 == False in Python; in a configuration they are not the same
        if not any(type(value) is type(item) and value == item for item in supported):
            self.refuse(name, f"only {_words(supported)} is offered, got {value!r}")

    def optional_names(self, name: str, allowed: Collection[str]) -> tuple[str, ...] | None:
        """A list of words out of `allowed`; none if absent or null."""
        value = self._take(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or any(item not in allowed for item in map(_word, value)):
            self.refuse(name, f"must be a list of {_words(sorted(allowed))}, got {_short(value)}")
            return None
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers that are not negative; empty if absent or null."""
        value = self._take(name, None)
        items = [] if value is None else value
        if not isinstance(items, list) or any(
            isinstance(i, bool) or not isinstance(i, int) or not 0 <= i <= MAX_SIZE for i in items
        ):
            self.refuse(name, f"must be a list of whole numbers, got {_short(value)}")
            return ()
        return tuple(items)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id, a list of them, or null."""
        value = self._take(name, None)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(
            isinstance(i, bool) or not isinstance(i, int) or not 0 <= i <= MAX_SIZE for i in ids
        ):
            self.refuse(name, f"must be a token id or a list of them, got {_short(value)}")
            return ()
        return tuple(dict.fromkeys(ids))

    def nested(self, name: str) -> FieldReader | None:
        """An object inside this one, whose problems are collected with ours; none if absent."""
        value = self._take(name, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, f"must be an object, got {_short(value)}")
            return None
        return FieldReader(value, where=f"{self._where}{name}.", problems=self.problems)

    def ignore(self, *names: str) -> None:
        """Fields that change no logit of this model."""
        self._seen.update(names)

    def refuse(self, name: str, reason: str) -> None:
        """Note a problem with a field."""
        self._seen.add(name)
        self.problems.append(f"{self._where}{name}: {reason}")

    def refuse_unknown(self, *, neutral_prefixes: Sequence[str] = ()) -> None:
        """Note every field that was not asked for and is not known to be neutral."""
        for name in self._fields:
            if name in self._seen or name in NEUTRAL_FIELDS:
                continue
            if not name.startswith(tuple(neutral_prefixes)):
                self.refuse(name, "unknown field; it might change what the model computes")

    def raise_problems(self) -> None:
        """Raise everything that was noted as one ModelFileError."""
        if self.problems:
            text = f"{self._file} can not be served: " + "; ".join(self.problems)
            raise ModelFileError(text, fields=[p.partition(":")[0] for p in self.problems])

    def _take(self, name: str, default: Any) -> Any:
        self._seen.add(name)
        return self._fields.get(name, default)


def _word(value: object) -> object:
    return value if isinstance(value, str) else None


def _words(values: Collection[Any]) -> str:
    return " or ".join(repr(value) for value in values)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
