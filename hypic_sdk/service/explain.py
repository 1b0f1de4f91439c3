"""A prompt explained: its parts, what they would cost, what costs hits.  Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import final

from hypic_sdk.prompt.pieces import CallerText, RenderedPrompt
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from hypic_sdk.prompt.segmenter import segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service.conversation import DOCUMENTS
from hypic_sdk.service.model_facts import ModelFacts
from hypic_sdk.service.spelling import odd_borders, respellings
from hypic_sdk.wire.explain import ExplainedPart, ExplainWarning, Explanation
from hypic_sdk.wire.shadow import ShadowStats

Probe = Callable[[Sequence[PromptPart]], Sequence[bool]]

# "[1] ...", "1. ...", "Document 3: ...": the same text behind another number is another segment
_RUNNING_NUMBER = re.compile(
    r"\s*(?:\[\d{1,4}\]|\d{1,4}[.):]\s|(?:document|source|passage|chunk|doc)\s*#?\d{1,4}\b)",
    re.IGNORECASE,
)

_SWITCHED_OFF = ExplainWarning(
    code="reuse_switched_off",
    message="live checks found replies too far from full recompute: nothing is reused until the "
    "server's operator resets that",
)


@final
class Explainer:
    """Explains prompts of one model and one tenant."""

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        facts: ModelFacts,
        *,
        probe: Probe,
        is_registered: Callable[[str], bool],
    ) -> None:
        self._tokenizer = tokenizer
        self._facts = facts
        self._probe = probe
        self._is_registered = is_registered

    def explain(
        self, rendered: RenderedPrompt, *, reuse: bool = True, shadow: ShadowStats | None = None
    ) -> Explanation:
        """Parts, expected cost and warnings of a rendered prompt.

        Args:
            reuse: false is mode "off".
            shadow: what live checks found; they may have switched reuse off.
        Raises:
            EmptyPrompt: there is nothing to explain.
        """
        prompt = segment_prompt(rendered, self._tokenizer)
        is_off = shadow is not None and shadow.num_switched_off > 0
        parts = self._parts(prompt, reuse=reuse and not is_off)
        new = {part.segment_id: part.tokens for part in parts if part.expected == "cold"}
        cached = sum(part.reused_tokens for part in parts if part.expected == "hit")
        saved = sum(part.reused_tokens for part in parts)
        return Explanation(
            prompt_tokens=prompt.num_tokens,
            cached_tokens=cached,
            live_tokens=prompt.num_tokens - saved,
            cold_tokens=sum(new.values()),
            parts=parts,
            warnings=[
                *([_SWITCHED_OFF] if is_off and reuse else []),
                *self._segment_warnings(rendered, prompt),
                *self._prompt_warnings(rendered, prompt),
            ],
            shadow=shadow,
        )

    def _parts(self, prompt: SegmentedPrompt, *, reuse: bool) -> list[ExplainedPart]:
        kept = [
            part
            for part in prompt.parts
            if reuse and part.role is Role.INNER and self._interior(part) is not None
        ]
        held = dict(zip(map(id, kept), self._probe(kept) if kept else (), strict=True))
        return [
            self._part(part, start, held.get(id(part)))
            for part, start in zip(prompt.parts, prompt.starts, strict=True)
        ]

    def _interior(self, part: PromptPart) -> int | None:
        return self._facts.interior_tokens(len(part.token_ids))

    def _part(self, part: PromptPart, start: int, is_held: bool | None) -> ExplainedPart:
        is_document = part.message_index == DOCUMENTS
        place = None
        if part.segment_id is not None and not is_document:
            place = (part.message_index, part.content_index)
        return ExplainedPart(
            role=part.role.value,
            segment_id=part.segment_id,
            part=place,
            document=part.content_index if part.segment_id and is_document else None,
            start=start,
            tokens=len(part.token_ids),
            expected="live" if is_held is None else "hit" if is_held else "cold",
            reused_tokens=0 if is_held is None else self._interior(part) or 0,
        )

    def _segment_warnings(
        self, rendered: RenderedPrompt, prompt: SegmentedPrompt
    ) -> Iterator[ExplainWarning]:
        for part in prompt.parts:
            if part.role is Role.INNER and self._interior(part) is None:
                yield ExplainWarning(
                    code="below_min_tokens",
                    message=f"{len(part.token_ids)} tokens are too few to be kept: join it with "
                    f"a neighbour (at least {self._facts.reuse.min_segment_tokens})",
                    segment_id=part.segment_id,
                )
            if part.role is Role.TRAILING and part.segment_id is not None:
                yield ExplainWarning(
                    code="segment_last",
                    message="nothing stands after this segment, so it is computed in place: "
                    "put the question behind it",
                    segment_id=part.segment_id,
                )
        for piece in rendered.pieces:
            if isinstance(piece, CallerText) and piece.segment_id is not None:
                yield from self._text_warnings(piece)

    def _text_warnings(self, piece: CallerText) -> Iterator[ExplainWarning]:
        if _RUNNING_NUMBER.match(piece.text):
            yield ExplainWarning(
                code="running_number",
                message="the text begins with a running number, which makes it another segment "
                "at another place: put the number before the segment",
                segment_id=piece.segment_id,
            )
        assert piece.segment_id is not None, "only segments have such warnings"
        if self._is_registered(piece.segment_id):
            return
        for other in respellings(piece.text):
            if self._is_registered(segment_id(other)):
                yield ExplainWarning(
                    code="whitespace_differs",
                    message=f"{segment_id(other)} is registered and differs in white space only",
                    segment_id=piece.segment_id,
                )
                return

    def _prompt_warnings(
        self, rendered: RenderedPrompt, prompt: SegmentedPrompt
    ) -> Iterator[ExplainWarning]:
        if rendered.degraded == "auto_segment_capped":
            yield ExplainWarning(
                code="auto_segment_capped",
                message="a text is too long to look for registered segments in it: write the "
                "segments as parts of their own",
            )
        if not any(part.segment_id for part in prompt.parts):
            yield ExplainWarning(code="no_segments", message="no part of the prompt is a segment")
        for border in odd_borders(rendered, self._tokenizer):
            text = border.text
            where = f"message {text.message_index}, part {text.content_index}"
            if text.message_index == DOCUMENTS:
                where = f"document {text.content_index}"
            what = (
                "a word is cut in two before it"
                if border.within_word
                else ("it has white space at its edge")
            )
            yield ExplainWarning(
                code="tokens_differ_from_joint",
                message=f"{where}: {what}, which makes other tokens than the whole text has: "
                "let parts begin and end with whole words, without spaces around them",
                segment_id=text.segment_id,
            )
