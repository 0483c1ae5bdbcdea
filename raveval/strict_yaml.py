"""Reads YAML into strict pydantic models; every error names the file and the dotted key.

Configs and task files share it, so that both are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from typing_extensions import override

from raveval.errors import ConfigError, nearest
from raveval.paths import path_of

MAX_DEPTH = 50
MAX_EXPANDED = 1_000_000
_MERGE = "tag:yaml.org,2002:merge"


class Strict(BaseModel):
    """A section of a file: unknown keys are refused, values are frozen, numbers finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=Strict)


def _path_text(text: str) -> str:
    try:
        path_of(text)
    except ConfigError as exc:
        raise ValueError(str(exc)) from exc
    return text


PathText = Annotated[str, AfterValidator(_path_text)]
"""A text that can be a path."""

_PLAIN = {"tuple_type": "expected a list"}
"""Faults that pydantic words by a type that YAML does not have."""


class _Loader(yaml.SafeLoader):
    """Refuses what YAML allows and no config means.

    That is a key that stands twice, of which YAML's own rule would keep the last in silence; what
    is nested without bound; and aliases by which a short file becomes a large one, or holds itself.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    @override
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read a value; what an alias stands for counts wherever the alias stands."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "nested too deeply", mark)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and node not in self._sizes:
            raise yaml.composer.ComposerError(None, None, "an alias inside what it is for", mark)
        self._sizes[node] = 1 + sum(map(self._sizes.__getitem__, _parts(node)))
        if self._sizes[node] > MAX_EXPANDED:
            raise yaml.composer.ComposerError(None, None, "too large with its aliases", mark)
        return node

    @override
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build a value; PyYAML lets what a tag's own reader raises through as it is."""
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as exc:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None, None, f"{node.value!r:.40} cannot be read as {kind}: {exc}", node.start_mark
            ) from exc

    @override
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == _MERGE:  # `<<: *shared` is no key, and what it brings is replaced
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key if isinstance(key, str) else id(key_node))
        return dict(super().construct_mapping(node, deep))


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    for part in node.value if isinstance(node, yaml.CollectionNode) else ():
        yield from part if isinstance(part, tuple) else (part,)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: no such file, not YAML, or not a mapping at the top.
    """
    try:
        text = path_of(str(path)).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file (looked from {Path.cwd()})") from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from exc
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(exc).split())}") from exc
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path}: expected a mapping of keys at the top, found {kind}")
    return content


def validate(
    model: type[Model],
    content: dict[str, Any],
    *,
    where: str,
    typed: Mapping[str, str] | None = None,
) -> Model:
    """Check `content` against `model`; `where` begins each line of the error.

    `typed` has what the user typed instead of some keys, say flags, by the dotted key without the
    numbers of lists; it then begins the line, and `where` and the key are left out.

    Raises:
        ConfigError: one line per fault, with the dotted key, what was given and what is allowed.
    """
    _check_texts(content, where)
    try:
        return model.model_validate(content)
    except ValidationError as exc:
        lines = [_line(model, dict(fault), where, typed or {}) for fault in exc.errors()]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from exc


def _check_texts(content: Any, where: str, at: str = "", depth: int = 0) -> None:
    """Refuse texts that can be written nowhere, and nesting (of itself, say) without bound."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: {at:.60}…: nested too deeply")
    if isinstance(content, str):
        try:
            content.encode()
        except UnicodeEncodeError as exc:
            raise ConfigError(
                f"{where}: {at}: half of a surrogate pair ({content!a:.40}), which is no text in "
                "any encoding (such halves come from cut \\u escapes)"
            ) from exc
    elif isinstance(content, Mapping):
        for key, value in content.items():
            _check_texts(key, where, f"{at}.(key)".lstrip("."), depth + 1)
            _check_texts(value, where, f"{at}.{key}".lstrip("."), depth + 1)
    elif isinstance(content, list | tuple):
        for index, value in enumerate(content):
            _check_texts(value, where, f"{at}.{index}".lstrip("."), depth + 1)


def _line(
    model: type[BaseModel], fault: dict[str, Any], where: str, typed: Mapping[str, str]
) -> str:
    location = [part for part in fault["loc"] if not _is_union_tag(part)]
    key = ".".join(part for part in location if isinstance(part, str))
    if key in typed:
        return _describe(model, fault, location, typed[key])
    return f"{where}: {_describe(model, fault, location, '.'.join(map(str, location)))}"


def _describe(model: type[BaseModel], fault: dict[str, Any], location: list[Any], key: str) -> str:
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key; {nearest(str(location[-1]), _keys_at(model, location[:-1]))}"
    if fault["type"] == "missing":
        return f"{key}: missing"
    message = _PLAIN.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    if not key:
        return str(message)
    given = fault["input"]
    shown = f" (given {given!r})" if isinstance(given, str | int | float | bool | None) else ""
    return f"{key}: {message[0].lower()}{message[1:]}{shown}"


def _is_union_tag(part: object) -> bool:
    """Pydantic names the tried branch of a union inside the location; users never wrote it."""
    return isinstance(part, str) and (part[:1].isupper() or "[" in part or part in ("str", "int"))


def _keys_at(model: type[BaseModel], location: list[Any]) -> list[str]:
    """Return the keys allowed at a dotted location, for near misses."""
    current: type[BaseModel] = model
    for part in location:
        if isinstance(part, int):
            continue
        fields = {field.alias or name: field for name, field in current.model_fields.items()}
        info = fields.get(part)
        found = _models_in(info.annotation) if info else []
        if not found:
            return []
        current = found[0]
    return [info.alias or name for name, info in current.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    inner = getattr(annotation, "__args__", ())
    return [model for argument in inner for model in _models_in(argument)]
