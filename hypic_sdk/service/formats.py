"""What a reply is held to, as the engine's grammar: forms, calls that must be made, reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypic_sdk.errors import UnsupportedOption
from hypic_sdk.prompt.grammar import check_grammar, terse
from hypic_sdk.prompt.reply_reader import CLOSE_THINKING
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.prompt.tool_calls import CLOSE, OPEN, ToolFormat
from hypic_sdk.transport.messages import Grammar, GrammarKind
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.formats import StructuredOutputs, json_text
from hypic_sdk.wire.tools import NamedTool

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
_MAX_PARALLEL_CALLS = 16
_MAX_COUNTED_CHARS = 1024  # an expression that counts further takes too much memory
_ANY_TEXT = "/(?s:.*)/"


def reply_grammar(
    request: ChatRequest | CompletionRequest,
    tokenizer: PromptTokenizer,
    *,
    form: ToolFormat = ToolFormat.JSON,
    begins_reasoning: bool = False,
) -> Grammar | None:
    """What a reply is held to; none if it may be anything.

    Args:
        form: how the template shows calls.
        begins_reasoning: the prompt has opened the reasoning; the grammar holds behind its end.
    Raises:
        UnsupportedOption: reasoning, and a grammar that can not be put behind it.
    """
    grammar = asked_grammar(request)
    if isinstance(request, ChatRequest) and request.must_call:
        grammar = calls(request, form, tokenizer)
    elif isinstance(request, ChatRequest) and request.may_call and request.response_format:
        grammar = grammar and either(grammar, calls(request, form, tokenizer))
    if grammar is None or not begins_reasoning:
        return grammar
    outputs = request.structured_outputs
    if request.guided_grammar is not None or (outputs is not None and outputs.grammar is not None):
        raise UnsupportedOption(
            "a grammar of your own holds from the first token on, and the chat template begins "
            "with reasoning: switch it off (chat_template_kwargs.enable_thinking)",
            param="structured_outputs",
        )
    return behind_reasoning(grammar, tokenizer)


def asked_grammar(request: ChatRequest | CompletionRequest) -> Grammar | None:
    """Of the one field that holds the reply to a form; none if there is none."""
    asked = request.response_format
    if asked is not None and asked.type == "json_object":
        return Grammar(GrammarKind.JSON)
    if asked is not None and asked.json_schema is not None and asked.type == "json_schema":
        schema = asked.json_schema.schema_
        assert schema is not None, "the wire model wants a schema"
        return Grammar(GrammarKind.JSON_SCHEMA, json_text(schema, "the schema"))
    return _structured(
        request.structured_outputs
        or StructuredOutputs.model_construct(
            json_=request.guided_json,
            regex=request.guided_regex,
            choice=request.guided_choice,
            grammar=request.guided_grammar,
        )
    )


def _structured(asked: StructuredOutputs) -> Grammar | None:
    if asked.json_ is not None:
        return Grammar(GrammarKind.JSON_SCHEMA, json_text(asked.json_, "the schema"))
    if asked.json_object:
        return Grammar(GrammarKind.JSON)
    if asked.regex is not None:
        return Grammar(GrammarKind.REGEX, asked.regex)
    if asked.choice is not None:
        return Grammar(GrammarKind.LARK, f"start: {' | '.join(map(_quoted, asked.choice))}")
    return None if asked.grammar is None else Grammar(GrammarKind.LARK, asked.grammar)


def calls(request: ChatRequest, form: ToolFormat, tokenizer: PromptTokenizer) -> Grammar:
    """Of a reply that is a call: one, unless the caller asks for parallel ones by name."""
    choice = request.tool_choice
    tools = [
        tool.function.model_dump(exclude_unset=True)
        for tool in request.tools or ()
        if not isinstance(choice, NamedTool) or tool.function.name == choice.function.name
    ]
    many = request.parallel_tool_calls is True and not isinstance(choice, NamedTool)
    more = f' ("\\n" call){{0,{_MAX_PARALLEL_CALLS - 1}}}' if many else ""
    rules = [f"start: call{more}", f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        write = _json_call if form is ToolFormat.JSON else _tagged_call
        rules += write(index, tool, tokenizer)
    return Grammar(GrammarKind.LARK, "\n".join(rules))


def _json_call(index: int, tool: Mapping[str, Any], tokenizer: PromptTokenizer) -> Iterator[str]:
    head = _quoted(f'\n{{"name": {json.dumps(tool["name"])}, "arguments": ')
    opening, closing = _tag(OPEN, tokenizer), _tag(CLOSE, tokenizer)
    yield f"call_{index}: {opening} {head} args_{index} {_quoted('}' + chr(10))} {closing}"
    yield f"args_{index}: %json {_inline(tool.get('parameters') or _ANY_OBJECT)}"


def _tagged_call(index: int, tool: Mapping[str, Any], tokenizer: PromptTokenizer) -> Iterator[str]:
    schema = tool.get("parameters") or {}
    _inline(schema)  # it is one, from here on
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    names = [f"par_{index}_{number}" for number in range(len(properties))]
    shown = [
        name if key in required else f"{name}?" for name, key in zip(names, properties, strict=True)
    ]
    head = _quoted(f"\n<function={tool['name']}>\n")
    yield (
        f"call_{index}: {_tag(OPEN, tokenizer)} {head} {' '.join(shown)} "
        f"{_quoted('</function>' + chr(10))} {_tag(CLOSE, tokenizer)}"
    )
    for name, (key, one) in zip(names, properties.items(), strict=True):
        yield from _parameter(name, key, one, schema)


def _parameter(name: str, key: str, schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """A parameter's rule; a text stands as it is, all else as JSON."""
    head, tail = f"<parameter={key}>\n", "\n</parameter>\n"
    if isinstance(schema, Mapping) and schema.get("type") == "string" and "enum" in schema:
        choices = " | ".join(_quoted(str(one)) for one in schema["enum"])
        yield f"{name}: {_quoted(head)} ({choices}) {_quoted(tail)}"
    elif isinstance(schema, Mapping) and schema.get("type") == "string":
        yield f"{name}: {_quoted(head)} {name}_text"
        yield f"{name}_text[suffix={_quoted(tail)}]: /(?s:.{_length(schema)})/"
    else:
        yield f"{name}: {_quoted(head)} {name}_json {_quoted(tail)}"
        yield f"{name}_json: %json {_inline(_with_definitions(schema, root))}"


