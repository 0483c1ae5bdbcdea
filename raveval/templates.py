"""Renders the templates of task files: a small, bounded language over one row of data.

A text template is Jinja (`Question: {{ question }}`), an expression is what stands between the
braces alone (`choices.label.index(answerKey)`) and gives a value: a list, a number, a text. Columns
of the row are variables, `row` is the whole row. What is there, and no more:

    {{ expression }}
    {% if … %} {% elif … %} {% else %} {% endif %}   {% for x in … %} {% endfor %}, two deep at most
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
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from typing_extensions import override

from raveval.errors import ConfigError, DataError

MAX_SOURCE_CHARS = 20_000
MAX_TEXT_CHARS = 1 << 24
MAX_ITEMS = 1 << 20
MAX_INTEGER = 1 << 63
MAX_RANGE = 1000
MAX_LOOP_DEPTH = 2

# fmt: off
METHODS = (
    "strip", "lstrip", "rstrip", "lower", "upper", "capitalize", "title", "startswith", "endswith",
    "removeprefix", "removesuffix", "split", "rsplit", "splitlines", "partition", "rpartition",
    "find", "rfind", "index", "count", "replace", "isdigit", "get", "keys", "values", "items",
)

TESTS = (
    "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping",
    "sequence", "iterable", "true", "false", "even", "odd", "divisibleby", "in",
    "eq", "equalto", "==", "ne", "!=", "lt", "<", "le", "<=", "gt", ">", "ge", ">=",
)

_KEPT_FILTERS = (
    "abs", "count", "d", "default", "first", "items", "last", "length", "list", "map", "max", "min",
    "reject", "rejectattr", "reverse", "round", "select", "selectattr", "sort", "unique",
)
# fmt: on

_ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For),
    *(nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Neg, nodes.Pos),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.CondExpr, nodes.Concat),
)


class _Refusal(Exception):
    """A template asks for something that its language has not; the message says what."""


_FAULTS = (
    *(_Refusal, jinja2.TemplateError, TypeError, ValueError, LookupError),
    *(ArithmeticError, AttributeError),
)
"""What an expression over unknown data can raise."""


class _Missing(jinja2.StrictUndefined):
    """A name that is not there: an error as soon as it is used."""

    __slots__ = ()

    @property
    @override
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        name = self._undefined_name
        if self._undefined_obj is jinja2.utils.missing:
            return f"no column {name!r}"
        kind = type(self._undefined_obj).__name__
        if isinstance(self._undefined_obj, Mapping):
            return f"no field {name!r} (there are: {', '.join(map(str, self._undefined_obj))})"
        return f"no element {name!r} in a {kind}"


def _text(value: object) -> str:
    """Return a text or number as text; anything else would print as Python, not as language."""
    if isinstance(value, Undefined):
        str(value)  # raises, with the name that is missing
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    if value is None:
        raise _Refusal("a value is null where text is needed; see `| default('…', true)`")
    kind = type(value).__name__
    raise _Refusal(f"a {kind} where text is needed; choose an element, or see `| join(', ')`")


def _sized(n: int, limit: int = MAX_TEXT_CHARS) -> int:
    if n > limit:
        unit = "characters" if limit == MAX_TEXT_CHARS else "items"
        raise _Refusal(f"would make {n} {unit}; the limit is {limit}")
    return n


def _replace(value: object, old: object, new: object) -> str:
    text, out, into = _text(value), _text(old), _text(new)
    _sized(len(text) + text.count(out) * (len(into) - len(out)))
    return text.replace(out, into)


def _join(value: Iterable[object], separator: object = "") -> str:
    between = _text(separator)
    parts = [_text(part) for part in value]
    _sized(sum(map(len, parts)) + len(between) * max(len(parts) - 1, 0))
    return between.join(parts)


def _integer(value: object) -> int:
    try:
        return int(_text(value))
    except ValueError:
        raise _Refusal(f"{value!r} is not a whole number") from None


def _decimal(value: object) -> float:
    try:
        return float(_text(value))
    except ValueError:
        raise _Refusal(f"{value!r} is not a number") from None


def _without_brackets(value: object) -> str:
    """Drop every `[…]` within a line, as HellaSwag's text needs it; linear in the text."""
    return "\n".join(_line_without_brackets(line) for line in _text(value).split("\n"))


def _line_without_brackets(line: str) -> str:
    kept, at = [], 0
    while (start := line.find("[", at)) >= 0 and (stop := line.find("]", start)) >= 0:
        kept.append(line[at:start])
        at = stop + 1
    return "".join(kept) + line[at:]


