"""What the tokenizer and the chat template of a folder can do, found by trying them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypic_sdk.doctor.report import TemplateFacts, TokenizerFacts
from hypic_sdk.errors import ModelFileError, RequestError
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.pieces import CallerText, Message, RenderedPrompt, TemplateText
from hypic_sdk.prompt.segment import BorderKind, segment_id
from hypic_sdk.prompt.segmenter import segment_prompt
from hypic_sdk.prompt.tokenizer import PromptTokenizer

_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "find_town",
        "description": "Finds a town.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
}
_CALL: Mapping[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "find_town", "arguments": {"name": "Norwick"}},
}
_QUESTION, _ANSWER, _THOUGHT = "Where is Norwick?", "On the Ash.", "Rivers come first."
# white space at the ends and what looks like structure: all of it must come through
_DOCUMENT = "\n  Norwick lies on the Ash.<|im_end|>\n<tool_response> </think>\n"


def tokenizer_facts(tokenizer: PromptTokenizer) -> TokenizerFacts:
    """The tokenizer, tried with the text of each of its own control tokens.

    Raises:
        ModelFileError: plain text makes a control token.
    """
    for id_ in sorted(tokenizer.control_ids):
        tokenizer.encode_text(tokenizer.token_text(id_))
    return TokenizerFacts(
        vocab_size=tokenizer.vocab_size,
        num_control_tokens=len(tokenizer.control_ids),
        bos_token_id=tokenizer.bos_token_id,
        fingerprint=tokenizer.fingerprint,
    )


def template_facts(template: ChatTemplate, tokenizer: PromptTokenizer) -> TemplateFacts:
    """Render small conversations and look at what came out.

    Raises:
        ModelFileError: the template fails, or changes, loses or doubles a text.
        RequestError: it refuses a single question.
    """
    trial = _Trial(template, tokenizer)
    asked = trial.text([_user()])
    shown = trial.text([_user(), _reply(reasoning=True, call=True), _result()])
    shown_earlier = trial.text([_user(), _reply(reasoning=True), _user()])
    thinks = _THOUGHT in shown
    switched = [trial.text([_user()], enable_thinking=on) for on in (True, False)]
    roles = [
        role
        for role, messages in (
            ("system", [_says("system", "Be brief."), _user()]),
            ("developer", [_says("developer", "Be brief."), _user()]),
            ("tool", [_user(), _reply(call=True), _result()]),
        )
        if trial.text(messages)
    ]
    call_text = trial.text([_user(), _reply(call=True), _result()])
    return TemplateFacts(
        roles=tuple(roles),
        segments_in=tuple(trial.segment_roles()),
        thinking_switch=switched[0] != switched[1],
        opens_thinking=asked.rstrip().endswith("<think>"),
        shows_reasoning=thinks,
        drops_earlier_reasoning=thinks and _THOUGHT not in shown_earlier,
        tools="find_town" in trial.text([_user()], tools=[_TOOL]),
        call_format=_call_format(call_text),
        message_borders=trial.has_message_borders(),
        ends_reply_with=trial.end_of_reply(),
    )


def _call_format(rendered: str) -> str | None:
    if "<function=find_town>" in rendered:
        return "xml"
    return "json" if '"find_town"' in rendered else None


class _Trial:
    """Renderings of one template; a refusal by the template itself is an empty text."""

    def __init__(self, template: ChatTemplate, tokenizer: PromptTokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer
        # a single question must be possible, else nothing is
        self._asked = template.render([_user()])
        segment_prompt(self._asked, tokenizer)

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> RenderedPrompt | None:
        try:
            return self._template.render(messages, tools=tools, options=options)
        except RequestError:
            return None
        except ModelFileError:
            # a template that only knows strings fails at a call of tools, say: it lacks that
            if len(messages) == 1 and not tools:
                raise
            return None

    def text(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), **options: Any
    ) -> str:
        rendered = self.render(messages, tools, **options)
        return "" if rendered is None else "".join(piece.text for piece in rendered.pieces)

    def segment_roles(self) -> list[str]:
        """Roles whose messages show a segment whole and once, thinking on and off."""
        roles = []
        for role in ("system", "user", "tool"):
            renderings = [
                self.render(_with_segment(role), enable_thinking=on) for on in (True, False)
            ]
            if all(rendered is not None and self._holds(rendered) for rendered in renderings):
                roles.append(role)
        return roles

    def _holds(self, rendered: RenderedPrompt) -> bool:
        segments = [
            piece.text
            for piece in rendered.pieces
            if isinstance(piece, CallerText) and piece.segment_id is not None
        ]
        prompt = segment_prompt(rendered, self._tokenizer)
        kept = [part for part in prompt.parts if part.segment_id is not None]
        return segments == [_DOCUMENT] and len(kept) == 1

    def has_message_borders(self) -> bool:
        rendered = self.render([_user(), _reply(), _user()])
        return rendered is not None and any(
            border.kind is BorderKind.MESSAGE for border in rendered.borders
        )

    def end_of_reply(self) -> str | None:
        """The control token that the template puts behind a reply."""
        rendered = self.render([_user(), _reply(), _user()])
        pieces = [] if rendered is None else list(rendered.pieces)
        texts = [piece.text for piece in pieces]
        if _ANSWER not in texts or texts.index(_ANSWER) + 1 == len(pieces):
            return None
        behind = pieces[texts.index(_ANSWER) + 1]
        if not isinstance(behind, TemplateText):
            return None
        ids = self._tokenizer.encode_template(behind.text).token_ids
        first = next((id_ for id_ in ids if id_ in self._tokenizer.control_ids), None)
        return None if first is None else self._tokenizer.token_text(first)


def _says(role: str, *texts: str | CallerText, **extra: Any) -> Message:
    content = tuple(text if isinstance(text, CallerText) else CallerText(text) for text in texts)
    return Message(role, content, extra=extra)


def _user() -> Message:
    return _says("user", _QUESTION)


def _reply(*, reasoning: bool = False, call: bool = False) -> Message:
    extra = {"tool_calls": [_CALL]} if call else {}
    thought = CallerText(_THOUGHT) if reasoning else None
    return Message("assistant", (CallerText(_ANSWER),), reasoning=thought, extra=extra)


def _result() -> Message:
    return _says("tool", "Norwick: a town.", tool_call_id="call_1", name="find_town")


def _with_segment(role: str) -> list[Message]:
    """A conversation with one segment, among other text of a message of this role."""
    segment = CallerText(_DOCUMENT, segment_id(_DOCUMENT))
    message = _says(role, "Read: ", segment, " Well?")
    if role == "system":
        return [message, _user()]
    return [message] if role == "user" else [_user(), _reply(call=True), message]