def _length(schema: Mapping[str, Any]) -> str:
    """How often a character may stand in a text, as an expression says it."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if not isinstance(most, int) or most > _MAX_COUNTED_CHARS:
        most = ""
    return f"{{{least if isinstance(least, int) and least <= _MAX_COUNTED_CHARS else 0},{most}}}"


def _with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of a schema that still finds what it refers to."""
    if not isinstance(schema, Mapping):
        return schema
    return {**{name: root[name] for name in ("$defs", "definitions") if name in root}, **schema}


def behind_reasoning(grammar: Grammar, tokenizer: PromptTokenizer) -> Grammar:
    """The same behind reasoning and its closing tag; of Lark grammars only those made here."""
    end = _tag(CLOSE_THINKING, tokenizer)
    if tokenizer.is_added_token(CLOSE_THINKING):
        reasoning = f"reasoning: {_ANY_TEXT} {end}"
    else:
        reasoning = f"reasoning[suffix={end}]: {_ANY_TEXT}"
    body = _as_rule("body", grammar)
    return Grammar(GrammarKind.LARK, f'start: reasoning "\\n\\n" body\n{reasoning}\n{body}')


def either(form: Grammar, call: Grammar) -> Grammar:
    """A reply of a form, or a call in its place."""
    rules = f"{_as_rule('form', form)}\n{_as_rule('calls', call)}"
    return Grammar(GrammarKind.LARK, f"start: form | calls\n{rules}")


def _as_rule(name: str, grammar: Grammar) -> str:
    """A grammar as a rule of another, with all that it needs; of Lark only those made here."""
    match grammar.kind:
        case GrammarKind.JSON:
            return f"{name}: %json {_inline(_ANY_OBJECT)}"
        case GrammarKind.JSON_SCHEMA:
            check_grammar(grammar)
            return f"{name}: %json {_inline(json.loads(grammar.source))}"
        case GrammarKind.REGEX:
            return f"{name}: /{_for_lark(grammar.source)}/"
        case GrammarKind.LARK:
            return name + grammar.source.removeprefix("start")


def _inline(schema: Any) -> str:
    """A schema within a Lark grammar.  Raises InvalidGrammar for one that can not be used."""
    check_grammar(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    return json.dumps(terse(schema))


def _for_lark(expression: str) -> str:
    """An expression between slashes: slashes and line breaks in it are escaped."""
    written = {"/": r"\/", "\n": r"\n"}
    return re.sub(r"(?s)\\.|/|\n", lambda found: written.get(found[0], found[0]), expression)


def _tag(tag: str, tokenizer: PromptTokenizer) -> str:
    """A tag in a grammar: the model's own token for it, else its text."""
    return tag if tokenizer.is_added_token(tag) else _quoted(tag)


def _quoted(text: str) -> str:
    """A text as a grammar's literal."""
    return json.dumps(text, ensure_ascii=False)


def shown_tools(request: ChatRequest) -> Sequence[Mapping[str, Any]]:
    """The schemas as the template shows them."""
    return [tool.shown() for tool in request.shown_tools]
