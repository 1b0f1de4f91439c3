"""Messages to pieces: a chat template runs over placeholders, never over callers' texts."""

from __future__ import annotations

import bisect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from hypic_sdk.errors import ModelFileError, RequestError
from hypic_sdk.prompt.pieces import CallerText, Message, RenderedPrompt, TextBorder
from hypic_sdk.prompt.placeholders import Placeholders, private_use
from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.prompt.template_environment import (
    JSON_FORMS,
    MESSAGE_MARK,
    TemplateRefusal,
    TooMuchWork,
    bounded_work,
    compile_marked,
    compile_template,
    make_environment,
)
from hypic_sdk.prompt.tokenizer import CONFIG_FILE, PromptTokenizer, read_json

if TYPE_CHECKING:
    import jinja2

TEMPLATE_FILE = "chat_template.jinja"
_MAX_DEPTH = 64
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", JSON_FORMS})


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """How much a rendering may write, how many steps it may take, and how long.

    A step is a turn of a loop, a call of a macro or an item of a map; time is looked at with each.
    """

    output_chars: int = 16 << 20
    steps: int = 2 << 20
    time_s: float = 10.0


_TRIAL_STEPS, _TRIAL_TIME_S = 1 << 16, 2.0
"""For one short question, when a template is opened."""


