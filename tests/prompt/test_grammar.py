"""The check of grammars that the text wing makes: quick, typed, safe against hostile sources."""

from __future__ import annotations

import itertools
import json
import string
import subprocess
import sys
import threading
import time

import pytest

from hypic_sdk.errors import InvalidGrammar
from hypic_sdk.prompt import grammar as grammar_module
from hypic_sdk.prompt.grammar import MAX_SOURCE_CHARS, check_grammar
from hypic_sdk.transport.messages import Grammar, GrammarKind

KINDS = tuple(GrammarKind)


def of(kind: GrammarKind, source: str = "") -> Grammar:
    return Grammar(kind, source)


def schema(value: object) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


GOOD = [
    of(GrammarKind.JSON),
    schema({}),
    schema(True),
    schema({"type": "object", "properties": {"a": {"type": "string", "format": "date"}}}),
    schema(
        {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    ),
    schema({"type": "object", "properties": {f"d{i}": {"format": "date"} for i in range(50)}}),
    of(GrammarKind.REGEX, "[a-z]+(&|~)[0-9]{3}"),
    of(GrammarKind.LARK, 'start: "a&~b" /[&~]/ "c"{2}  // & and ~\n'),
]

BAD = [
    schema({"type": "nope"}),
    schema(False),
    schema({"enum": []}),
    schema([]),
    schema("text"),
    schema({"$ref": "http://example.com/elsewhere.json"}),
    of(GrammarKind.JSON_SCHEMA, ""),
    of(GrammarKind.JSON_SCHEMA, "{"),
    of(GrammarKind.JSON_SCHEMA, "[" * 100_000),
    of(GrammarKind.JSON_SCHEMA, '{"items":' * 5_000 + "{}" + "}" * 5_000),
    of(GrammarKind.REGEX, "("),
    of(GrammarKind.REGEX, "(?=a)b"),
    of(GrammarKind.REGEX, "(" * 20_000 + "a" + ")" * 20_000),
    of(GrammarKind.LARK, ""),
    of(GrammarKind.LARK, "start: nothing"),
    of(GrammarKind.LARK, "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    of(GrammarKind.LARK, "start: A\nA: /a.*/ & /.*b/"),
    of(GrammarKind.LARK, "start: A\nA: ~/a/"),
]


@pytest.mark.parametrize("grammar", GOOD, ids=[str(i) for i in range(len(GOOD))])
def test_what_can_be_used_passes(grammar):
    check_grammar(grammar)


@pytest.mark.parametrize("grammar", BAD, ids=[str(i) for i in range(len(BAD))])
def test_what_can_not_be_used_is_refused_by_its_kind(grammar):
    with pytest.raises(InvalidGrammar) as caught:
        check_grammar(grammar)
    error = caught.value
    assert error.http_status == 400
    assert not error.retryable
    assert error.details["kind"] == grammar.kind.value
    assert grammar.kind.value in error.message
    assert len(error.message) < 600
    assert "non-verbose" not in error.message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not GrammarKind.JSON])
def test_a_long_source_is_refused_with_both_numbers(kind):
    with pytest.raises(InvalidGrammar) as caught:
        check_grammar(of(kind, "x" * (MAX_SOURCE_CHARS + 1)))
    assert caught.value.details["num_chars"] == MAX_SOURCE_CHARS + 1
    assert caught.value.details["limit_chars"] == MAX_SOURCE_CHARS


def names():
    for length in itertools.count(1):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def chain_of_rules(*, terminals: bool) -> Grammar:
    """As many rules as a source holds, each of which leads to the next."""
    lines, size, previous = ["start: a\n"], 10, "a"
    for name in itertools.islice(names(), 1, None):
        line = f"{previous}:{name}\n"
        if name == "start" or size + len(line) > MAX_SOURCE_CHARS - 20:
            continue
        lines.append(line)
        previous = name
        size += len(line)
        if size > MAX_SOURCE_CHARS - 40:
            break
    text = "".join([*lines, f'{previous}:"x"\n'])
    return of(GrammarKind.LARK, text.upper().replace("START", "start") if terminals else text)


def chain_of_schemas(wrap) -> Grammar:
    definitions = {str(i): wrap({"$ref": f"#/$defs/{i + 1}"}) for i in range(2_000)}
    definitions["2000"] = {"type": "null"}
    return schema({"$defs": definitions, "$ref": "#/$defs/0"})


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain_of_rules(terminals=False),
        lambda: chain_of_rules(terminals=True),
        lambda: chain_of_schemas(lambda one: {"items": one}),
        lambda: chain_of_schemas(lambda one: {"additionalProperties": one}),
        lambda: chain_of_schemas(lambda one: one),
    ],
    ids=["rules", "terminals", "items", "properties", "references"],
)
def test_long_chains_do_not_end_the_process(make):
    """Each of them does on an ordinary stack."""
    grammar = make()
    assert 50_000 < len(grammar.source) <= MAX_SOURCE_CHARS
    check_grammar(grammar)


PATTERNS = [f".*a.{{{i}}}b.*" for i in range(30)]


@pytest.mark.parametrize(
    "value",
    [
        {"allOf": [{"type": "string", "pattern": one} for one in PATTERNS]},
        {
            "$defs": {
                str(i): {"pattern": one, "$ref": f"#/$defs/{i + 1}"}
                for i, one in enumerate(PATTERNS[:-1])
            }
            | {"29": {"type": "string", "pattern": PATTERNS[-1]}},
            "$ref": "#/$defs/0",
        },
        {
            "$defs": {str(i): {"pattern": one} for i, one in enumerate(PATTERNS)},
            "allOf": [{"$ref": f"#/$defs/{i}"} for i in range(30)],
        },
    ],
)
def test_patterns_that_must_all_hold_are_few(value):
    """Thirty of them keep the library busy for longer than anyone waits."""
    started_s = time.monotonic()
    with pytest.raises(InvalidGrammar, match="hold at once"):
        check_grammar(schema(value))
    assert time.monotonic() - started_s < 2.0


def test_the_check_loads_no_torch():
    code = (
        "import sys; from hypic_sdk.prompt.grammar import check_grammar; "
        "from hypic_sdk.transport.messages import Grammar, GrammarKind; "
        "check_grammar(Grammar(GrammarKind.REGEX, 'a')); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_other_threads_keep_their_stacks():
    before = threading.stack_size()
    grammar_module.on_deep_stack(lambda: None).result()
    assert threading.stack_size() == before
    with pytest.raises(ZeroDivisionError):
        grammar_module.on_deep_stack(lambda: 1 // 0).result()
