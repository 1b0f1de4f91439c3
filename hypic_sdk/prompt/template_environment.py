"""The sandbox in which chat templates run, with the conventions that they are written for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any, final

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from hypic_sdk.errors import ModelFileError

JSON_FORMS = "_placeholder_json_forms"
"""Name of the variable in which a rendering hands `tojson` its placeholders."""

MESSAGE_MARK = "\U0010fffd"
"""Stands where a message begins or the list of messages ends, in a marked template's output."""

_MAX_REPEATED_CHARS = 1 << 20
_MAX_EXPONENT = 64


class TemplateRefusal(jinja2.TemplateError):
    """The template itself said no, by `raise_exception`."""


class TooMuchWork(jinja2.TemplateError):
    """A rendering went over its limit of steps or of time."""


@final
class _Work:
    """The steps of one rendering: turns of loops, calls of macros, items of maps and selections.

    Whatever can run for long is made of these, as every single value is bounded.
    """

    def __init__(self, max_steps: int, deadline_s: float) -> None:
        self._left = max_steps
        self._deadline_s = deadline_s

    def count(self) -> None:
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._deadline_s:
            raise TooMuchWork("its loops do not end")


# not a variable of the template: it could set that itself
_work: ContextVar[_Work | None] = ContextVar("template_work", default=None)


@contextmanager
def bounded_work(max_steps: int, deadline_s: float) -> Iterator[None]:
    """Bounds what is rendered within; what goes over raises TooMuchWork.

    Args:
        deadline_s: by the monotonic clock.
    """
    token = _work.set(_Work(max_steps, deadline_s))
    try:
        yield
    finally:
        _work.reset(token)


def count_step() -> bool:
    """Count one step of the rendering that runs; compiled templates call it.  Always true."""
    work = _work.get()
    if work is not None:
        work.count()
    return True


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with the operators that can make a huge value out of small ones bounded."""

    def call_filter(self, *args: Any, **kwargs: Any) -> Any:
        """Called for each item of a map."""
        count_step()
        return super().call_filter(*args, **kwargs)

    def call_test(self, *args: Any, **kwargs: Any) -> Any:
        """Called for each item of a selection."""
        count_step()
        return super().call_test(*args, **kwargs)

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise jinja2.exceptions.SecurityError(f"exponents end at {_MAX_EXPONENT}")
        for value, count in ((left, right), (right, left)):
            repeats = isinstance(value, str | bytes | list | tuple) and isinstance(count, int)
            if repeats and len(value) * count > _MAX_REPEATED_CHARS:
                raise jinja2.exceptions.SecurityError(
                    f"repeated values end at {_MAX_REPEATED_CHARS} items"
                )
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`, which marks a reply for training masks, is a plain block here."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it so

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@jinja2.pass_context
def _tojson(
    context: jinja2.runtime.Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes; a placeholder within is changed to its JSON form."""
    dumped = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    forms: Mapping[int, str] = context.get(JSON_FORMS) or {}
    return dumped.translate(forms)


class _Namespace(jinja2.utils.Namespace):
    """A namespace that stores no private names, which Python would read as protocol methods."""

    def __init__(self, /, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace holds no private name {name!r}")
        super().__setitem__(name, value)


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict` as a function: a template never holds a class."""
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise TemplateRefusal(str(message))


def make_environment(now: Callable[[], datetime]) -> jinja2.Environment:
    """A sandbox with the filters, globals and white-space rules of chat templates."""
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals.update(dict=_make_dict, namespace=_Namespace)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def compile_template(environment: jinja2.Environment, source: str) -> jinja2.Template:
    """Compile a template.

    Raises:
        ModelFileError: a syntax error, with its line.
    """
    try:
        return _compiled(environment, environment.parse(source))
    except jinja2.TemplateSyntaxError as error:
        raise ModelFileError(f"chat template, line {error.lineno}: {error.message}") from error


def compile_marked(environment: jinja2.Environment, source: str) -> jinja2.Template | None:
    """The same template, writing `MESSAGE_MARK` where each message begins and after the last.

    None when the template has no loop over messages that writes anything.
    """
    tree = environment.parse(source)
    marker = _MessageLoopMarker()
    marker.visit(tree)
    if not marker.num_loops:
        return None
    return _compiled(environment, tree)


def _compiled(environment: jinja2.Environment, tree: nodes.Template) -> jinja2.Template:
    _StepCounter().visit(tree)
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


class _StepCounter(NodeTransformer):
    """Puts a step at the start of each turn of a loop, each test of one and each macro."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_step(node.lineno), node.test, lineno=node.lineno)
        return _stepping(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        return _stepping(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        return _stepping(node)


def _stepping(node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
    node.body.insert(0, nodes.ExprStmt(_step(node.lineno), lineno=node.lineno))
    return node


def _step(line: int) -> nodes.Expr:
    name = nodes.ImportedName(f"{__name__}.{count_step.__name__}", lineno=line)
    return nodes.Call(name, [], [], None, None, lineno=line)


class _MessageLoopMarker(NodeTransformer):
    """Puts a mark at the start of each turn of a loop over messages, and after the loop."""

    def __init__(self) -> None:
        self.num_loops = 0

    def visit_For(self, node: nodes.For) -> nodes.Node | list[nodes.Node]:
        self.generic_visit(node)
        if not _writes(node) or not _over_messages(node):
            return node
        self.num_loops += 1
        node.body.insert(0, _mark(node.lineno))
        return [node, _mark(node.lineno)]


def _mark(line: int) -> nodes.Output:
    return nodes.Output([nodes.TemplateData(MESSAGE_MARK, lineno=line)], lineno=line)


def _writes(loop: nodes.For) -> bool:
    return any(
        not (isinstance(child, nodes.TemplateData) and not child.data.strip())
        for statement in loop.body
        for output in _outputs(statement)
        for child in output.nodes
    )


def _outputs(node: nodes.Node) -> list[nodes.Output]:
    return [node] if isinstance(node, nodes.Output) else list(node.find_all(nodes.Output))


def _over_messages(loop: nodes.For) -> bool:
    """Whether a loop runs over messages: over that name, or over things that have a role."""
    iterated = loop.iter
    names = [iterated] if isinstance(iterated, nodes.Name) else iterated.find_all(nodes.Name)
    if any(name.name == "messages" for name in names):
        return True
    if not isinstance(loop.target, nodes.Name):
        return False
    accesses = loop.find_all((nodes.Getattr, nodes.Getitem))
    return any(_reads_role(node, loop.target.name) for node in accesses)


def _reads_role(node: nodes.Node, target: str) -> bool:
    owner = getattr(node, "node", None)
    if not isinstance(owner, nodes.Name) or owner.name != target:
        return False
    if isinstance(node, nodes.Getattr):
        return node.attr == "role"
    return isinstance(node, nodes.Getitem) and node.arg == nodes.Const("role")