@final
class ChatTemplate:
    """Renders messages to a prompt's pieces (design 3.1).

    Every text of the caller goes through the template as a placeholder, so a template can neither
    read nor change it: trimming, slicing and searching act on the placeholder.  Strings that must
    be real (tool schemas, arguments of tool calls, names) are rendered as they are, unless they
    could make an added token: such a string becomes a placeholder too.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        makes_added_token: Callable[[str], bool],
        limits: TemplateLimits = TemplateLimits(),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile a template.

        Args:
            special_tokens: what the template reads as `bos_token` and the like.
            makes_added_token: whether a string set raw into the template could make an added token.
        Raises:
            ModelFileError: a syntax error, with its line.
        """
        self.source = source
        environment = make_environment(now)
        self._template = compile_template(environment, source)
        self._marked = compile_marked(environment, source)
        self._special_tokens = dict(special_tokens)
        self._makes_added_token = makes_added_token
        self._limits = limits
        self._own_private_use = private_use(source) | {MESSAGE_MARK}
        # templates that look for a reply's reasoning in its text can not find it in a placeholder
        self._splits_reasoning = "</think>" in source
        self._takes_parts = not self._shows_content() and self._shows_content(as_parts=True)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: PromptTokenizer) -> ChatTemplate | None:
        """The template of a model folder; None when it has none.

        Raises:
            ModelFileError: a file that can not be read, or a template with a syntax error.
        """
        source = _template_source(folder)
        if source is None:
            return None
        return cls(
            source,
            special_tokens=tokenizer.special_tokens,
            makes_added_token=tokenizer.touches_added_token,
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """The pieces of the prompt that asks for the next reply, and where its messages end.

        Args:
            tools: tool schemas, JSON values.
            options: further variables of the template (`enable_thinking`, ...), JSON values.
        Raises:
            RequestError: the template refuses these messages, or does not show one's text.
            ModelFileError: the template fails, shows a text twice, or writes without end.
        """
        options = dict(options or {})
        self._check_options(options)
        real = [list(tools), options, [dict(message.extra) for message in messages]]
        taken = private_use(json.dumps(real, ensure_ascii=False))
        placeholders = Placeholders(taken | self._own_private_use)
        variables = {
            **self._special_tokens,
            **self._neutral(options, placeholders, "template option"),
            "messages": [
                self._message_values(number, message, placeholders)
                for number, message in enumerate(messages)
            ],
            "tools": self._neutral(list(tools), placeholders, "tools") or None,
            "documents": None,
            JSON_FORMS: placeholders.json_forms,
        }
        rendered = self._run(self._template, variables, asks=True)
        pieces, starts = placeholders.cut(rendered)
        borders = self._borders(rendered, variables)
        return RenderedPrompt(pieces, tuple(_text_borders(borders, starts, len(rendered))))

    def _shows_content(self, *, as_parts: bool = False) -> bool:
        """Whether a question's text is shown when it is given as a string, or as a list of parts.

        Templates that know messages as lists of parts alone show nothing of a string.
        """
        placeholders = Placeholders(self._own_private_use)
        stand_in = placeholders.add(CallerText("?"), required=False, where="a trial")
        message = {"role": "user", "content": _parts([stand_in]) if as_parts else stand_in}
        variables = {
            **self._special_tokens,
            "messages": [message],
            "tools": None,
            "documents": None,
            JSON_FORMS: placeholders.json_forms,
        }
        limits = replace(
            self._limits,
            steps=min(self._limits.steps, _TRIAL_STEPS),
            time_s=min(self._limits.time_s, _TRIAL_TIME_S),
        )
        try:
            return stand_in in self._run(self._template, variables, asks=True, limits=limits)
        except (RequestError, ModelFileError) as error:
            if isinstance(error.__cause__, TooMuchWork):
                raise
            # it may want more than a question; a real prompt will tell
            return False

    def _check_options(self, options: Mapping[str, Any]) -> None:
        reserved = _RESERVED | self._special_tokens.keys()
        wrong = sorted(name for name in options if name in reserved or name.startswith("_"))
        if wrong:
            raise RequestError(f"these template options are not free to set: {', '.join(wrong)}")

    def _message_values(
        self, number: int, message: Message, placeholders: Placeholders
    ) -> dict[str, Any]:
        """A message as the template sees it."""
        where = f"message {number} ({message.role})"
        if self._splits_reasoning:
            message = _split_reasoning(message)
        # some templates show a call of tools instead of the text beside it
        may_drop = message.role == "assistant" and bool(message.extra.get("tool_calls"))
        stand_ins = [
            placeholders.add(
                text, required=text.segment_id is not None or not may_drop, where=where
            )
            for text in message.content
        ]
        values = {
            "role": message.role,
            "content": _parts(stand_ins) if self._takes_parts else "".join(stand_ins),
            **self._neutral(dict(message.extra), placeholders, where),
        }
        if message.reasoning is not None:
            values["reasoning_content"] = placeholders.add(
                message.reasoning, required=False, where=where
            )
        return values

    def _neutral(self, value: Any, placeholders: Placeholders, where: str, depth: int = 0) -> Any:
        """JSON values with each string that could make an added token behind a placeholder."""
        if depth > _MAX_DEPTH:
            raise RequestError(f"{where}: nested deeper than {_MAX_DEPTH} levels")
        if isinstance(value, str):
            if not self._makes_added_token(value):
                return value
            return placeholders.add(CallerText(value), required=False, where=where)
        if isinstance(value, Mapping):
            return {
                self._neutral(str(name), placeholders, where, depth + 1): self._neutral(
                    inner, placeholders, where, depth + 1
                )
                for name, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._neutral(inner, placeholders, where, depth + 1) for inner in value]
        return value

    def _borders(self, rendered: str, variables: Mapping[str, Any]) -> dict[int, BorderKind]:
        """Offsets in the rendered text at which a message ends.

        Found in two more renderings: one that writes a mark between messages, one without the
        generation prompt.  Both are believed only where they agree with the real one.
        """
        borders: dict[int, BorderKind] = {}
        if self._marked is not None:
            marked = self._try_run(self._marked, variables, asks=True)
            if marked is not None and marked.replace(MESSAGE_MARK, "") == rendered:
                offset = 0
                for stretch in marked.split(MESSAGE_MARK)[:-1]:
                    offset += len(stretch)
                    borders[offset] = BorderKind.MESSAGE
        without = self._try_run(self._template, variables, asks=False)
        if without is not None and rendered.startswith(without):
            borders[len(without)] = BorderKind.PROMPT
        return borders

    def _try_run(
        self,
        template: jinja2.Template,
        variables: Mapping[str, Any],
        *,
        asks: bool,
    ) -> str | None:
        try:
            return self._run(template, variables, asks=asks)
        except (RequestError, ModelFileError):
            # borders are a help, not a part of the prompt
            return None

    def _run(
        self,
        template: jinja2.Template,
        variables: Mapping[str, Any],
        *,
        asks: bool,
        limits: TemplateLimits | None = None,
    ) -> str:
        limits = limits or self._limits
        chunks: list[str] = []
        num_chars, deadline_s = 0, time.monotonic() + limits.time_s
        try:
            with bounded_work(limits.steps, deadline_s):
                for chunk in template.generate(**variables, add_generation_prompt=asks):
                    chunks.append(chunk)
                    num_chars += len(chunk)
                    if num_chars > limits.output_chars or time.monotonic() > deadline_s:
                        raise TooMuchWork("it writes without end")
        except TemplateRefusal as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error
        except TooMuchWork as error:
            raise ModelFileError(
                f"the chat template wrote {num_chars} characters and did not end ({error})",
                limit_chars=limits.output_chars,
                limit_steps=limits.steps,
                limit_s=limits.time_s,
            ) from error
        except Exception as error:
            # a template is a program: whatever it raises is its own fault, or that of its data
            raise ModelFileError(f"the chat template failed: {error}") from error
        return "".join(chunks)


def _parts(stand_ins: Sequence[str]) -> list[dict[str, str]]:
    """A message's content as a list of its texts."""
    return [{"type": "text", "text": stand_in} for stand_in in stand_ins if stand_in]


def _template_source(folder: Path) -> str | None:
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"can not read {path}: {error}") from error
    for name in ("chat_template.json", CONFIG_FILE):
        if not (folder / name).is_file():
            continue
        found = read_json(folder / name).get("chat_template")
        if isinstance(found, list):
            found = _named_template(found, folder / name)
        if found is not None and not isinstance(found, str):
            raise ModelFileError(
                f"{folder / name}: chat_template must be a text or a list of named ones, "
                f"got {type(found).__name__}"
            )
        if found is not None:
            return found
    return None


