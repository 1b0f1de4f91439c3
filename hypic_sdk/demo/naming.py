"""Names and values of invented worlds, drawn from open or closed pools.

A proper name belongs to exactly one of two pools, training or held out, decided by a checksum of
its words; so a held-out name can not have been seen. Standard library only.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypic_sdk.demo import words

HELD_OUT_SHARE = 6  # one proper name in six is held out
PRONOUNS = {
    "she": ("she", "her", "her"),
    "he": ("he", "his", "him"),
    "it": ("it", "its", "it"),
}
OPEN_KINDS = ("job", "pet", "colour", "food", "drink", "hobby", "instrument", "product", "material")
CODE_LETTERS = "ABCDEFGHJKLMNPRSTVWXZ"


def is_held_out(word: str) -> bool:
    """Tell whether a proper name belongs to the held-out pool."""
    return zlib.crc32(word.encode()) % HELD_OUT_SHARE == 0


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Foreign material for training: it keeps the reader from learning our lists by heart."""

    prose: Sequence[str] = ()  # sentences used as filler; their words serve as values
    starts: Sequence[str] = ()  # pieces that names start with
    middles: Sequence[str] = ()  # pieces that names go on with

    def word(self, rng: random.Random) -> str | None:
        """Return a lower-case word of the prose, if luck gives one."""
        if not self.prose:
            return None
        word = rng.choice(rng.choice(self.prose).split()).strip(".,;:()`'")
        return word if len(word) > 3 and word.isalpha() and word.islower() else None

    def name(self, rng: random.Random) -> str:
        """Return a name of random pieces."""
        pieces = [rng.choice(self.starts)]
        pieces += [rng.choice(self.middles) for _ in range(rng.choice((0, 1, 1, 2)))]
        return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Entity:
    """Something a world speaks of."""

    kind: str  # person, company, town or item
    name: str  # full name, as questions use it
    short: str  # first name, or "the company"
    pronoun: str  # she, he or it


@dataclass(slots=True)
class Namer:
    """Makes names of one pool, each at most once a world."""

    rng: random.Random
    held_out: bool = False
    lexicon: Lexicon = Lexicon()
    used: set[str] = field(default_factory=set)

    def entity(self, kind: str) -> Entity:
        """Make an entity that the world does not have yet."""
        if kind == "person":
            return self._person()
        if kind == "item":
            noun = self.rng.choice(words.ITEM_NOUNS)
            return Entity(kind, f"the {self._stem(2, 2)} {noun}", f"the {noun}", "it")
        if kind == "company":
            return Entity(kind, self.company(), self.rng.choice(("the company", "the firm")), "it")
        return Entity(kind, self.town(), "the town", "it")

    def value(self, kind: str) -> str:
        """Make a value of a kind named by a relation."""
        maker = getattr(self, f"_{kind}_value", None)
        if maker is not None:
            return str(maker())
        if kind in OPEN_KINDS and self.rng.random() < 0.2:
            word = self.lexicon.word(self.rng)
            if word is not None:
                return word
        return self.rng.choice(_CLOSED_VALUES[kind])

    def town(self) -> str:
        """Make the name of a town."""
        end = self.rng.choice(words.TOWN_ENDS)
        return self._fresh(lambda: self._syllables(1, 2) + ("" if end == "-" else end))

    def company(self) -> str:
        """Make the name of a company."""
        return f"{self._stem(1, 3)} {self.rng.choice(words.COMPANY_ENDS)}"

    def _person(self) -> Entity:
        pronoun = self.rng.choice(("she", "he"))
        listed = words.FEMALE_NAMES if pronoun == "she" else words.MALE_NAMES
        first = self._either(listed)
        last = self._either(words.SURNAMES)
        name = f"{first} {last}"
        if name in self.used:
            return self._person()
        self.used.add(name)
        return Entity("person", name, first, pronoun)

    def _either(self, listed: tuple[str, ...]) -> str:
        while True:
            word = self._syllables(1, 3) if self.rng.random() < 0.4 else self.rng.choice(listed)
            if is_held_out(word) == self.held_out:
                return word

    def _stem(self, fewest: int, most: int) -> str:
        return self._fresh(lambda: self._syllables(fewest, most))

    def _fresh(self, make: Callable[[], str]) -> str:
        while True:
            word = make()
            if len(word) > 2 and word not in self.used and is_held_out(word) == self.held_out:
                self.used.add(word)
                return word

    def _syllables(self, fewest: int, most: int) -> str:
        rng = self.rng
        if self.lexicon.starts and rng.random() < 0.5:
            return self.lexicon.name(rng)
        num_syllables = max(rng.randint(fewest, most), min(2, most))
        parts = []
        for at in range(num_syllables):
            parts.append(rng.choice(words.ONSETS) + rng.choice(words.NUCLEI))
            coda = rng.choice(words.CODAS)
            closed = at == num_syllables - 1 or rng.random() < 0.3
            parts.append(coda if closed and coda != "-" else "")
        return "".join(parts).capitalize()

    def _person_value(self) -> str:
        return self._person().name

    def _company_value(self) -> str:
        return self.company()

    def _town_value(self) -> str:
        return self.town()

    def _river_value(self) -> str:
        return self._stem(1, 2)

    def _petname_value(self) -> str:
        return self._stem(1, 2)

    def _region_value(self) -> str:
        end = self.rng.choice(("ia", "land", "ony", "mark", "esse"))
        return self._fresh(lambda: self._syllables(1, 2) + end)

    def _year_value(self) -> int:
        return self.rng.randint(1840, 2021)

    def _age_value(self) -> int:
        return self.rng.randint(18, 96)

    def _digits4_value(self) -> str:
        return str(self.rng.randint(1000, 9999))

    def _code_value(self) -> str:
        letters = "".join(self.rng.choices(CODE_LETTERS, k=self.rng.randint(1, 2)))
        return letters + str(self.rng.randint(100, 9999))

    def _count_value(self) -> int:
        return self.rng.randint(11, 990)

    def _population_value(self) -> int:
        return self.rng.randint(12, 990) * 100 + self.rng.choice(
            (0, 0, 50, self.rng.randint(1, 99))
        )

    def _weight_value(self) -> int:
        return self.rng.randint(2, 99)

    def _price_value(self) -> int:
        return self.rng.randint(12, 1999)


_CLOSED_VALUES: dict[str, tuple[str, ...]] = {
    "job": words.JOBS,
    "pet": words.PETS,
    "colour": words.COLOURS,
    "food": words.FOODS,
    "drink": words.DRINKS,
    "hobby": words.HOBBIES,
    "instrument": words.INSTRUMENTS,
    "language": words.LANGUAGES,
    "product": words.PRODUCTS,
    "specialty": words.SPECIALTIES,
    "room": words.ROOMS,
    "material": words.MATERIALS,
}
