"""Chain entries by digest: which are retained, at which positions they end, what they contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from hypic_sdk.prompt.segment import BorderKind, SegmentKey
from hypic_sdk.store.entries import ChainEntry, ChainRef, ChainSpec, Removal
from hypic_sdk.store.residents import Resident, Residents

_Session = tuple[str, str]  # namespace, session id


@final
class PrivatePool:
    """The index of chain entries.

    Retained are those at the end of a leading part, and each session's last few; the others are
    the first to be evicted.
    """

    def __init__(self, residents: Residents, max_per_session: int) -> None:
        self._residents = residents
        self._max_per_session = max_per_session
        self.held: dict[ChainRef, Resident[ChainEntry]] = {}
        self._leading: set[ChainRef] = set()
        # a session's last entries, the oldest in front
        self._sessions: dict[_Session, list[ChainRef]] = {}
        self._retained_by: dict[ChainRef, set[_Session]] = {}
        self._by_segment: dict[SegmentKey, set[ChainRef]] = {}
        self._positions: dict[str, dict[int, int]] = {}  # namespace -> position -> entries there

    def find(self, ref: ChainRef) -> Resident[ChainEntry] | None:
        """The chain entry under a digest."""
        return self.held.get(ref)

    def positions(self, namespace: str, limit: int | None) -> list[int]:
        """Distinct positions of a namespace's entries, rising, up to `limit`."""
        held = self._positions.get(namespace, {})
        return sorted(position for position in held if limit is None or position <= limit)

    def longest(self, namespace: str, digests: Iterable[bytes]) -> ChainEntry | None:
        """The entry of the highest position among those held under `digests`."""
        found = (self.held.get(ChainRef(namespace, digest)) for digest in digests)
        entries = [resident.entry for resident in found if resident is not None]
        return max(entries, key=lambda entry: entry.position, default=None)

    def put(self, resident: Resident[ChainEntry]) -> None:
        """Index a new entry (its retention follows from `note_use`)."""
        entry, namespace = resident.entry, resident.namespace
        ref = ChainRef(namespace, entry.digest)
        assert ref not in self.held, "chain entry is held already"
        self.held[ref] = resident
        for key in entry.segment_keys:
            self._by_segment.setdefault(key, set()).add(ref)
        counts = self._positions.setdefault(namespace, {})
        counts[entry.position] = counts.get(entry.position, 0) + 1

    def retains(self, kind: BorderKind, session_id: str | None) -> bool:
        """Whether an entry put for this kind of border and session would be retained."""
        in_session = session_id is not None and self._max_per_session > 0
        return kind is BorderKind.LEADING or in_session

    def note_use(self, spec: ChainSpec) -> None:
        """Retain the entry of this digest as its kind and its session want."""
        ref = ChainRef(spec.namespace, spec.digest)
        if spec.kind is BorderKind.LEADING:
            self._leading.add(ref)
        if spec.session_id is not None:
            self._move_to_end(ref, (spec.namespace, spec.session_id))
        self._settle_retention(ref)

    def forget(self, namespace: str, entry: ChainEntry) -> None:
        """Take an entry out of the index, and out of every session."""
        ref = ChainRef(namespace, entry.digest)
        del self.held[ref]
        self._leading.discard(ref)
        for key in entry.segment_keys:
            self._by_segment[key].discard(ref)
            if not self._by_segment[key]:
                del self._by_segment[key]
        counts = self._positions[namespace]
        counts[entry.position] -= 1
        if not counts[entry.position]:
            del counts[entry.position]
        if not counts:
            del self._positions[namespace]
        for session in self._retained_by.pop(ref, set()):
            self._sessions[session].remove(ref)
            if not self._sessions[session]:
                del self._sessions[session]

    def delete_containing(self, key: SegmentKey) -> Removal:
        """Remove every entry that contains a segment."""
        return self._delete(list(self._by_segment.get(key, ())))

    def clear(self, namespace: str | None) -> Removal:
        """Remove every entry of a namespace (none: of all)."""
        refs = [ref for ref in self.held if namespace is None or ref.namespace == namespace]
        return self._delete(refs)

    def check_indexes(self) -> None:
        """Rebuild every side index from the entries; AssertionError where one differs."""
        by_segment: dict[SegmentKey, set[ChainRef]] = {}
        positions: dict[str, dict[int, int]] = {}
        for ref, resident in self.held.items():
            for key in resident.entry.segment_keys:
                by_segment.setdefault(key, set()).add(ref)
            counts = positions.setdefault(ref.namespace, {})
            counts[resident.entry.position] = counts.get(resident.entry.position, 0) + 1
            retained = ref in self._leading or any(ref in s for s in self._sessions.values())
            assert resident.retained == retained, "retention of a chain entry is wrong"
        assert by_segment == self._by_segment, "index of contained segments is wrong"
        assert positions == self._positions, "index of chain positions is wrong"
        retained_by: dict[ChainRef, set[_Session]] = {}
        for session, refs in self._sessions.items():
            assert 0 < len(refs) <= self._max_per_session, "a session retains too many or none"
            for ref in refs:
                retained_by.setdefault(ref, set()).add(session)
        assert retained_by == self._retained_by, "index of sessions is wrong"
        assert self._leading | set(retained_by) <= set(self.held), "a dropped entry is retained"

    def _delete(self, refs: list[ChainRef]) -> Removal:
        removal = Removal()
        for ref in refs:
            resident = self.held[ref]
            self.forget(ref.namespace, resident.entry)
            gone = self._residents.remove(resident)
            removal += Removal(removed=int(gone), deferred=int(not gone))
        return removal

    def _move_to_end(self, ref: ChainRef, session: _Session) -> None:
        """Make an entry its session's last; one that is no longer among the last few is let go."""
        refs = self._sessions.setdefault(session, [])
        if ref in refs:
            refs.remove(ref)
        refs.append(ref)
        self._retained_by.setdefault(ref, set()).add(session)
        while len(refs) > self._max_per_session:
            oldest = refs.pop(0)
            self._retained_by[oldest].discard(session)
            if not self._retained_by[oldest]:
                del self._retained_by[oldest]
            self._settle_retention(oldest)
        if not refs:
            del self._sessions[session]

    def _settle_retention(self, ref: ChainRef) -> None:
        self.held[ref].retained = ref in self._leading or ref in self._retained_by