def _named_template(entries: Sequence[Any], path: Path) -> Any:
    """The template called `default` in a list of named ones, or the only one."""
    if not all(isinstance(entry, dict) for entry in entries):
        raise ModelFileError(f"{path}: chat_template is a list, but not of named templates")
    named = {str(entry.get("name")): entry.get("template") for entry in entries}
    return next(iter(named.values())) if len(named) == 1 else named.get("default")


def _split_reasoning(message: Message) -> Message:
    """A reply whose text holds its reasoning, as reasoning and text; others as they are.

    Templates that know `</think>` split such a text themselves; they can not, behind a placeholder.
    """
    plain = len(message.content) == 1 and message.content[0].segment_id is None
    if message.role != "assistant" or message.reasoning is not None or not plain:
        return message
    reply = message.content[0]
    before, tag, after = reply.text.rpartition("</think>")
    if not tag:
        return message
    reasoning = before.split("</think>")[0].rstrip("\n").rpartition("<think>")[2].lstrip("\n")
    return replace(
        message,
        content=(replace(reply, text=after.lstrip("\n"), token_ids=None),),
        reasoning=replace(reply, text=reasoning, token_ids=None),
    )


def _text_borders(
    borders: Mapping[int, BorderKind], starts: Sequence[int], num_chars: int
) -> list[TextBorder]:
    """Offsets in the rendered text as places in its pieces; the two ends are no borders."""
    found = []
    for offset, kind in sorted(borders.items()):
        if 0 < offset < num_chars:
            piece = bisect.bisect_right(starts, offset) - 1
            found.append(TextBorder(piece, offset - starts[piece], kind))
    return found
