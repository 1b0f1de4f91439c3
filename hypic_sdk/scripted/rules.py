"""The table: what is said when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from hypic_sdk.errors import ConfigError


# these are read from a file that people write: a misspelt name must not be a default
class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool."""

    name: str
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said: reasoning, text, calls; or `raw`, the reply as a model would write it.

    In texts `{user}` and `{tool_result}` stand for the last message of that kind, `{1}` for the
    first group of the rule's expression.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[Call, ...] = ()
    raw: str | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds where all that it names holds; the first rule that holds answers.

    `user`, `tool_result`, `system`: stand in the last message of that kind.  `user_regex`,
    `tool_result_regex`: are found there.  `after`: whose message is the last one.  Of several
    answers the n-th reply to one request gets the n-th.
    """

    reply: Answer | tuple[Answer, ...]
    user: str | None = None
    user_regex: str | None = None
    tool_result: str | None = None
    tool_result_regex: str | None = None
    system: str | None = None
    after: Literal["user", "tool"] | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules in order.  Where none holds, what is built in answers, then `default`.

    `built_in`: call a tool that the user names or speaks of, and say what a tool has answered.
    `token_ms`: time from one token of a request to the next.
    """

    rules: tuple[Rule, ...] = ()
    default: Answer = Answer(content="This reply was written by a script.")
    built_in: bool = True
    token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What a request shows: the last text of each kind, and whose came last."""

    system: str
    user: str
    tool_result: str
    last: str


def read_script(path: Path) -> Script:
    """The script of a JSON file.

    Raises:
        ConfigError: it can not be read, has a name or a value that there is not, or an expression
            that is none.
    """
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
        for rule in script.rules:
            for expression in (rule.user_regex, rule.tool_result_regex):
                re.compile(expression or "")
    except (OSError, msgspec.MsgspecError, re.error, UnicodeDecodeError) as error:
        raise ConfigError(f"can not use the script {path}: {error}") from error
    return script


def find_answer(script: Script, scene: Scene, reply_index: int) -> Answer | None:
    """What the first rule that holds says, with its texts filled in; none if none holds."""
    for rule in script.rules:
        groups = _holds(rule, scene)
        if groups is not None:
            answers = (rule.reply,) if isinstance(rule.reply, Answer) else rule.reply
            if answers:
                return filled(answers[reply_index % len(answers)], scene, groups)
    return None


def _holds(rule: Rule, scene: Scene) -> tuple[str, ...] | None:
    """The groups of the rule's expressions where it holds, none where it does not."""
    inside = ((rule.user, scene.user), (rule.tool_result, scene.tool_result),
              (rule.system, scene.system))  # fmt: skip
    if any(wanted is not None and wanted not in text for wanted, text in inside):
        return None
    if rule.after not in (None, scene.last):
        return None
    groups: list[str] = []
    for expression, text in (
        (rule.user_regex, scene.user),
        (rule.tool_result_regex, scene.tool_result),
    ):
        if expression is None:
            continue
        found = re.search(expression, text)
        if found is None:
            return None
        groups += [group or "" for group in found.groups()]
    return tuple(groups)


def filled(answer: Answer, scene: Scene, groups: tuple[str, ...] = ()) -> Answer:
    """The answer with what its braces stand for."""
    values = {"user": scene.user, "tool_result": scene.tool_result}
    values |= {str(number): group for number, group in enumerate(groups, 1)}

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), value)
        if isinstance(value, dict):
            return {key: put(inner) for key, inner in value.items()}
        return [put(inner) for inner in value] if isinstance(value, list) else value

    return Answer(
        content=put(answer.content),
        reasoning=put(answer.reasoning),
        tool_calls=tuple(Call(put(call.name), put(call.arguments)) for call in answer.tool_calls),
        raw=put(answer.raw),
    )
