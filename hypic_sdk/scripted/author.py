"""From a prompt to the token ids of its reply: rules first, then what is built in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from hypic_sdk.prompt.reply_reader import CLOSE_THINKING, OPEN_THINKING
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.prompt.tool_calls import CLOSE, OPEN, ToolFormat, write_call
from hypic_sdk.scripted.grammars import GrammarDesk
from hypic_sdk.scripted.improvised import arguments_of, improvise
from hypic_sdk.scripted.instance import InstanceMaker
from hypic_sdk.scripted.rules import Answer, Call, Scene, Script, filled, find_answer
from hypic_sdk.scripted.turns import Turn, read_tools, read_turns
from hypic_sdk.transport.messages import EngineRequest, Grammar, GrammarKind, SamplingParams

_TAGS = (OPEN_THINKING, CLOSE_THINKING, OPEN, CLOSE)


@final
class Author:
    """Writes the replies of one script in one template's way."""

    def __init__(
        self,
        script: Script,
        tokenizer: PromptTokenizer,
        form: ToolFormat,
        grammars: GrammarDesk,
    ) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._form = form
        self._grammars = grammars

    def reply(self, message: EngineRequest, reply_index: int) -> tuple[int, ...]:
        """The ids of one reply, before any limit; raises InvalidGrammar."""
        turns = read_turns(message.prompt.token_ids, self._tokenizer)
        scene, tools = _scene(turns), read_tools(turns)
        opened = turns[-1].role == "assistant" and turns[-1].text.rstrip().endswith(OPEN_THINKING)
        answer = find_answer(self._script, scene, reply_index)
        if answer is None and self._script.built_in:
            answer = improvise(scene, tools)
        written = self._written(answer or filled(self._script.default, scene), opened=opened)
        grammar = message.sampling.grammar
        if grammar is None:
            return self._encoded(written)
        guesses = self._guesses(grammar, scene, tools)
        if opened:
            # the grammar holds behind the reasoning
            guesses = (f"\n{CLOSE_THINKING}\n\n{guess}" for guess in guesses)
        candidates = (self._encoded(text) for text in (written, *guesses))
        return self._grammars.reply(grammar, candidates)

    def _written(self, answer: Answer, *, opened: bool) -> str:
        """An answer as the model would write it.

        Args:
            opened: the prompt has begun the reasoning.
        """
        if answer.raw is not None:
            return answer.raw
        reasoning = ""
        if answer.reasoning or opened:
            begin = "" if opened else f"{OPEN_THINKING}\n"
            reasoning = f"{begin}{answer.reasoning}\n{CLOSE_THINKING}\n\n"
        calls = [write_call(self._form, call.name, call.arguments) for call in answer.tool_calls]
        between = "\n\n" if answer.content and calls else ""
        return reasoning + answer.content + between + "\n".join(calls)

    def _guesses(
        self, grammar: Grammar, scene: Scene, tools: Sequence[Mapping[str, Any]]
    ) -> Iterator[str]:
        """Texts that may fit the grammar, the likeliest first."""
        if grammar.kind is GrammarKind.JSON:
            yield json.dumps({"answer": scene.user}, ensure_ascii=False)
        elif grammar.kind is GrammarKind.JSON_SCHEMA:
            made = InstanceMaker(_schema(grammar.source), scene.user).make()
            yield json.dumps(made, ensure_ascii=False)
            yield json.dumps(made, ensure_ascii=False, separators=(",", ":"))
        elif grammar.kind is GrammarKind.LARK:
            for tool in sorted(tools, key=lambda tool: tool["name"] not in scene.user):
                call = Call(tool["name"], arguments_of(tool, scene.user))
                yield write_call(self._form, call.name, call.arguments)

    def _encoded(self, text: str) -> tuple[int, ...]:
        """A reply's ids: the tags as the tokens that the model would say, all else as text."""
        ids: list[int] = []
        for stretch, tag in _stretches(text):
            if stretch:
                ids += self._tokenizer.encode_text(stretch)
            if tag:
                ids += self._tokenizer.encode_template(tag).token_ids
        return tuple(ids)


def _stretches(text: str) -> Iterator[tuple[str, str]]:
    """Text, and the tag behind it."""
    while text:
        starts = [(place, tag) for tag in _TAGS if (place := text.find(tag)) >= 0]
        if not starts:
            yield text, ""
            return
        place, tag = min(starts)
        yield text[:place], tag
        text = text[place + len(tag) :]


def _scene(turns: Sequence[Turn]) -> Scene:
    def last(role: str) -> str:
        return next((turn.text for turn in reversed(turns) if turn.role == role), "")

    asked = [turn.role for turn in turns if turn.role in ("user", "tool")]
    return Scene(last("system"), last("user"), last("tool"), asked[-1] if asked else "user")


def _schema(source: str) -> Mapping[str, Any]:
    try:
        loaded = json.loads(source)
    except ValueError:
        return {}  # refused when it is compiled
    return loaded if isinstance(loaded, Mapping) else {}


def within_limits(
    token_ids: Sequence[int], sampling: SamplingParams, max_tokens: int
) -> tuple[tuple[int, ...], bool]:
    """The ids that are said, and whether they end by themselves.

    A reply that is too short for `min_tokens`, or may not end, is said over and over.
    """
    said = list(token_ids)
    least = max_tokens if sampling.ignore_eos else min(sampling.min_tokens, max_tokens)
    while len(said) < least:
        said += token_ids or (0,)
    if len(token_ids) < least:
        said = said[:least]
    for place, token_id in enumerate(said[:max_tokens]):
        if token_id in sampling.stop_token_ids and place >= sampling.min_tokens:
            return tuple(said[:place]), True
    ends = len(said) < max_tokens and not sampling.ignore_eos
    return tuple(said[:max_tokens]), ends
