"""How two templates become one: the merge table, with the place that every value came from carried along."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from aj.shared.jsonio import Json, pointer
from aj.shared.yaml import Document, Mark

Path = tuple[str | int, ...]
"""Keys and indices from the top of a template's config."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written."""

    mark: Mark
    chain: tuple[str, ...]
    """The files from the leaf down to the one whose value won."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value that knows where it was written: a scalar, or a mapping or tuple of sourced values; never changed."""

    value: Json
    origin: Origin

    @property
    def is_map(self) -> bool:
        return isinstance(self.value, Mapping)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, tuple)


def merge(base: Sourced, over: Sourced) -> Sourced:
    """`over` laid on `base`, by the kinds of the two values at one key.

    Mappings merge key by key. Two lists, one of which holds a mapping, merge by index and keep what has no partner;
    two lists of scalars are joined. Everything else is replaced, by null too, which then means "unset".
    """
    if base.is_map and over.is_map:
        items = dict(base.value)
        for key, item in over.value.items():
            items[key] = merge(items[key], item) if key in items else item
        return Sourced(items, over.origin)
    if base.is_list and over.is_list:
        both = (*base.value, *over.value)
        if any(item.is_map for item in both):
            merged = tuple(merge(low, high) for low, high in zip(base.value, over.value, strict=False))
            rest = base.value[len(merged) :] + over.value[len(merged) :]
            return Sourced(merged + rest, over.origin)
        if not any(item.is_list for item in both):
            return Sourced(both, over.origin)
    return over


def sourced(document: Document, key: str, chain: tuple[str, ...]) -> Sourced:
    """The value at a top-level key of a file as a tree of sourced values; env values become their exact spelling."""
    top = pointer(key)

    def convert(value: Json, where: str) -> Sourced:
        origin = Origin(document.marks[where], chain)
        if isinstance(value, dict):
            return Sourced({key: convert(item, where + pointer(key)) for key, item in value.items()}, origin)
        if isinstance(value, list):
            return Sourced(tuple(convert(item, f"{where}/{index}") for index, item in enumerate(value)), origin)
        if value is not None and _ENV.fullmatch(where.removeprefix(top)):
            return Sourced(document.spelling.get(where, value), origin)
        return Sourced(value, origin)

    return convert(document.value[key], top)


_ENV = re.compile(
    "/(?:jobs/[0-9]+/submit_args/env|environment/env|env_defaults|search/job_template/submit_args/env"
    "|_extra/volcano/tasks/[^/]+/env)/[^/]*"
)
"""Where a template holds a variable of an environment, below its config."""


def set_values(tree: Sourced) -> tuple[Json, dict[str, Origin]]:
    """The tree as a value that shares nothing with anything, and the origin of each part by JSON pointer.

    What is null is unset: its key or item is left out, except under `_extra`, which stays as written.
    """
    return _values(tree, lambda path, item: item.value is not None or _is_verbatim(path))


def written_values(tree: Sourced) -> tuple[Json, dict[str, Origin]]:
    """The same with the keys that null unset, so that a misspelt one can be found."""
    return _values(tree, lambda path, item: item.value is not None or _is_verbatim(path) or isinstance(path[-1], str))


def _is_verbatim(path: Path) -> bool:
    return len(path) > 1 and path[0] == "_extra"


def _values(tree: Sourced, keeps: Callable[[Path, Sourced], bool]) -> tuple[Json, dict[str, Origin]]:
    origins: dict[str, Origin] = {}

    def value(node: Sourced, path: Path) -> Json:
        origins[pointer(*path)] = node.origin
        if node.is_map:
            return {key: value(item, (*path, key)) for key, item in node.value.items() if keeps((*path, key), item)}
        if node.is_list:
            kept = [item for index, item in enumerate(node.value) if keeps((*path, index), item)]
            return [value(item, (*path, index)) for index, item in enumerate(kept)]
        return node.value

    return value(tree, ()), origins


def repeated(tree: Sourced, path: Path = ()) -> Iterator[tuple[Path, Mark]]:
    """Each list that holds an item twice, since two ways lead to its file: the list's path, the item's place."""
    if tree.is_list and not any(item.is_map for item in tree.value):
        times = Counter(item.origin.mark for item in tree.value)
        yield from ((path, mark) for mark, count in times.most_common(1) if count > 1)
    for key, item in tree.value.items() if tree.is_map else enumerate(tree.value) if tree.is_list else ():
        yield from repeated(item, (*path, key))
