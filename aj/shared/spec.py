"""The registry of backend descriptions, and JobSpec's way to JSON and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aj.shared.job.naming import stable_identity
from aj.shared.model import Identity, JobSpec, Notice, Options, Shape, from_json, to_json
from aj.shared.registry import Registry

if TYPE_CHECKING:
    from aj.shared.template.template import Template


@dataclass(frozen=True, slots=True)
class Description:
    """The pure half of a backend. Execution is registered in `aj.server.submit`."""

    service: str
    build_spec_backend: Callable[[Template], Options]
    """Typed options from the merged template; `TemplateError` at the field that is wrong."""
    load_spec_backend: Callable[[Mapping[str, Any]], Options]
    """The same options from their JSON."""
    normalize_job_name: Callable[[str], str]
    """A legal remote name from `<base>_<8 hex>`; truncation never cuts the id."""
    unused: Mapping[str, str]
    """JSON pointers of template fields without effect here, with the reason: each present one is a warning."""
    shorten: Callable[[str, Options], str] = lambda name, options: name
    """A legal name within what the options leave of its length, the id kept."""
    shape: Callable[[Template], Shape | None] = lambda template: None
    """A shape that the template fixes by other means than the common fields, else None."""
    check_spec: Callable[[Template, JobSpec], Iterable[Notice]] = lambda template, spec: ()
    """What only the whole job shows: refuses, for example, a SKU for another shape, at the template's line."""
    complete: Callable[[JobSpec, Template], JobSpec] = lambda spec, template: spec
    """The job with what its options take from shape and command; `InputError` where that cannot be sent."""
    uploads: tuple[str, ...] = ()
    """What must lie at a remote before a submission: names out of `code`, `bootstrap`."""
    upload_limit: int | None = None
    """Bytes of one upload at most."""
    folder: Path | None = None
    """The backend's own declarative folder; None for `backends/<service>` of aj."""
    attached: bool = False
    """Whether a job belongs to the terminal that ran it: `aj run` follows it, and Ctrl-C there ends it."""

    managed: bool = True
    """Whether `aj job` knows its jobs; else other tools do, which the note of a submission names."""

    @property
    def payload_schema(self) -> str:
        """The schema of this backend's payloads: a name among aj's own, or a file of the backend's folder."""
        return f"payload-{self.service}" if self.folder is None else str(self.folder / "payload.schema.json")


_DESCRIPTIONS = Registry(
    Description,
    {service: f"aj.shared.opts.{service}:DESCRIPTION" for service in ("aml", "local", "sing", "volcano")},
    "aj.backends",
    "unknown service",
)
"""Third parties register the daemon's half under `aj.executions`."""
describe = _DESCRIPTIONS.get
"""The description registered for `target.service`; `UnknownServiceError` lists the registered ones."""
services = _DESCRIPTIONS.names
"""The names of all registered services, sorted."""


def job_name(description: Description, options: Options, identity: Identity) -> str:
    """The remote name: base and id, legal for the backend and short enough for the job's options."""
    return description.shorten(description.normalize_job_name(f"{identity.base}_{identity.id}"), options)


def seal(spec: JobSpec, identity: Identity) -> JobSpec:
    """The same job under another identity: name and AJ_NAME, AJ_ID, AJ_SUBMIT_TIMESTAMP_UTC follow, nothing else."""
    name = job_name(describe(spec.service), spec.backend_spec, identity)
    return replace(spec, identity=identity, name=name, env={**spec.env, **stable_identity(identity, name)})


def symbolic(spec: JobSpec) -> JobSpec:
    """The job as its payload digest and its snapshots see it."""
    return seal(spec, Identity.symbolic(spec.template.name))


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """The `jobspec` document (schemas/jobspec.schema.json)."""
    document = to_json(spec)
    assert isinstance(document, dict)
    return document


def spec_from_json(document: Mapping[str, Any]) -> JobSpec:
    """The inverse of `spec_to_json`, with `backend_spec` typed by its service."""
    spec = from_json(JobSpec, document)
    return replace(spec, backend_spec=describe(spec.service).load_spec_backend(document["backend_spec"]))
