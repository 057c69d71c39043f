"""Which files make a template: names to paths under AJ_HOME, bases read once and folded, cycles and gaps named."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from aj.shared.errors import TemplateError
from aj.shared.jsonio import Json, pointer, sha256
from aj.shared.model import Notice, Source
from aj.shared.paths import Home
from aj.shared.schema import close_match
from aj.shared.template.merge import Origin, Sourced, merge, sourced
from aj.shared.yaml import Document, Mark, load

CHAIN_LIMIT = 250
"""Files from a leaf to its deepest base."""

MERGE_LIMIT = 2000
"""Files merged for one leaf, each counted as often as a way leads to it."""


@dataclass(frozen=True, slots=True)
class TemplateFile:
    """One file under AJ_HOME, read and checked for the shape of a template: `base` and `config`."""

    name: str
    """As a `base` of a leaf would spell it."""
    shown: str
    """Its path as in marks."""
    source: Source
    document: Document
    base: Json
    """As written: null, a name or a list of names."""

    @property
    def is_leaf(self) -> bool:
        """A file with a `base` key, even an empty one; any other is a fragment."""
        return "base" in self.document.value

    @property
    def bases(self) -> list[tuple[str, Mark]]:
        """The names in `base` and where each is written."""
        marks = self.document.marks
        if isinstance(self.base, str):
            return [(self.base, marks["/base"])]
        return [(name, marks[f"/base/{index}"]) for index, name in enumerate(self.base or ())]


class Resolver:
    """Reads the files of one AJ_HOME, each once; what it read stays in `files`, by real path in order of reading."""

    def __init__(self, home: Home) -> None:
        self.files: dict[str, TemplateFile] = {}
        self._home = home
        self._merged = 0

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(file.source for file in self.files.values())

    @property
    def notices(self) -> tuple[Notice, ...]:
        return tuple(notice for file in self.files.values() for notice in file.document.notices)

    def leaf_path(self, name: str) -> Path:
        """The leaf or fragment `template/<name>.yaml`; `TemplateError` with near names when there is none."""
        folder = self._home.templates
        path = folder / f"{name}.yaml"
        if _is_file_name(name) and _is_file(path):
            return path
        if not self._home.root.is_dir():
            raise TemplateError(f"there is no `{shown_path(self._home.root)}`", hint="`aj init` makes one")
        raise TemplateError(f"unknown template `{name}`", where=shown_path(folder), hint=_near(name, folder, ""))

    def file(self, path: Path, asked: Mark | None = None) -> TemplateFile:
        """The file at `path`; `asked` is the place of the `base` that names it."""
        real = os.path.realpath(path)
        if real not in self.files:
            self.files[real] = _read(path, self._home, asked)
        return self.files[real]

    def fold(self, path: Path) -> Sourced:
        """The file's config laid on its bases, each resolved in the same way, from left to right."""
        self._merged = 0
        return self._fold(path, None, {})

    def _fold(self, path: Path, asked: Mark | None, above: Mapping[str, str]) -> Sourced:
        """`above` is the way here: real path to name, from the leaf on."""
        real, name = os.path.realpath(path), _name(path, self._home)
        if real in above:
            same = "" if above[real] == name else f" (the same file as `{above[real]}`)"
            text = f"the bases form a cycle: {' → '.join((*above.values(), name))}{same}"
            raise TemplateError(text, where=str(asked), hint="take one of these `base` entries out")
        self._merged += 1
        if len(above) >= CHAIN_LIMIT:
            raise TemplateError(f"a chain of more than {CHAIN_LIMIT} bases", where=str(asked), hint="join some of them")
        if self._merged > MERGE_LIMIT:
            raise TemplateError(f"more than {MERGE_LIMIT} bases to merge", where=str(asked), hint="join some of them")
        file = self.file(path, asked)
        way = {**above, real: name}
        below = [self._fold(self._base_path(base, mark, path.parent), mark, way) for base, mark in file.bases]
        return reduce(merge, (*below, _own(file, tuple(self.files[each].shown for each in way))))

    def _base_path(self, base: str, asked: Mark, beside: Path) -> Path:
        """`plain` lies beside the file that asks, `dir.name` is `AJ_HOME/dir/name.yaml`."""
        first, dot, rest = base.partition(".")
        folder, name = (self._home.root / first, rest) if dot else (beside, base)
        if not _is_file_name(name) or (dot and not _is_file_name(first)):
            hint = "write `name` for a file beside this one, or `dir.name` for `dir/name.yaml` in AJ_HOME"
            raise TemplateError(f"`{base}` is not the name of a template", where=str(asked), hint=hint)
        path = folder / f"{name}.yaml"
        if not os.path.lexists(path):
            message = f"base `{base}` is missing: there is no `{shown_path(path)}`"
            raise TemplateError(message, where=str(asked), hint=_near(name, folder, f"{first}." if dot else ""))
        return path


