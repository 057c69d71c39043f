"""A template as the rest of aj sees it: one merged config, checked, that knows where each of its values was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from aj.shared.errors import TemplateError
from aj.shared.jsonio import Json, at, dotted, pointer
from aj.shared.model import Notice, Source
from aj.shared.paths import Home
from aj.shared.schema import violations
from aj.shared.template.merge import Origin, Sourced, repeated, set_values, written_values
from aj.shared.template.resolve import Resolver, shown_path
from aj.shared.yaml import Mark

DEFAULT_SERVICE = "aml"


@dataclass(frozen=True, slots=True)
class Template:
    """A leaf with its bases merged in."""

    name: str
    path: Path
    raw: Mapping[str, Json]
    """The merged config: env values as spelled, what null unset left out (except under `_extra`)."""
    provenance: Mapping[str, Origin]
    """By JSON pointer, for every scalar and container of `raw`."""
    sources: tuple[Source, ...]
    """The leaf, then its bases in the order in which they were read; paths relative to AJ_HOME."""
    notices: tuple[Notice, ...]
    base: Json = None
    """As the leaf has it: null, a name or a list of names."""

    @property
    def service(self) -> str:
        """The name of the backend."""
        return str(self.get("target", "service", default=DEFAULT_SERVICE))

    def get(self, *parts: str | int, default: Any = None) -> Any:
        """The value at a path of keys and indices, or `default` where there is none."""
        return at(self.raw, pointer(*parts), default)

    def where(self, *parts: str | int) -> str:
        """`file:line:col` of the value at a path, or of the nearest thing above it; the file where nothing is."""
        return str(_nearest(self.provenance, pointer(*parts)) or self.path)


@dataclass(frozen=True, slots=True)
class Listing:
    """A leaf as `aj template list` shows it; where it cannot be resolved `service` is None and `issue` says why."""

    name: str
    path: Path
    base: Json
    service: str | None
    issue: Notice | None = None


def load_template(home: Home, name: str) -> Template:
    """The leaf `template/<name>.yaml`, resolved, merged and strictly checked.

    `TemplateError` at the first fault in the order of the files' text; its hint says how many more there are.
    """
    resolver, path, tree = _leaf(home, name)
    issues = _issues(tree)
    if issues:
        first, more = issues[0], len(issues) - 1
        rest = f"{more} more: `aj template validate {name}` lists them" if more else None
        hint = "; ".join(part for part in (first.hint, rest) if part)
        raise TemplateError(first.message, where=first.where, hint=hint or None)
    return _template(name, resolver, path, tree)


def resolve_template(home: Home, name: str) -> Template:
    """The same without the check of its fields, for those who only look at it."""
    return _template(name, *_leaf(home, name))


def check_template(home: Home, name: str) -> list[Notice]:
    """All that is wrong with `template/<name>.yaml`; a fragment is only checked as YAML, for its leaves complete it."""
    resolver = Resolver(home)
    try:
        path = resolver.leaf_path(name)
        return _issues(resolver.fold(path)) if resolver.file(path).is_leaf else []
    except TemplateError as error:
        return [Notice(error.message, error.where, error.hint)]


def template_names(home: Home) -> list[str]:
    """The names of the leaves, sorted; a file that cannot be read counts as one, so that its fault is met."""
    return [listing.name for listing in list_templates(home)]


def list_templates(home: Home) -> list[Listing]:
    """The leaves of AJ_HOME by name, each with what it is built on and where it runs."""
    resolver = Resolver(home)
    found = (_listing(resolver, path) for path in sorted(home.templates.glob("*.yaml")))
    return [listing for listing in found if listing is not None]


def _listing(resolver: Resolver, path: Path) -> Listing | None:
    base: Json = None
    try:
        file = resolver.file(path)
        base = file.base
        if not file.is_leaf:
            return None
        raw, _ = set_values(resolver.fold(path))
    except TemplateError as error:
        return Listing(path.stem, path, base, None, Notice(error.message, error.where, error.hint))
    return Listing(path.stem, path, base, str(at(raw, "/target/service", DEFAULT_SERVICE)))


def _leaf(home: Home, name: str) -> tuple[Resolver, Path, Sourced]:
    resolver = Resolver(home)
    path = resolver.leaf_path(name)
    if not resolver.file(path).is_leaf:
        hint = "write `base:` at its top to make it a leaf, or name a leaf that has it as a base"
        raise TemplateError(f"`{name}` is a fragment: it has no `base` key", where=shown_path(path), hint=hint)
    return resolver, path, resolver.fold(path)


def _template(name: str, resolver: Resolver, path: Path, tree: Sourced) -> Template:
    raw, provenance = set_values(tree)
    notices = (*resolver.notices, *_repetitions(tree))
    return Template(name, path, raw, provenance, resolver.sources, notices, resolver.file(path).base)


def _repetitions(tree: Sourced) -> list[Notice]:
    return [
        Notice(
            f"`{dotted(*path)}` holds items twice, because their file is reached in two ways",
            where=str(mark),
            hint="name the file once among the bases",
        )
        for path, mark in repeated(tree)
    ]


def _issues(tree: Sourced) -> list[Notice]:
    """What the schema says about the merged config, in the order of the files' text."""
    value, origins = written_values(tree)
    found = []
    for violation in violations({"config": value}, "template"):
        mark = _nearest(origins, violation.pointer.removeprefix("/config")) or tree.origin.mark
        found.append((mark, Notice(violation.message, str(mark), violation.hint)))
    return [issue for _, issue in sorted(found, key=lambda each: astuple(each[0]))]


def _nearest(origins: Mapping[str, Origin], where: str) -> Mark | None:
    while where and where not in origins:
        where = where.rpartition("/")[0]
    return origins[where].mark if where in origins else None
