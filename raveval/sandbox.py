"""The sandbox that templates run in: Jinja's own, with every way to make something big measured.

It bounds sizes and steps; which syntax is allowed at all is `raveval.templates`' business.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from typing_extensions import override

MAX_TEXT_CHARS = 1 << 24
MAX_ITEMS = 1 << 20
MAX_INTEGER = 1 << 63
MAX_RANGE = 1000
MAX_STEPS = 10_000
MAX_DECIMALS = 15

COUNTED = "counted steps"
"""The filter around what a loop runs over; its name is none that a template can write."""

STEPS_LEFT = "steps left"
"""The variable, a list of one number, that holds what is left of a rendering's steps."""

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


class Refusal(Exception):
    """A template asks for something that its language has not; the message says what."""


class NoColumn(jinja2.UndefinedError):
    """A variable that is no column of the row."""

    def __init__(self, column: str, message: str) -> None:
        super().__init__(message)
        self.column = column


class _Missing(jinja2.StrictUndefined):
    """A name that is not there: an error as soon as it is used."""

    __slots__ = ()

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = jinja2.utils.missing,
        name: str | None = None,
        exc: Any = jinja2.UndefinedError,
    ) -> None:
        if hint is None and name is not None and obj is jinja2.utils.missing:
            exc = functools.partial(NoColumn, name)
        super().__init__(hint, obj, name, exc)

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
        raise Refusal("a value is null where text is needed; see `| default('…', true)`")
    kind = type(value).__name__
    raise Refusal(f"a {kind} where text is needed; choose an element, or see `| join(', ')`")


def _sized(n: int, limit: int = MAX_TEXT_CHARS) -> int:
    if n > limit:
        unit = "characters" if limit == MAX_TEXT_CHARS else "items"
        raise Refusal(f"would make {n} {unit}; the limit is {limit}")
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
        raise Refusal(f"{value!r} is not a whole number") from None


def _decimal(value: object) -> float:
    try:
        return float(_text(value))
    except ValueError:
        raise Refusal(f"{value!r} is not a number") from None


def _rounded(value: object, decimals: int = 0) -> float:
    if decimals not in range(MAX_DECIMALS + 1):
        raise Refusal(f"round to {decimals} decimals; 0 to {MAX_DECIMALS} are allowed")
    return round(_decimal(value), decimals)


@jinja2.pass_context
def _counted(context: Context, items: Iterable[Any]) -> list[Any]:
    """Return what a loop runs over, and take it from the steps that one rendering has."""
    listed = list(items)
    left = context[STEPS_LEFT]
    left[0] -= len(listed)
    if left[0] < 0:
        raise Refusal(f"its loops make more than {MAX_STEPS} steps")
    return listed


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
    "round": _rounded,
    "without_brackets": _without_brackets,
    COUNTED: _counted,
}


def _bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise Refusal(f"range of {len(numbers)} numbers; the limit is {MAX_RANGE}")
    return numbers


class Environment(ImmutableSandboxedEnvironment):
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
            raise Refusal(f"{kinds} is not allowed (numbers; + also joins two texts or lists)")
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
        raise Refusal(f"{__obj!r:.60} cannot be called")


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
            raise Refusal("a number beyond 64 bits")
    return True
