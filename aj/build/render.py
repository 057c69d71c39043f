"""How payloads are rendered: a Jinja2 environment in which injection is impossible by construction."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aj.build.generated import bootstrap
from aj.shared import yaml
from aj.shared.errors import PayloadError
from aj.shared.job import amlt
from aj.shared.jsonio import Json, canonical, read_json, sha256
from aj.shared.model import ArchiveRecord, JobSpec, to_json
from aj.shared.paths import shipped
from aj.shared.schema import check
from aj.shared.spec import describe

if TYPE_CHECKING:
    from jinja2 import Environment

SYMBOLIC_ARCHIVE = ArchiveRecord(sha256="0" * 64, size=0, files=0, tree="0" * 64, format=0)
"""Stands for the code where a payload is rendered for review: snapshots do not follow every edit of the code."""

_UNSAFE_IN_YAML = re.compile("[^\\x20-\\x7e]")


def backend_folder(service: str) -> Path:
    """The declarative half of a backend: its payload template, scripts and symbolic facts."""
    return describe(service).folder or shipped("backends") / service


def render_payload(
    spec: JobSpec, facts: Json, archive: ArchiveRecord, provenance: Mapping[str, str] = MappingProxyType({})
) -> Json:
    """What the backend would send for `spec`, checked by its schema; `PayloadError` names template and line.

    Pure: equal arguments give an equal document on every machine. The template sees `spec`, `facts`, `archive`,
    `bootstrap` and `provenance` as plain JSON. Like identity, `provenance` (`git_commit`, `git_dirty`, `aj_version`) is
    part of what is sent and not of what is compared.
    """
    if spec.via == amlt.NAME:
        return amlt.payload(spec)
    script = {"sha256": "0" * 64 if archive is SYMBOLIC_ARCHIVE else sha256(bootstrap().read_bytes())}
    names = {"spec": to_json(spec), "facts": facts, "archive": to_json(archive), "bootstrap": script}
    names["provenance"] = dict(provenance)
    payload = render_document(spec.service, "payload.yaml.j2", names)
    check(payload, describe(spec.service).payload_schema, f"the {spec.service} payload of `{spec.name}`")
    return payload


def render_document(service: str, name: str, names: Mapping[str, Json]) -> Json:
    """A YAML document of the backend's folder, every expression spelled as JSON."""
    folder = backend_folder(service)
    return yaml.load(_render(folder, name, names).encode(), f"{folder.name}/{name}").value


def payload_sha256(payload: Json) -> str:
    """The digest by which payloads are compared: of the canonical spelling."""
    return sha256(canonical(payload))


def symbolic_facts(service: str) -> Json:
    """Placeholders, valid by the schema, for everything only a remote knows; `{}` where that is nothing."""
    path = backend_folder(service) / "facts.json"
    return read_json(path) if path.exists() else {}


def renderer(spec: JobSpec) -> str:
    """What renders the job's payload, as a word that changes with it."""
    return spec.via or backend_digest(spec.service)


@cache
def backend_digest(service: str) -> str:
    """A digest over the backend's folder: another template renders another payload."""
    folder = backend_folder(service)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    digests = {path.relative_to(folder).as_posix(): sha256(path.read_bytes()) for path in files}
    return sha256(canonical({**digests, "bootstrap": sha256(bootstrap().read_bytes())}))


def yaml_scalar(value: Any) -> str:
    """A value as JSON that every YAML reader reads back exactly.

    PyYAML joins no surrogate pairs and folds U+2028, so everything but printable ASCII is written as an escape.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _UNSAFE_IN_YAML.sub(lambda found: _escape(ord(found.group())), text)


def _escape(point: int) -> str:
    return f"\\U{point:08x}" if point > 0xFFFF else f"\\u{point:04x}"


def _render(folder: Path, name: str, names: Mapping[str, Json]) -> str:
    from jinja2 import TemplateError as JinjaError

    try:
        return _environment(folder).get_template(name).render(names)
    except JinjaError as error:
        line = getattr(error, "lineno", None)
        where = f"{name}:{line}" if line else name
        raise PayloadError(f"the backend's template cannot be rendered: {error}", where=where) from error


@cache
def _environment(folder: Path) -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined, Undefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def finalize(value: Any) -> str:
        if isinstance(value, Undefined):
            str(value)  # raises with the name that is missing
        return yaml_scalar(value)

    return ImmutableSandboxedEnvironment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        finalize=finalize,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
