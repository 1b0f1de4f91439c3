"""Grammars that a reply is held to, checked without a model; an engine compiles them again.

The library behind them is llguidance.  It compiles on the caller's stack, one frame or more for
each rule that leads to another: a source of a few thousand such rules ends the process.  So sources
are short, and whatever compiles them does it on a stack that is deep enough for all of them.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from hypic_sdk.errors import InvalidGrammar

if TYPE_CHECKING:
    from llguidance import LLParserLimits

    from hypic_sdk.transport.messages import Grammar

Result = TypeVar("Result")

MAX_SOURCE_CHARS = 128 * 1024
# memory is taken as far as it is used; the most that a source of that length used was 100 MiB
STACK_BYTES = 256 * 1024 * 1024
# expressions of a schema that one string may have to match at once: the states of an intersection
# multiply, and no limit of the library ends the search (8 take 6 ms, 14 take 5 s)
MAX_JOINT_PATTERNS = 8
MAX_MESSAGE_CHARS = 400

_COMBINING = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
# strings and regular expressions of a Lark grammar, and its comments
_LARK_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|\#[^\n]*')


def check_grammar(grammar: Grammar) -> None:
    """Raise InvalidGrammar for a grammar that no reply can be held to.

    What depends on the tokenizer, or costs much to find out, is found by the engine alone, and told
    by the same error.
    """
    from llguidance import LLMatcher

    source = compilable(grammar)
    said = on_deep_stack(lambda: LLMatcher.validate_grammar(source, limits=limits())).result()
    if said:
        raise refusal(grammar, said)


def compilable(grammar: Grammar) -> str:
    """The grammar as llguidance takes it.  Raises InvalidGrammar."""
    from llguidance import LLMatcher

    source = grammar.source
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidGrammar(
            f"the grammar ({grammar.kind.value}) has {len(source)} characters, the limit is "
            f"{MAX_SOURCE_CHARS}",
            kind=grammar.kind.value,
            num_chars=len(source),
            limit_chars=MAX_SOURCE_CHARS,
        )
    match grammar.kind.value:
        case "json":
            return LLMatcher.grammar_from_json_schema(json.dumps(terse({"type": "object"})))
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(json.dumps(terse(_schema(grammar))))
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "lark":
            # intersections without a limit; what follows `~` may be a count
            if re.search(r"&|~(?!\s*\d)", _LARK_TEXT.sub(" ", source)):
                raise refusal(grammar, "the operators & and ~ are not offered")
            return LLMatcher.grammar_from_lark(source)
    raise AssertionError(f"no such kind of grammar: {grammar.kind}")


def terse(schema: Any) -> Any:
    """The schema, with little white space between values, where it does not say how much itself.

    JSON allows any amount, and a small model that may write spaces writes nothing else.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or "x-guidance" in schema:
        return schema
    return {**schema, "x-guidance": {"whitespace_pattern": r"[ \n\r\t]{0,8}"}}


def _schema(grammar: Grammar) -> Any:
    """The schema, if it is one."""
    try:
        schema = json.loads(grammar.source)
    except (ValueError, RecursionError) as error:
        raise refusal(grammar, f"the schema is no JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise refusal(grammar, "a schema is an object, true or false")
    if _joint_patterns(schema) > MAX_JOINT_PATTERNS:
        raise refusal(
            grammar, f"more than {MAX_JOINT_PATTERNS} patterns or formats may have to hold at once"
        )
    return schema


def _joint_patterns(schema: Any) -> int:
    """No fewer expressions than one string may have to match by way of combined schemas."""
    num_patterns = num_joints = 0
    left = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(node)
        elif isinstance(node, dict):
            left.extend(node.values())
            is_pattern = "pattern" in node or "format" in node
            num_patterns += is_pattern
            num_joints += is_pattern and not _COMBINING.isdisjoint(node)
            all_of = node.get("allOf")
            num_joints += len(all_of) if isinstance(all_of, list) else 0
    return min(num_patterns, num_joints)


def limits() -> LLParserLimits:
    """How much work one grammar may make; messages tell nothing of the parser's inside."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        step_lexer_fuel=100_000, max_lexer_states=50_000, max_grammar_size=100_000,
        verbose_errors=False,
    )  # fmt: skip


def refusal(grammar: Grammar, said: str) -> InvalidGrammar:
    """The error that names a grammar, and what the library said of it."""
    kind, said = grammar.kind.value, said.replace("<non-verbose/>", "").strip()
    return InvalidGrammar(f"the grammar ({kind}) can not be used: {said[:MAX_MESSAGE_CHARS]}",
                          kind=kind)  # fmt: skip


def on_deep_stack(function: Callable[[], Result]) -> Future[Result]:
    """Run a function on a thread of its own with a deep stack."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    # threads that somebody else starts in between get as much, which costs them nothing
    before = threading.stack_size(STACK_BYTES)
    try:
        threading.Thread(target=work, name="hypic-grammar", daemon=True).start()
    finally:
        threading.stack_size(before)
    return future
