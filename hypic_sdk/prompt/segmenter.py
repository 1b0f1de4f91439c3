"""Pieces to a `SegmentedPrompt`: tokens piece by piece, parts, borders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypic_sdk.errors import EmptyPrompt
from hypic_sdk.prompt.pieces import CallerText, Piece, RenderedPrompt, TemplateText, TextBorder
from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
)
from hypic_sdk.prompt.tokenizer import PromptTokenizer

# of two borders at one position, the one whose chain is worth more
_RANK = {BorderKind.MESSAGE: 0, BorderKind.PROMPT: 1, BorderKind.LEADING: 2}


@dataclass(frozen=True, slots=True)
class _TokenPiece:
    """A piece's tokens, and where each ends in its text (of template text only)."""

    piece: Piece
    token_ids: tuple[int, ...]
    ends: tuple[int, ...] = ()

    @property
    def segment(self) -> CallerText | None:
        is_segment = isinstance(self.piece, CallerText) and self.piece.segment_id is not None
        return self.piece if is_segment and isinstance(self.piece, CallerText) else None


def segment_prompt(rendered: RenderedPrompt, tokenizer: PromptTokenizer) -> SegmentedPrompt:
    """Cut a prompt into its leading part, segments with glue between them, and its trailing part.

    A segment that stands last is the trailing part.  A prompt without segments is one trailing
    part.  Where the model has a beginning-of-text token, it is the first token of the prompt.

    Raises:
        EmptyPrompt: nothing but a beginning-of-text token.
        PromptTooLong: more text than the context can hold.
    """
    texts = [piece for piece in rendered.pieces if isinstance(piece, CallerText)]
    tokenizer.check_length(sum(len(text.text) for text in texts if text.token_ids is None))
    pieces = [_tokenize(piece, tokenizer) for piece in rendered.pieces]
    if not any(piece.token_ids for piece in pieces):
        raise EmptyPrompt("the prompt has no text")
    head = _leading_tokens(pieces, tokenizer)
    parts = tuple(_parts(head, pieces))
    borders = dict(_message_borders(len(head), pieces, rendered.borders))
    if parts[0].role is Role.LEADING:
        borders[len(parts[0].token_ids)] = BorderKind.LEADING
    num_tokens = sum(len(part.token_ids) for part in parts)
    return SegmentedPrompt(
        parts,
        tuple(
            Border(position, kind)
            for position, kind in sorted(borders.items())
            if 0 < position < num_tokens
        ),
    )


def _tokenize(piece: Piece, tokenizer: PromptTokenizer) -> _TokenPiece:
    if isinstance(piece, TemplateText):
        tokens = tokenizer.encode_template(piece.text)
        return _TokenPiece(piece, tokens.token_ids, tokens.ends)
    ids = tokenizer.encode_text(piece.text) if piece.token_ids is None else piece.token_ids
    return _TokenPiece(piece, ids)


def _leading_tokens(pieces: Sequence[_TokenPiece], tokenizer: PromptTokenizer) -> tuple[int, ...]:
    """The beginning-of-text token, unless the template has written it."""
    bos = tokenizer.bos_token_id
    first = next(piece for piece in pieces if piece.token_ids)
    if bos is None or first.token_ids[0] == bos:
        return ()
    return (bos,)


def _parts(head: tuple[int, ...], pieces: Sequence[_TokenPiece]) -> Iterable[PromptPart]:
    """The parts in order; none is empty, the last is trailing."""
    pieces = [piece for piece in pieces if piece.token_ids]
    live = list(head)
    role = Role.LEADING
    for number, piece in enumerate(pieces):
        segment = piece.segment
        if segment is None:
            live.extend(piece.token_ids)
            continue
        if live:
            yield PromptPart(role, tuple(live))
        live, role = [], Role.GLUE
        is_last = number == len(pieces) - 1
        yield PromptPart(
            Role.TRAILING if is_last else Role.INNER,
            piece.token_ids,
            segment.segment_id,
            segment.message_index,
            segment.content_index,
        )
    if live:
        yield PromptPart(Role.TRAILING, tuple(live))


def _message_borders(
    start: int, pieces: Sequence[_TokenPiece], borders: Sequence[TextBorder]
) -> Iterable[tuple[int, BorderKind]]:
    """Text borders as token positions; of two at one position, only the better."""
    starts = [start]
    for piece in pieces:
        starts.append(starts[-1] + len(piece.token_ids))
    best: dict[int, BorderKind] = {}
    for border in borders:
        # a border within a token moves to that token's start: a shorter prefix is as good
        before = sum(1 for end in pieces[border.piece_index].ends if end <= border.offset)
        position = starts[border.piece_index] + (before if border.offset else 0)
        best[position] = max(best.get(position, border.kind), border.kind, key=_rank)
    return best.items()


def _rank(kind: BorderKind) -> int:
    return _RANK[kind]


def parts_prompt(texts: Sequence[CallerText]) -> RenderedPrompt:
    """A prompt without a template: the caller's texts as they are."""
    return RenderedPrompt(tuple(text for text in texts if text.text))