FILTERS: Mapping[str, Callable[..., Any]] = {
    **{name: JINJA_FILTERS[name] for name in _KEPT_FILTERS},
    "string": _text,
    "trim": lambda value, chars=None: _text(value).strip(chars),
    "lower": lambda value: _text(value).lower(),
    "upper": lambda value: _text(value).upper(),
    "capitalize": lambda value: _text(value).capitalize(),
    "title": lambda value: _text(value).title(),
    "replace": _replace,
    "join": _join,
    "int": _integer,
    "float": _decimal,
    "without_brackets": _without_brackets,
}


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise _Refusal(f"range of {len(numbers)} numbers; the limit is {MAX_RANGE}")
    return numbers


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with every way to make something big measured first."""

    intercepted_binops = frozenset(["+", "*", "%"])

    def __init__(self) -> None:
        super().__init__(
            undefined=_Missing,
            autoescape=False,
            keep_trailing_newline=True,
            optimized=False,  # constants would be folded while compiling, before any check
            finalize=_text,
        )
        self.filters = dict(FILTERS)
        self.tests = {name: JINJA_TESTS[name] for name in TESTS}
        self.globals = {"range": _bounded_range}

    @override
    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, if its result is of a bounded size."""
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            _sized(len(left) + len(right))
        elif operator == "+" and isinstance(left, list) and isinstance(right, list):
            _sized(len(left) + len(right), MAX_ITEMS)
        elif not _are_small_numbers(left, right):
            kinds = f"{type(left).__name__} {operator} {type(right).__name__}"
            raise _Refusal(f"{kinds} is not allowed (numbers; + also joins two texts or lists)")
        return super().call_binop(context, operator, left, right)

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up `a.b`: in a mapping the key comes before a method of that name."""
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    @override
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `range`, or a method of a value of the row."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str) and __obj.__name__ == "replace":
            return _replace(owner, *args, **kwargs)
        if isinstance(__obj, Undefined) or __obj is _bounded_range or _is_method(__obj, owner):
            return super().call(__context, __obj, *args, **kwargs)
        raise _Refusal(f"{__obj!r:.60} cannot be called")


def _is_method(called: object, owner: object) -> bool:
    plain = isinstance(owner, str | list | tuple | dict)
    return plain and getattr(called, "__name__", "") in METHODS


def _are_small_numbers(*values: object) -> bool:
    for value in values:
        if isinstance(value, Undefined):
            str(value)  # raises, with the name that is missing
        if not isinstance(value, int | float):
            return False
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise _Refusal("a number beyond 64 bits")
    return True


_ENVIRONMENT = _Environment()


class _BoundConcats(jinja2.visitor.NodeTransformer):
    """Turns `a ~ b` into the checked join, since Jinja lets no one intercept it."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = [self.visit(part) for part in node.nodes]
        listed = nodes.List(parts, lineno=node.lineno)
        return nodes.Filter(listed, "join", [], [], None, None, lineno=node.lineno)


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
                size = _sized(size + len(part))
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
        message = f"{_shortened(source)!r}: {exc}; the row's columns: {', '.join(map(str, row))}"
        empty = [str(name) for name, value in row.items() if value is None]
        if empty:
            message += f" (null: {', '.join(empty)})"
        raise DataError(message) from exc


def _shortened(source: str) -> str:
    return source if len(source) <= 60 else f"{source[:57]}…"


def _variables(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "row": row}


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


def _parse_text(source: str) -> nodes.Template:
    template = _ENVIRONMENT.parse(source)
    _check(template.body)
    return template


def _parse_expression(source: str) -> nodes.Template:
    parser = Parser(_ENVIRONMENT, source, state="variable")
    value = parser.parse_expression()
    if not parser.stream.eos:
        parser.fail(f"unexpected {parser.stream.current.value!r} after the expression")
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
        bounded = _BoundConcats().visit(parse())
        return _ENVIRONMENT.from_string(bounded)
    except jinja2.TemplateSyntaxError as exc:
        raise ConfigError(f"template {shown!r}, line {exc.lineno}: {exc.message}") from exc
    except _Refusal as exc:
        raise ConfigError(f"template {shown!r}: {exc}") from exc
    except RecursionError:
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
                raise _Refusal(f"`for` may be nested {MAX_LOOP_DEPTH} deep, and not recursive")
        body.extend((child, depth) for child in node.iter_child_nodes())


def _check_node(node: nodes.Node) -> None:
    if not isinstance(node, _ALLOWED_NODES):
        kind = type(node).__name__
        raise _Refusal(f"{kind} is not part of the template language of task files")
    if isinstance(node, nodes.Call):
        called = node.node
        is_range = isinstance(called, nodes.Name) and called.name == "range"
        is_method = isinstance(called, nodes.Getattr) and called.attr in METHODS
        if node.dyn_args is not None or node.dyn_kwargs is not None or not (is_range or is_method):
            name = getattr(called, "attr", getattr(called, "name", "this"))
            allowed = ", ".join(sorted(METHODS))
            raise _Refusal(f"{name}() cannot be called; range() and these methods can: {allowed}")