def shown_path(path: Path) -> str:
    """A path as a user would type it: relative to the current folder when it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _read(path: Path, home: Home, asked: Mark | None) -> TemplateFile:
    shown = shown_path(path)
    where = str(asked) if asked else shown
    if not _is_file(path):
        raise TemplateError(f"`{shown}` is not a file that can be read", where=where)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TemplateError(f"`{shown}` cannot be read: {error.strerror}", where=where) from None
    document = load(content, shown)
    _check_shape(document)
    source = Source(path.relative_to(home.root).as_posix(), sha256(content))
    return TemplateFile(_name(path, home), shown, source, document, document.value.get("base"))


def _check_shape(document: Document) -> None:
    value, marks = document.value, document.marks
    if not isinstance(value, dict):
        raise TemplateError("a template is a mapping with the keys `base` and `config`", where=str(marks[""]))
    for key in value:
        if key not in ("base", "config"):
            close = _MEANT.get(key) or close_match(key, ("base", "config"))
            hint = f"did you mean `{close}`?" if close else f"put `{key}` under `config`"
            raise TemplateError(f"unknown key `{key}` beside `config`", where=str(marks[pointer(key)]), hint=hint)
    base = value.get("base")
    if base is not None and not all(isinstance(name, str) for name in (base if isinstance(base, list) else [base])):
        hint = "write one name, a list of names, or leave it empty"
        raise TemplateError("`base` is neither a name nor a list of names", where=str(marks["/base"]), hint=hint)
    if not isinstance(value.get("config", {}), dict | None):
        hint = "indent its keys below it"
        raise TemplateError("`config` is not a mapping", where=str(marks["/config"]), hint=hint)


_MEANT = {"extends": "base", "inherits": "base", "bases": "base"}


def _own(file: TemplateFile, chain: tuple[str, ...]) -> Sourced:
    if file.document.value.get("config") is not None:
        return sourced(file.document, "config", chain)
    return Sourced({}, Origin(file.document.marks.get("/config", Mark(file.shown, 1, 1)), chain))


def _name(path: Path, home: Home) -> str:
    return path.stem if path.parent == home.templates else f"{path.parent.name}.{path.stem}"


def _is_file_name(name: str) -> bool:
    """Whether `name` stays in its folder and can be printed."""
    return re.fullmatch(r"[^/\x00-\x1f\x7f]+", name) is not None and len(os.fsencode(name)) < 240


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def _near(name: str, folder: Path, prefix: str) -> str:
    """What to write instead of a name that is not in `folder`."""
    shown = shown_path(folder)
    if not folder.is_dir():
        return f"there is no folder `{shown}`"
    if _is_file_name(name) and _is_file(folder / f"{name}.yml"):
        return f"rename `{shown}/{name}.yml` to `{name}.yaml`"
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    if name.removesuffix(".yaml") in names:
        return f"write the name without `.yaml`: `{prefix}{name.removesuffix('.yaml')}`"
    if close := close_match(name, names):
        return f"did you mean `{prefix}{close}`?"
    listed = ", ".join(f"`{prefix}{each}`" for each in names[:10])
    return f"`{shown}` has {listed}" if listed else f"`{shown}` has no template yet"
