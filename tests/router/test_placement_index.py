"""The index against a plain model of it: a bounded set of holders, one maker at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.prompt.segment import SegmentId
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.placement_index import Place, PlacementIndex

PLACES = [Place(tenant, SegmentId(f"seg_{i}")) for tenant in ("", "a") for i in range(3)]
WORKERS = [WorkerId(f"w{i}") for i in range(3)]

Step = tuple[str, Place, WorkerId]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "hold", "drop", "give_up", "delete", "clear", "lose"]),
        st.sampled_from(PLACES),
        st.sampled_from(WORKERS),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_holders_and_makers_are_what_was_said(steps: list[Step]) -> None:
    index = PlacementIndex()
    holders: dict[Place, set[WorkerId]] = {place: set() for place in PLACES}
    makers: dict[Place, WorkerId | None] = dict.fromkeys(PLACES)
    for what, place, worker in steps:
        if what == "begin":
            index.begin(place, worker)
            makers[place] = makers[place] or worker
        elif what == "delete":
            index.delete([place])
            holders[place], makers[place] = set(), None
        elif what == "clear":
            index.clear(place.namespace)
            for one in PLACES:
                if one.namespace == place.namespace:
                    holders[one], makers[one] = set(), None
        elif what == "give_up":
            index.give_up(place, worker)
            if makers[place] == worker:
                makers[place] = None
        else:
            gone = PLACES if what == "lose" else [place]
            index.lose(worker) if what == "lose" else getattr(index, what)(place, worker)
            for one in gone:
                holders[one].discard(worker)
                if makers[one] == worker:
                    makers[one] = None
            if what == "hold":
                holders[place].add(worker)
        for one in PLACES:
            assert index.holders(one) == holders[one]
            assert index.maker(one) == makers[one]
        assert len(index) == sum(bool(holders[p] or makers[p]) for p in PLACES)


@given(order=st.lists(st.integers(0, 30), max_size=60), room=st.integers(1, 5))
def test_what_was_not_asked_for_the_longest_is_forgotten_first(order: list[int], room: int) -> None:
    index = PlacementIndex(max_places=room)
    recent: list[int] = []
    for number in order:
        place = Place("", SegmentId(f"seg_{number}"))
        index.hold(place, WORKERS[0])
        recent = [n for n in recent if n != number] + [number]
        recent = recent[-room:]
        assert len(index) == len(recent)
    for number in range(31):
        known = bool(index.holders(Place("", SegmentId(f"seg_{number}"))))
        assert known == (number in recent)
