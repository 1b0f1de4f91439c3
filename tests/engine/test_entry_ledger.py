"""What a worker tells of its entries adds up to what it holds: whatever is made and goes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.engine.engine import Engine
from hypic_sdk.transport.control import EntriesChanged, EntryName
from hypic_sdk.transport.messages import WarmRequest
from tests.engine.harness import engine_of
from tests.engine.prompts import inner, tokens

DOCUMENTS = [inner(tokens(seed, 20 + seed)) for seed in range(6)]
STEPS = st.lists(
    st.tuples(st.sampled_from(["warm", "delete", "clear", "trim"]), st.integers(0, 5),
              st.sampled_from(["", "a"])),
    max_size=15,
)  # fmt: skip


def warm(engine: Engine, name: str, number: int, namespace: str) -> None:
    engine.warm(WarmRequest(name, (DOCUMENTS[number],), namespace))
    while engine.has_work:
        engine.step()


@settings(max_examples=40)
@given(steps=STEPS)
def test_what_was_told_adds_up_to_what_is_held(steps: list[tuple[str, int, str]]) -> None:
    engine = engine_of()
    held: set[EntryName] = set()

    def take(changed: EntriesChanged) -> None:
        assert not held & set(changed.made)
        assert set(changed.gone) <= held
        held.difference_update(changed.gone)
        held.update(changed.made)

    engine.watch_entries("w", take)
    for place, (what, number, namespace) in enumerate(steps):
        if what == "warm":
            warm(engine, f"r{place}", number, namespace)
        elif what == "delete":
            engine.delete([DOCUMENTS[number]], namespace)
        elif what == "clear":
            engine.clear(namespace)
        else:
            engine.set_limit(namespace, 1)
            engine.set_limit(namespace, 1 << 40)
    engine.tell_entries()
    true = {
        EntryName(namespace, part.segment_id)
        for namespace in ("", "a")
        for part, is_held in zip(DOCUMENTS, engine.probe(DOCUMENTS, namespace), strict=True)
        if is_held and part.segment_id is not None
    }
    assert held == true
