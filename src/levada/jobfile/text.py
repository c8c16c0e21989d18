"""Parse YAML and JSON into plain values; repeated keys are faults."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import yaml

from levada.errors import BadInput, Faults
from levada.jobfile.faults import path_of
from levada.jobfile.limits import (
    FileLimits,
    check_depth,
    check_documents,
    check_key,
    check_keys,
    measure_json,
    too_many_values,
)

Keys = tuple[int | str, ...]

#: The most digits of a number; Python does not print longer ones.
MOST_DIGITS = 1000
#: For local YAML files: cases, workloads. Values count each alias as often as it is used.
_OWN_FILE = FileLimits(keys=1_000_000, values=1_000_000)


def parse_any(text: str, limits: FileLimits, repeats: Faults | None = None) -> list[Any]:
    """The values of a JSON text, or the documents of a YAML text; raises BadInput.

    *repeats*, if given, collects the faults of repeated keys, to report them with others.
    """
    if text.lstrip()[:1] in ("{", "["):
        # JSON is also YAML, but the JSON parser is a hundred times as fast.
        measure_json(text, limits)
        try:
            return [parse_json(text, repeats=repeats)]
        except BadInput as error:
            if len(text) > limits.yaml_bytes or any(fault.path for fault in error.faults):
                raise
            # The text may be YAML in flow style, or several documents: let the YAML parser report the error.
    return parse_documents(text, limits, repeats)


def parse_json(text: str, limits: FileLimits | None = None, repeats: Faults | None = None) -> Any:
    """The value of a JSON text within *limits*; raises BadInput. *repeats*: as above."""
    if limits is not None:
        measure_json(text, limits)
    try:
        value = json.loads(
            text, object_pairs_hook=_mapping, parse_constant=_no_constant, parse_int=_whole, parse_float=_decimal
        )
    except json.JSONDecodeError as error:
        raise BadInput.one(f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError) as error:
        raise BadInput.one(f"not JSON: {_why(error)}") from None
    _report_repeats(map(path_of, _repeats_in_value(value)), repeats)
    return value


def parse_documents(text: str, limits: FileLimits = _OWN_FILE, repeats: Faults | None = None) -> list[Any]:
    """The non-empty documents of a YAML text; raises BadInput. *repeats*: as above."""
    if len(text) > limits.yaml_bytes:
        raise BadInput.one(f"YAML of more than {_size(limits.yaml_bytes)}; use JSON, or split it")
    documents: list[Any] = []
    repeated: list[tuple[int, str]] = []  # number of the document, path
    try:
        loader = _Loader(text)
        loader.limits = limits
        while loader.check_node():
            node = loader.get_node()
            loader.expanded += _expanded_size(node)
            if loader.expanded > limits.values:
                raise too_many_values(limits, ", counting each alias as often as it is used")
            repeated += [(len(documents) + 1, path_of(keys)) for keys in _repeats_in_node(node)]
            document = loader.construct_document(node)
            if document is not None:
                documents.append(document)
                check_documents(len(documents))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput.one(f"not YAML: {getattr(error, 'problem', None) or 'cannot be read'}{where}") from None
    except (RecursionError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last three: a value does not match its explicit tag.
        raise BadInput.one(f"not YAML: {_why(error)}") from None
    several = len(documents) > 1
    _report_repeats((f"document {n}: {path}" if several else path for n, path in repeated), repeats)
    return documents


def _report_repeats(paths: Iterable[str], repeats: Faults | None) -> None:
    """Add a fault for each repeated key; raises BadInput without a collector."""
    faults = Faults() if repeats is None else repeats
    for path in paths:
        faults.add(path, "is given twice")
    if repeats is None:
        faults.check()


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB"


def _why(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


# ------------------------------------------------------------------------------------------------------------- JSON


class _RepeatedKeys(dict[str, Any]):
    """A mapping with its repeated keys."""

    repeats: tuple[str, ...] = ()


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) == len(pairs):
        return mapping
    times = Counter(key for key, _ in pairs)
    mapping_with_repeats = _RepeatedKeys(mapping)
    mapping_with_repeats.repeats = tuple(key for key in mapping if times[key] > 1)
    return mapping_with_repeats


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of more than {MOST_DIGITS} digits")
    return int(digits)


def _decimal(digits: str) -> float:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number of more than {MOST_DIGITS} digits")
    return float(digits)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _repeats_in_value(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    if isinstance(value, _RepeatedKeys):
        yield from ((*keys, key) for key in value.repeats)
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _repeats_in_value(inner, (*keys, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _repeats_in_value(inner, (*keys, i))


# ------------------------------------------------------------------------------------------------------------- YAML


class _Loader(yaml.SafeLoader):
    """Safe YAML within limits: times and `1:30` stay text, `1e-3` is a number."""

    limits = _OWN_FILE
    #: Values so far, with aliases expanded: a few lines of aliases can expand to a billion values.
    expanded = 0
    _values = _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """The next node; raises BadInput at the limits, before reading further."""
        self._values += 1
        if self._values > self.limits.values:
            raise too_many_values(self.limits)
        if not self.check_event(yaml.MappingStartEvent, yaml.SequenceStartEvent):
            return super().compose_node(parent, index)
        self._depth += 1
        check_depth(self._depth, self.limits)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, yaml.MappingNode):
            check_keys(len(node.value), self.limits)
            for key, _ in node.value:
                check_key(len(key.value) if isinstance(key, yaml.ScalarNode) else 0, self.limits)
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """The tag of a value without an explicit one."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return "tag:yaml.org,2002:str" if tag.endswith((":int", ":float")) and ":" in value else tag


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _number(construct: Callable[[_Loader, Any], Any]) -> Callable[[_Loader, Any], Any]:
    """*construct* with a limit on the number of digits."""

    def constructed(loader: _Loader, node: Any) -> Any:
        if len(str(node.value)) > MOST_DIGITS:
            raise ValueError(f"a number of more than {MOST_DIGITS} digits in line {node.start_mark.line + 1}")
        return construct(loader, node)

    return constructed


_Loader.add_constructor("tag:yaml.org,2002:int", _number(_Loader.construct_yaml_int))
_Loader.add_constructor("tag:yaml.org,2002:float", _number(_Loader.construct_yaml_float))


def _expanded_size(root: yaml.Node | None) -> int:
    """The number of values with aliases expanded; ValueError for a recursive alias."""
    sizes: dict[int, int] = {}
    within: set[int] = set()

    def size(node: Any) -> int:
        if isinstance(node, yaml.ScalarNode) or node is None:
            return 1
        key = id(node)
        if key in sizes:
            return sizes[key]
        if key in within:
            raise ValueError("a value contains itself")
        within.add(key)
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        sizes[key] = 1 + sum(map(size, parts))
        within.remove(key)
        return sizes[key]

    return size(root)


def _repeats_in_node(root: yaml.Node | None) -> Iterator[Keys]:
    stack: list[tuple[Keys, yaml.Node | None]] = [((), root)]
    seen: set[int] = set()  # aliases can make a node part of itself or of several nodes
    while stack:
        keys, node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names: set[str] = set()
            children: list[tuple[Keys, yaml.Node | None]] = []
            for key, value in node.value:
                name = str(key.value)
                if name in names:
                    yield (*keys, name)
                names.add(name)
                children.append(((*keys, name), value))
            stack += reversed(children)
        elif isinstance(node, yaml.SequenceNode):
            stack += reversed([((*keys, i), value) for i, value in enumerate(node.value)])
