"""The token ids of replies, so that a session's next turn says them again in the same tokens."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import final


@final
class SessionMemory:
    """Recent replies of recent sessions: text to the very ids that were generated.

    A text may be written in several ways in tokens; the chain entry at the end of a reply is found
    again only by the ids that the model chose.  The least recently used are forgotten.
    """

    def __init__(self, *, num_sessions: int = 1024, replies_per_session: int = 64) -> None:
        self._num_sessions = num_sessions
        self._replies_per_session = replies_per_session
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, OrderedDict[str, tuple[int, ...]]] = OrderedDict()

    def remember(self, session_id: str, text: str, token_ids: tuple[int, ...]) -> None:
        """Keep what a session was told."""
        with self._lock:
            replies = self._sessions.setdefault(session_id, OrderedDict())
            self._sessions.move_to_end(session_id)
            replies[text] = token_ids
            replies.move_to_end(text)
            if len(replies) > self._replies_per_session:
                replies.popitem(last=False)
            if len(self._sessions) > self._num_sessions:
                self._sessions.popitem(last=False)

    def recall(self, session_id: str | None, text: str) -> tuple[int, ...] | None:
        """The ids of a reply of this session with exactly that text."""
        if session_id is None:
            return None
        with self._lock:
            replies = self._sessions.get(session_id)
            if replies is None:
                return None
            self._sessions.move_to_end(session_id)
            found = replies.get(text)
            if found is not None:
                replies.move_to_end(text)
            return found
