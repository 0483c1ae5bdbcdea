"""Renders the templates of task files: a small, bounded language over one row of data.

A text template is Jinja (`Question: {{ question }}`), an expression is what stands between the
braces alone (`choices.label.index(answerKey)`) and gives a value: a list, a number, a text. Columns
of the row are variables, `row` is the whole row. What is there, and no more:

    {{ expression }}
    {% if … %} {% elif … %} {% else %} {% endif %}   {% for x in … %} {% endfor %} (10000 steps)
    'text' 1 2.5 true false none   [a, b] (a, b) {k: v}   a.b a['b'] a[0] a[1:3]
    + - * / // % of numbers; + joins two texts or lists; ~ joins anything as text
    == != < <= > >= in   and or not   x if c else y   range(n) of at most 1000 numbers
    | filters as in FILTERS   is tests as in TESTS   .methods() as in METHODS

Task files come from other people, so a template can neither reach Python nor use up the machine:
the environment is Jinja's immutable sandbox, names and node types are allow-listed, and the size of
every text that is made is checked before it is made. A column that is not there, a null and a list
where a text is needed are errors; none of them ever ends up in a prompt as a word.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.visitor import NodeTransformer

from raveval.errors import ConfigError, DataError, meant
from raveval.sandbox import (
    COUNTED,
    FILTERS,
    MAX_STEPS,
    MAX_TEXT_CHARS,
    METHODS,
    STEPS_LEFT,
    TESTS,
    Environment,
    NoColumn,
    Refusal,
)

__all__ = [
    "FILTERS",
    "METHODS",
    "TESTS",
    "Expression",
    "MissingColumn",
    "Text",
    "expression",
    "shows_once",
    "text",
]

MAX_SOURCE_CHARS = 20_000
MAX_LOOP_DEPTH = 2

_ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Concat),
)


_FAULTS = (
    *(Refusal, jinja2.TemplateError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError),
)
"""What an expression over unknown data can raise."""


_ENVIRONMENT = Environment()


class MissingColumn(DataError):
    """A template names a column that the row has not."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


class _Bounds(NodeTransformer):
    """Puts checks where Jinja lets no one intercept: `a ~ b` and what a loop runs over."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = [self.visit(part) for part in node.nodes]
        listed = nodes.List(parts, lineno=node.lineno)
        return nodes.Filter(listed, "join", [], [], None, None, lineno=node.lineno)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, COUNTED, [], [], None, None, lineno=node.lineno)
        return node


@dataclass(frozen=True, slots=True)
class Text:
    """A compiled text template."""

    source: str
    compiled: jinja2.Template

    def render(self, row: Mapping[str, Any]) -> str:
        """Return the text for a row.

        Raises:
            DataError: a column is not there, or a value is not what the template takes it for.
        """
        with _placing_faults(self.source, row):
            size, parts = 0, []
            for part in self.compiled.generate(_variables(row)):
                size += len(part)
                if size > MAX_TEXT_CHARS:
                    raise Refusal(f"makes more than {MAX_TEXT_CHARS} characters")
                parts.append(part)
            return "".join(parts)


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression."""

    source: str
    compiled: jinja2.Template

    def value(self, row: Mapping[str, Any]) -> Any:
        """Return the value for a row; lazy sequences are made lists.

        Raises:
            DataError: a column is not there, or a value is not what the expression takes it for.
        """
        with _placing_faults(self.source, row):
            context = self.compiled.new_context(_variables(row))
            for _ in self.compiled.root_render_func(context):
                pass
            value = context.vars["value"]
            value = list(value) if isinstance(value, Iterator) else value
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Undefined):
                    str(part)  # raises, with the name that is missing
            return value


@contextlib.contextmanager
def _placing_faults(source: str, row: Mapping[str, Any]) -> Iterator[None]:
    """Turn whatever a template stumbles over into one DataError that names the columns."""
    try:
        yield
    except _FAULTS as exc:
        columns = [str(name) for name in row]
        hint = meant(exc.column, columns) if isinstance(exc, NoColumn) else ""
        said = f"{exc} ({hint})" if hint else str(exc)
        message = f"{_shortened(source)!r}: {said}; the row's columns: {', '.join(columns)}"
        empty = [str(name) for name, value in row.items() if value is None]
        if empty:
            message += f" (null: {', '.join(empty)})"
        if isinstance(exc, NoColumn):
            raise MissingColumn(message, exc.column) from exc
        raise DataError(message) from exc


def _shortened(source: str) -> str:
    return source if len(source) <= 60 else f"{source[:57]}…"


