"""Live checks: a reply that reuse gave is recomputed in full while nobody waits (design 12, L6).

One reply is followed at a time: of the next composed prompt that is answered, the logits of each
token are copied as they are drawn from.  Once the engine has been idle for `idle_s`, the same
tokens go through the model with every token live, one grid chunk a step, and the two
distributions are compared token by token.  Whoever owns the engine looks for work between two
steps, so an arrival waits for one step at most; the pass goes on in the next idle time.

Nothing here touches the store, its slots or a request: memory is of its own, and a request is only
read.  Decode and prefill round differently, which is the least divergence that can be seen.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from hypic_sdk.config import ShadowConfig
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.divergence import divergence_rows
from hypic_sdk.engine.request import Phase, Reply
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.engine.shadow_books import ReplyCheck, ShadowBooks
from hypic_sdk.engine.shadow_pass import ShadowMemory, ShadowPass
from hypic_sdk.models.base import CausalLM
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.transport.messages import FinishReason

logger = logging.getLogger(__name__)

_STEPS_REMEMBERED = 32  # a first one that compiles kernels must not count for ever
_ROWS_AT_ONCE = 16  # that are compared in fp64: 19 MiB a copy with a vocabulary of 150,000 ids


@dataclass(slots=True, eq=False)
class Followed:
    """The reply that is being followed, or recomputed."""

    reply: Reply
    num_rows: int = 0  # tokens whose logits were copied
    recompute: ShadowPass | None = None  # begun
    kl_nats: list[float] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)


@final
class Shadow:
    """The live checks of one engine; single-threaded, as the engine is."""

    def __init__(
        self,
        model: CausalLM,
        layout: StoreLayout,
        settings: EngineSettings,
        area: ColdArea,
        config: ShadowConfig,
        clock: Callable[[], float],
    ) -> None:
        """Take all memory at once.

        Args:
            area: the engine's; not touched.
            clock: seconds.
        """
        self._model = model
        self._settings = settings
        self._config = config
        self._clock = clock
        self._num_tokens = min(config.max_tokens, settings.max_context_tokens)
        self._memory = ShadowMemory(layout, settings, area, self._num_tokens)
        # what replies were drawn from, before penalties, grammars and temperature
        self._served_NV = torch.empty(
            (config.max_reply_tokens, model.spec.vocab_size),
            dtype=settings.state_dtype,
            device=settings.device,
        )
        self._followed: Followed | None = None
        self._took_s: deque[float] = deque(maxlen=_STEPS_REMEMBERED)  # of the latest steps
        self._began_s = self._busy_s = clock()
        self.books = ShadowBooks(config)

    @property
    def is_switched_off(self) -> bool:
        """Whether requests are to be answered without reuse."""
        return self.books.is_switched_off

    def follow(self, replies: Sequence[Reply], logits_RV: torch.Tensor) -> None:
        """Keep what the followed reply is about to be drawn from; a forward calls it.

        Args:
            logits_RV: [R, vocab], a row for each reply.  Read only.
        """
        try:
            for row, reply in enumerate(replies):
                if self._followed is None and self._is_fit(reply):
                    self._followed = Followed(reply)
                if self._followed is not None and self._followed.reply is reply:
                    self._keep(self._followed, logits_RV[row])
        except Exception:  # no check is worth a request
            logger.exception("a reply can not be followed")
            self._drop()

    def _is_fit(self, reply: Reply) -> bool:
        """Whether the reply begins now, could differ from full recompute, and fits."""
        request = reply.request
        num_tokens = request.num_prompt_tokens
        is_exact = request.layout.exact_until(num_tokens)
        room = self._num_tokens - min(self._config.max_reply_tokens, reply.request.max_tokens)
        return not reply.token_ids and reply.index == 0 and not is_exact and num_tokens <= room

    def _keep(self, followed: Followed, logits_V: torch.Tensor) -> None:
        at = len(followed.reply.token_ids)
        if at == followed.num_rows < self._config.max_reply_tokens:
            self._served_NV[at].copy_(logits_V)
            followed.num_rows += 1

    def note_work(self) -> None:
        """The engine had work until now."""
        self._busy_s = self._clock()

    def forget(self) -> None:
        """Entries were deleted: nothing that was made from them is kept either."""
        if self._followed is not None:
            self._drop()

    def idle(self) -> float | None:
        """Go one step further, if it is time; the engine has no work now.

        Returns:
            Seconds until it is worth to ask again; none: not before there was work.
        """
        followed = self._ended()
        if followed is None:
            return None
        wait_s = self._wait_s()
        if wait_s > 0.0:
            return wait_s
        self._step(followed)
        return 0.0

    def _ended(self) -> Followed | None:
        """What there is to recompute."""
        followed = self._followed
        if followed is None or followed.reply.request.phase is not Phase.ENDED:
            return None
        if followed.reply.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            self._drop()  # cancelled, or failed
            return None
        return followed

    def _wait_s(self) -> float:
        """Until the engine was idle long enough, and a step more stays within the share of time.

        A step is taken to be as long as the longest of the latest before it; the first one begins
        whatever it will take.
        """
        now_s, config = self._clock(), self._config
        ahead_s = max(self._took_s, default=0.0)
        allowed_s = self._began_s + (self.books.spent_s + ahead_s) / config.share
        return max(self._busy_s + config.idle_s, allowed_s) - now_s

    def _step(self, followed: Followed) -> None:
        start_s = self._clock()
        try:
            self._advance(followed)
        except Exception:  # there is nobody to tell; requests go on
            logger.exception("a reply can not be recomputed")
            self._drop()
        took_s = self._clock() - start_s
        self.books.spent_s += took_s
        self._took_s.append(took_s)

    def _advance(self, followed: Followed) -> None:
        if followed.recompute is None:
            reply, request = followed.reply, followed.reply.request
            before = reply.token_ids[: followed.num_rows - 1]
            followed.recompute = ShadowPass(
                self._model, self._settings, self._memory, request.layout.prompt, before
            )
        rows_ND = followed.recompute.step()
        self._compare(followed, rows_ND)
        if self._settings.device.type == "cuda":
            torch.cuda.synchronize(self._settings.device)  # or its time would not be counted
        if followed.recompute.is_done:
            self._followed = None
            self._note(ReplyCheck(tuple(followed.kl_nats), tuple(followed.agrees)))

    @torch.inference_mode()
    def _compare(self, followed: Followed, rows_ND: torch.Tensor) -> None:
        """Compare what these rows give with what was served behind the same tokens."""
        row_independent = self._settings.row_independent(has_cold=False)
        for some_ND in rows_ND.split(_ROWS_AT_ONCE) if len(rows_ND) else ():
            full_NV = self._model.logits(some_ND, row_independent=row_independent)
            at = len(followed.kl_nats)
            served_NV = self._served_NV[at : at + len(full_NV)]
            followed.kl_nats += divergence_rows(full_NV, served_NV).tolist()
            followed.agrees += (full_NV.argmax(-1) == served_NV.argmax(-1)).tolist()

    def _note(self, check: ReplyCheck) -> None:
        was_off = self.books.is_switched_off
        self.books.note(check)
        logger.info(
            "a reply was recomputed tokens=%d kl=%.2e agreed=%d window_kl=%.2e",
            len(check.kl_nats), sum(check.kl_nats), sum(check.agrees), self.books.window_kl,
        )  # fmt: skip
        if self.books.is_switched_off and not was_off:
            logger.error(
                "reuse is switched off until it is reset: window_kl=%.2e limit_kl=%s",
                self.books.window_kl, self._config.limit_kl,
            )  # fmt: skip

    def _drop(self) -> None:
        self._followed = None
        self.books.note_dropped()
