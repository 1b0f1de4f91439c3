"""Replies are recalled in their own tokens, per session, as long as there is room."""

from __future__ import annotations

from hypic_sdk.service.session_memory import SessionMemory


def test_a_reply_is_recalled_by_its_exact_text():
    memory = SessionMemory()
    memory.remember("s", "yes", (1, 2))
    assert memory.recall("s", "yes") == (1, 2)
    assert memory.recall("s", "yes ") is None
    assert memory.recall("other", "yes") is None
    assert memory.recall(None, "yes") is None


def test_the_oldest_replies_and_sessions_are_forgotten():
    memory = SessionMemory(num_sessions=2, replies_per_session=2)
    for text in "abc":
        memory.remember("s", text, (ord(text),))
    assert [memory.recall("s", text) for text in "abc"] == [None, (98,), (99,)]
    memory.remember("t", "x", (1,))
    memory.recall("s", "b")  # used: `t` is the older one now
    memory.remember("u", "x", (2,))
    assert memory.recall("t", "x") is None
    assert memory.recall("s", "b") == (98,)


def test_the_last_tokens_of_a_text_count():
    memory = SessionMemory()
    memory.remember("s", "yes", (1, 2))
    memory.remember("s", "yes", (3,))
    assert memory.recall("s", "yes") == (3,)
