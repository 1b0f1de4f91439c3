"""Pieces become parts: nothing is lost, moved or joined, whatever the texts are."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import EmptyPrompt
from hypic_sdk.prompt.pieces import CallerText, Piece, RenderedPrompt, TemplateText, TextBorder
from hypic_sdk.prompt.segment import BorderKind, Role, SegmentedPrompt
from hypic_sdk.prompt.segmenter import parts_prompt, segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from tests.prompt import tiny
from tests.prompt.conversations import few, message, numbered, plain_words, text, turns

WITH_BOS = PromptTokenizer(tiny.bos_by_processor(), {})
TOKENIZERS = {"plain": tiny.tokenizer(), "with_bos": WITH_BOS}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)

template_pieces = st.sampled_from(
    ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n", "x", "\n", "<|begin|>"]
).map(TemplateText)
caller_pieces = st.builds(text, tiny.texts, segment=st.booleans())
prompts = st.lists(template_pieces | caller_pieces, max_size=8).map(
    lambda pieces: RenderedPrompt(tuple(pieces))
)


def piece_tokens(piece: Piece, tokenizer: PromptTokenizer) -> tuple[int, ...]:
    if isinstance(piece, TemplateText):
        return tokenizer.encode_template(piece.text).token_ids
    return tokenizer.encode_text(piece.text)


def segments(rendered: RenderedPrompt) -> list[CallerText]:
    return [
        piece
        for piece in rendered.pieces
        if isinstance(piece, CallerText) and piece.segment_id and piece.text
    ]


def segmented(rendered: RenderedPrompt, tokenizer: PromptTokenizer) -> SegmentedPrompt | None:
    """The prompt, or none where there is nothing to segment."""
    if any(piece.text for piece in rendered.pieces):
        return segment_prompt(rendered, tokenizer)
    with pytest.raises(EmptyPrompt):
        segment_prompt(rendered, tokenizer)
    return None


@every_tokenizer
@given(rendered=prompts)
def test_the_token_list_is_the_concatenation_of_the_pieces(tokenizer, rendered):
    prompt = segmented(rendered, tokenizer)
    if prompt is None:
        return
    tokens = tuple(id_ for piece in rendered.pieces for id_ in piece_tokens(piece, tokenizer))
    begin = tokenizer.bos_token_id
    if begin is not None and tokens[0] != begin:
        tokens = (begin, *tokens)
    assert prompt.token_ids == tokens


@every_tokenizer
@given(rendered=prompts)
def test_each_segment_is_one_part_in_its_place(tokenizer, rendered):
    prompt = segmented(rendered, tokenizer)
    if prompt is None:
        return
    parts = [part for part in prompt.parts if part.segment_id is not None]
    assert [part.segment_id for part in parts] == [one.segment_id for one in segments(rendered)]
    for part, one in zip(parts, segments(rendered), strict=True):
        assert tokenizer.decode(part.token_ids) == one.text


@every_tokenizer
@given(rendered=prompts)
def test_roles(tokenizer, rendered):
    prompt = segmented(rendered, tokenizer)
    if prompt is None:
        return
    roles = [part.role for part in prompt.parts]
    assert roles.count(Role.TRAILING) == 1
    assert roles[-1] is Role.TRAILING
    assert Role.LEADING not in roles[1:]
    for earlier, later in zip(prompt.parts, prompt.parts[1:], strict=False):
        # live parts never touch: they would be one
        assert earlier.segment_id is not None or later.segment_id is not None
    for part in prompt.parts[:-1]:
        assert (part.role is Role.INNER) == (part.segment_id is not None)
    last = [piece for piece in rendered.pieces if piece.text][-1]
    stands_last = isinstance(last, CallerText) and last.segment_id is not None
    assert (prompt.parts[-1].segment_id is not None) == stands_last


@every_tokenizer
@given(rendered=prompts)
def test_the_beginning_of_text_is_first_and_nowhere_else_by_callers(tokenizer, rendered):
    prompt = segmented(rendered, tokenizer)
    if prompt is None or tokenizer.bos_token_id is None:
        return
    assert prompt.token_ids[0] == tokenizer.bos_token_id
    written = sum(
        piece.text.count("<|begin|>")
        for piece in rendered.pieces
        if isinstance(piece, TemplateText)
    )
    assert prompt.token_ids.count(tokenizer.bos_token_id) <= written + 1
    for part in prompt.parts:
        if part.segment_id is not None:
            assert tokenizer.bos_token_id not in part.token_ids


@given(rendered=prompts)
def test_no_text_makes_a_boundary_or_a_control_token(rendered):
    """Parts and control tokens are as many as with harmless texts in the same places."""
    tokenizer = tiny.tokenizer()
    prompt = segmented(rendered, tokenizer)
    if prompt is None:
        return

    def harmless(piece: Piece) -> Piece:
        if isinstance(piece, TemplateText) or not piece.text:
            return piece
        return CallerText("town", piece.segment_id)

    plain = segment_prompt(RenderedPrompt(tuple(map(harmless, rendered.pieces))), tokenizer)
    assert [part.role for part in prompt.parts] == [part.role for part in plain.parts]

    def controls(ids: Sequence[int]) -> list[int]:
        return [id_ for id_ in ids if id_ in tokenizer.control_ids]

    assert controls(prompt.token_ids) == controls(plain.token_ids)


@pytest.mark.parametrize("name", tiny.TEMPLATES)
@few
@given(messages=turns())
def test_the_whole_way_from_messages(name, messages):
    """Segments of system, user and tool messages come out byte for byte, in order."""
    tokenizer = tiny.tokenizer()
    rendered = tiny.chat_template(tiny.TEMPLATES[name]).render(messages)
    prompt = segment_prompt(rendered, tokenizer)
    told = [part for one in messages for part in one.content if part.segment_id]
    inner = [part for part in prompt.parts if part.segment_id]
    assert [part.segment_id for part in inner] == [part.segment_id for part in told]
    assert [tokenizer.decode(part.token_ids) for part in inner] == [part.text for part in told]
    assert [(part.message_index, part.content_index) for part in inner] == [
        (part.message_index, part.content_index) for part in told
    ]
    assert prompt.parts[-1].segment_id is None


def test_a_segment_that_stands_last_is_the_trailing_part():
    prompt = segment_prompt(parts_prompt([text("Read: "), text("A", segment=True)]), WITH_BOS)
    assert [part.role for part in prompt.parts] == [Role.LEADING, Role.TRAILING]
    assert prompt.parts[-1].segment_id == text("A", segment=True).segment_id


def test_a_prompt_of_one_segment_is_all_trailing():
    prompt = segment_prompt(parts_prompt([text("A town", segment=True)]), tiny.tokenizer())
    [only] = prompt.parts
    assert only.role is Role.TRAILING
    assert only.segment_id is not None


def test_a_segment_at_the_start_follows_the_beginning_of_text_alone():
    prompt = segment_prompt(parts_prompt([text("A town", segment=True), text("?")]), WITH_BOS)
    assert [part.role for part in prompt.parts] == [Role.LEADING, Role.INNER, Role.TRAILING]
    assert prompt.parts[0].token_ids == (WITH_BOS.bos_token_id,)


def test_without_one_the_segment_is_the_first_part():
    prompt = segment_prompt(
        parts_prompt([text("A town", segment=True), text("?")]), tiny.tokenizer()
    )
    assert [part.role for part in prompt.parts] == [Role.INNER, Role.TRAILING]
    assert prompt.starts[0] == 0
    assert prompt.borders == ()


def test_segments_may_touch_and_stand_twice():
    one, other = text("A town", segment=True), text("A river", segment=True)
    prompt = segment_prompt(parts_prompt([one, one, other, one, text("?")]), tiny.tokenizer())
    assert [part.role for part in prompt.parts] == [Role.INNER] * 4 + [Role.TRAILING]
    assert prompt.parts[0].token_ids == prompt.parts[1].token_ids == prompt.parts[3].token_ids


def test_a_prompt_without_segments_is_one_trailing_part():
    rendered = RenderedPrompt((TemplateText("<|im_start|>user\n"), text("Q"), TemplateText("\n")))
    [only] = segment_prompt(rendered, WITH_BOS).parts
    assert only.role is Role.TRAILING
    assert only.token_ids[0] == WITH_BOS.bos_token_id


@pytest.mark.parametrize("pieces", [(), (CallerText(""),), (text("", segment=True),)])
@every_tokenizer
def test_nothing_to_answer_is_an_error(pieces, tokenizer):
    with pytest.raises(EmptyPrompt):
        segment_prompt(RenderedPrompt(pieces), tokenizer)


def test_known_token_ids_are_used_as_they_are():
    ids = (5, 6, 7)
    known = CallerText("a", text("a", segment=True).segment_id, token_ids=ids)
    prompt = segment_prompt(RenderedPrompt((known, CallerText("b", token_ids=(8,)))), WITH_BOS)
    assert [part.token_ids for part in prompt.parts[1:]] == [ids, (8,)]


class TestBorders:
    def test_of_a_chat_with_documents(self):
        tokenizer = tiny.tokenizer()
        messages = numbered([
            message("system", "Be brief."),
            message("user", text("The town.", segment=True), "\n\n", "Where?"),
        ])  # fmt: skip
        prompt = segment_prompt(tiny.chat_template(tiny.CHATML).render(messages), tokenizer)

        def size(*stretches: str) -> int:
            return sum(len(tokenizer.encode_template(one).token_ids) for one in stretches)

        system = size("<|im_start|>system\n", "Be brief.", "<|im_end|>\n")
        leading = system + size("<|im_start|>user\n")
        question = leading + size("The town.", "\n\n", "Where?", "<|im_end|>\n")
        assert [(border.position, border.kind) for border in prompt.borders] == [
            (system, BorderKind.MESSAGE),
            (leading, BorderKind.LEADING),
            (question, BorderKind.PROMPT),
        ]
        assert prompt.num_tokens == question + size("<|im_start|>assistant\n")

    def test_a_border_within_a_token_moves_to_its_start(self):
        tokenizer = tiny.tokenizer()
        [token] = tokenizer.encode_template("<|im_end|>").token_ids
        rendered = RenderedPrompt(
            (text("Q"), TemplateText("\n<|im_end|>\n")), (TextBorder(1, 4, BorderKind.MESSAGE),)
        )
        prompt = segment_prompt(rendered, tokenizer)
        [border] = prompt.borders
        assert prompt.token_ids[border.position] == token

    def test_of_two_at_one_position_the_better_stays(self):
        rendered = RenderedPrompt(
            (TemplateText("a"), text("S", segment=True), TemplateText("b")),
            (TextBorder(1, 0, BorderKind.PROMPT), TextBorder(2, 0, BorderKind.MESSAGE),
             TextBorder(2, 0, BorderKind.PROMPT)),
        )  # fmt: skip
        prompt = segment_prompt(rendered, tiny.tokenizer())
        assert [border.kind for border in prompt.borders] == [BorderKind.LEADING, BorderKind.PROMPT]

    def test_neither_end_of_the_prompt_is_one(self):
        rendered = RenderedPrompt(
            (TemplateText("<|im_start|>a"),),
            (TextBorder(0, 0, BorderKind.MESSAGE), TextBorder(0, 2, BorderKind.MESSAGE),
             TextBorder(0, 13, BorderKind.PROMPT)),
        )  # fmt: skip
        assert segment_prompt(rendered, tiny.tokenizer()).borders == ()

    @pytest.mark.parametrize("name", tiny.TEMPLATES)
    @few
    @given(messages=turns(), reply=plain_words)
    def test_the_next_turn_finds_the_prompt_border_of_this_one(self, name, messages, reply):
        """Same tokens up to it, and a border there: so a chain entry is found again."""
        tokenizer = tiny.tokenizer()
        template = tiny.chat_template(tiny.TEMPLATES[name])
        now = segment_prompt(template.render(messages), tokenizer)
        later = [*messages, message("assistant", reply), message("user", "And then?")]
        then = segment_prompt(template.render(numbered(later)), tokenizer)
        [asked] = [border for border in now.borders if border.kind is BorderKind.PROMPT]
        if name == "reasoning" and messages[-1].role == "tool":
            return  # the reply before the tool's result loses its reasoning
        assert now.token_ids[: asked.position] == then.token_ids[: asked.position]
        assert asked.position in [border.position for border in then.borders]
