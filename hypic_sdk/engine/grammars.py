"""Grammars on their way from a request to the masks of its tokens.

A grammar is compiled on a thread of its own, while its request waits and the others go on; masks
are computed on two more, beside the forward.  Nobody else waits for either: a reply whose mask is
late draws its token in a later step.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, final

import torch

from hypic_sdk.errors import HypicError, InvalidGrammar, WorkerError
from hypic_sdk.prompt.grammar import compilable, limits, on_deep_stack, refusal
from hypic_sdk.transport.messages import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64  # grammars that are remembered
COMPILE_TIMEOUT_S = 10.0


@final
class Compilation:
    """One grammar that is being compiled, or was; shared by every request that names it."""

    def __init__(self, grammar: Grammar, source: str) -> None:
        """`source`: as llguidance takes it."""
        self.grammar = grammar
        self.source = source
        self.begun_s: float | None = None  # none: others are compiled before it
        self.result: Future[tuple[LLMatcher, bytes]] = Future()  # and the mask of the first token

    @property
    def is_late(self) -> bool:
        """Whether it takes longer than anyone waits."""
        begun_s = self.begun_s
        is_over = begun_s is not None and time.monotonic() - begun_s > COMPILE_TIMEOUT_S
        return is_over and not self.result.done()

    @property
    def is_done(self) -> bool:
        """Whether it can start replies, or has an error."""
        return self.result.done() or self.is_late

    @property
    def error(self) -> HypicError | None:
        """What is wrong with it."""
        if self.is_late:
            return refusal(self.grammar, f"it takes more than {COMPILE_TIMEOUT_S:g} s to compile")
        error = self.result.exception()
        if error is None or isinstance(error, HypicError):
            return error
        return WorkerError(f"the grammar was not compiled: {error}")

    def start(
        self, end_ids: Iterable[int], masks: ThreadPoolExecutor, *, vocab_size: int
    ) -> ReplyGrammar:
        """A reply at its beginning."""
        matcher, first_mask = self.result.result()
        return ReplyGrammar(
            self.grammar, matcher.deep_copy(), first_mask, end_ids, masks, vocab_size=vocab_size
        )


@final
class ReplyGrammar:
    """How far one reply has come in its grammar."""

    def __init__(
        self,
        grammar: Grammar,
        matcher: LLMatcher,
        first_mask: bytes,
        end_ids: Iterable[int],
        masks: ThreadPoolExecutor,
        *,
        vocab_size: int,
    ) -> None:
        """`end_ids`: end tokens of the model, and stop tokens of the request."""
        self._num_bytes = 4 * -(-vocab_size // 32)
        self.grammar = grammar
        self._matcher = matcher
        self._end_ids = tuple(end_ids)
        self._masks = masks
        self._mask: Future[bytes] = Future()
        self._mask.set_result(first_mask)

    @property
    def mask(self) -> Future[bytes]:
        """The mask of the next token, on its way."""
        return self._mask

    def allowed_bits(self, *, may_end: bool) -> torch.Tensor:
        """[words] int32 on the host: the ids that may come next; none when the grammar is stuck.

        End tokens are allowed where the grammar accepts what was said, and nowhere else.

        Args:
            may_end: false while the reply is too short; where nothing but its end is left, it ends.
        """
        # the library's mask has a bit for one id more, so at times a word more
        bits = bytearray(self._mask.result()[: self._num_bytes])
        accepts = self._matcher.is_accepting()
        self._set_ends(bits, is_allowed=accepts and may_end)
        if accepts and not may_end and not any(bits):
            self._set_ends(bits, is_allowed=True)
        return torch.frombuffer(bits, dtype=torch.int32)

    def _set_ends(self, bits: bytearray, *, is_allowed: bool) -> None:
        for id_ in self._end_ids:
            bit = 1 << id_ % 8
            bits[id_ // 8] = bits[id_ // 8] | bit if is_allowed else bits[id_ // 8] & ~bit

    def take(self, token_id: int) -> bool:
        """A token came; whether the reply is whole with it, so that nothing may follow.

        If not, its next mask is on its way.
        """
        self._matcher.consume_token(token_id)
        if self._matcher.is_stopped() and not self._matcher.is_error():
            return True
        self._mask = self._masks.submit(self._matcher.compute_bitmask)
        return False

    def stuck(self, position: int) -> InvalidGrammar:
        """The error of a reply that no token may follow."""
        said = self._matcher.get_error() or "no token of the model can follow"
        return refusal(self.grammar, f"after {position} tokens: {said}")


@final
class GrammarBook:
    """Compiles grammars for one tokenizer, each once, and remembers the last few."""

    def __init__(
        self, read_tokenizer: Callable[[], str], *, vocab_size: int, eos_token_ids: Iterable[int]
    ) -> None:
        """
        Args:
            read_tokenizer: the text of the model's `tokenizer.json`; called when a grammar comes.
        """
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._known: OrderedDict[bytes, Compilation] = OrderedDict()
        self._lock = threading.Lock()
        self._queue: deque[Compilation] = deque()
        self._current: Compilation | None = None  # what the compiling thread is at
        self._masks = ThreadPoolExecutor(2, thread_name_prefix="hypic-masks")

    def begin(self, grammar: Grammar) -> Compilation:
        """The compilation of a grammar.  Raises InvalidGrammar for what is wrong at first sight."""
        digest = hashlib.sha256(f"{grammar.kind.value}\0{grammar.source}".encode()).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = Compilation(grammar, compilable(grammar))
            self._enqueue(known)
        self._known.move_to_end(digest)
        while len(self._known) > MAX_COMPILED:
            self._known.popitem(last=False)
        return known

    def start(self, compilation: Compilation, stop_token_ids: Iterable[int]) -> ReplyGrammar:
        """A reply at its beginning, which an end token or one of these may end."""
        end_ids = {*self._eos_token_ids, *stop_token_ids}
        return compilation.start(sorted(end_ids), self._masks, vocab_size=self._vocab_size)

    def _enqueue(self, compilation: Compilation) -> None:
        with self._lock:
            self._queue.append(compilation)
        self.relieve()

    def relieve(self) -> None:
        """Let another thread go on where one is stuck, or where there is none."""
        with self._lock:
            is_busy = self._current is not None and not self._current.is_late
            if is_busy or not self._queue:
                return
            self._current = self._queue[0]
        on_deep_stack(self._compile_all)

    def _compile_all(self) -> None:
        """The compiling thread: ends with the queue, or when another took its place."""
        mine: Compilation | None = None
        while True:
            with self._lock:
                if mine is not None and self._current is not mine:
                    return
                mine = self._current = self._queue.popleft() if self._queue else None
            if mine is None:
                return
            mine.begun_s = time.monotonic()
            try:
                mine.result.set_result(self._compile(mine))
            except BaseException as error:
                mine.result.set_exception(error)

    def _compile(self, compilation: Compilation) -> tuple[LLMatcher, bytes]:
        from llguidance import LLMatcher

        source = compilation.source
        matcher = LLMatcher(self._llguidance(), source, log_level=0, limits=limits())
        mask = b"" if matcher.is_error() else matcher.compute_bitmask()
        if matcher.is_error():
            raise refusal(compilation.grammar, matcher.get_error())
        return matcher, mask

    def _llguidance(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        if self._tokenizer is None:
            self._tokenizer = LLTokenizer(
                self._read_tokenizer(),
                n_vocab=self._vocab_size,
                eos_token=self._eos_token_ids or None,
            )
        return self._tokenizer