def _variables(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "row": row, STEPS_LEFT: [MAX_STEPS]}


@functools.cache
def text(source: str) -> Text:
    """Compile a text template.

    >>> text("Q: {{ question }}").render({"question": "Why?"})
    'Q: Why?'

    Raises:
        ConfigError: it is no template, or uses more than the language of this module.
    """
    return Text(source, _compiled(source, lambda: _parse_text(source)))


@functools.cache
def expression(source: str) -> Expression:
    """Compile an expression; a pair of braces around it is allowed.

    >>> expression("choices.label.index(key)").value({"choices": {"label": ["A", "B"]}, "key": "B"})
    1

    Raises:
        ConfigError: it is no expression, or uses more than the language of this module.
    """
    bare = source.strip()
    if bare.startswith("{{") and bare.endswith("}}"):
        bare = bare[2:-2]
    return Expression(source, _compiled(source, lambda: _parse_expression(bare)))


def shows_once(source: str, name: str) -> bool:
    """Whether a text template shows a variable once, as it is, and does nothing else with it.

    >>> shows_once("Answer: {{ a }}", "a"), shows_once("Answer: {{ a | trim }}", "a")
    (True, False)

    Raises:
        ConfigError: it is no template.
    """
    text(source)  # raises
    tree = _ENVIRONMENT.parse(source)
    n_uses = sum(node.name == name for node in tree.find_all(nodes.Name))
    shown = [part for output in tree.find_all(nodes.Output) for part in output.nodes]
    return n_uses == sum(isinstance(part, nodes.Name) and part.name == name for part in shown) == 1


def _parse_text(source: str) -> nodes.Template:
    template = _ENVIRONMENT.parse(source)
    _check(template.body)
    return template


def _parse_expression(source: str) -> nodes.Template:
    parser = Parser(_ENVIRONMENT, source, state="variable")
    value = parser.parse_expression()
    if not parser.stream.eos:
        found = parser.stream.current
        listed = f"; a list stands in brackets: [{source.strip()}]" if found.type == "comma" else ""
        parser.fail(f"unexpected {found.value!r} after the expression{listed}")
    _check([value])
    target = nodes.Name("value", "store", lineno=1)
    template = nodes.Template([nodes.Assign(target, value, lineno=1)], lineno=1)
    return template.set_environment(_ENVIRONMENT)  # type: ignore[return-value]


def _compiled(source: str, parse: Callable[[], nodes.Template]) -> jinja2.Template:
    shown = _shortened(source)
    if len(source) > MAX_SOURCE_CHARS:
        raise ConfigError(
            f"template {shown!r} has {len(source)} characters; the limit is {MAX_SOURCE_CHARS}"
        )
    try:
        bounded = _Bounds().visit(parse())
        return _ENVIRONMENT.from_string(bounded)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(f"template {shown!r}, line {exc.lineno}: {exc.message}") from exc
    except Refusal as exc:
        raise ConfigError(f"template {shown!r}: {exc}") from exc
    except ValueError as exc:  # a number of thousands of digits
        raise ConfigError(f"template {shown!r}: {exc}") from exc
    except (RecursionError, MemoryError, SyntaxError):  # Python's own limits, on what Jinja wrote
        raise ConfigError(f"template {shown!r}: nested too deeply") from None


def _check(roots: Iterable[nodes.Node]) -> None:
    """Refuse everything that is not in the module's docstring."""
    body = [(node, 0) for node in roots]
    while body:
        node, depth = body.pop()
        _check_node(node)
        if isinstance(node, nodes.For):
            depth += 1
            if depth > MAX_LOOP_DEPTH or node.recursive:
                raise Refusal(f"`for` may be nested {MAX_LOOP_DEPTH} deep, and not recursive")
        body.extend((child, depth) for child in node.iter_child_nodes())


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED_NODES):
        kind = type(node).__name__
        raise Refusal(f"{kind} is not part of the template language of task files")
    if isinstance(node, nodes.Name) and node.name == "self":
        raise Refusal("`self` is Jinja's own name; a column of that name is row['self']")
    if isinstance(node, nodes.Call):
        called = node.node
        is_range = isinstance(called, nodes.Name) and called.name == "range"
        is_method = isinstance(called, nodes.Getattr) and called.attr in METHODS
        if node.dyn_args is not None or node.dyn_kwargs is not None or not (is_range or is_method):
            name = getattr(called, "attr", getattr(called, "name", "this"))
            allowed = ", ".join(sorted(METHODS))
            raise Refusal(f"{name}() cannot be called; range() and these methods can: {allowed}")
