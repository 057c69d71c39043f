"""How template, flags and command become one JobSpec, whatever the backend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aj.shared.errors import ShapeError, TemplateError, UnknownServiceError
from aj.shared.job.command import DOUBLED_DOLLARS, SINGLE_DOLLARS, command_text, command_words, doubles_dollars
from aj.shared.job.environment import check_string, job_environment
from aj.shared.job.naming import stable_identity
from aj.shared.jsonio import Json, at, dotted, parts
from aj.shared.model import Identity, JobSpec, MergedTemplate, Mount, Notice, Shape
from aj.shared.sku import parse_sku, resolve_sku
from aj.shared.spec import Description, describe, job_name
from aj.shared.template.template import Template

_ENV = ("jobs", 0, "submit_args", "env")
_ABSENT = object()
_IN_A_SCRIPT = "put it into a script file, which travels with the code"


@dataclass(frozen=True, slots=True)
class Invocation:
    """One command line: COMMAND and its arguments, where it was typed, and the flags; None for a flag not given."""

    argv: tuple[str, ...]
    cwd: Path
    nodes: int | None = None
    processes: int | None = None
    processes_per_node: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """What `--env` gave, see `environment.parse_env`."""
    via: str | None = None
    """See `JobSpec.via`."""


@dataclass(frozen=True, slots=True)
class Built:
    """A job, and what its author should know about it."""

    spec: JobSpec
    warnings: tuple[Notice, ...]


def build_spec(template: Template, call: Invocation, identity: Identity) -> Built:
    """The job of `call` under `identity`: pure, the same for run, plan and dry run.

    `UnknownServiceError`, `ShapeError`, `CommandError` and `TemplateError` at the flag or the template's line.
    """
    description = _description(template)
    options = description.build_spec_backend(template)
    name = job_name(description, options, identity)
    shape = _shape(template, call, description)
    stable = {**stable_identity(identity, name), **_stable_shape(template, shape)}
    spec = JobSpec(
        service=description.service,
        identity=identity,
        name=name,
        shape=shape,
        # A shape that the template fixes by other means leaves nothing for a SKU to say.
        sku=None if description.shape(template) else _sku(template, shape),
        image=template.get("environment", "image"),
        registry=template.get("environment", "registry"),
        setup=_setup(template),
        command=_command(template, call),
        argv=call.argv,
        env=_environment(template, call, stable),
        secret_env=tuple(sorted(call.env)),
        storage=tuple(_mounts(template)),
        ignore=tuple(template.get("code", "ignore", default=())),
        timeout_seconds=template.get("jobs", 0, "submit_args", "max_run_duration_seconds"),
        description=template.get("description"),
        backend_spec=options,
        extra=template.get("_extra", default={}),
        template=MergedTemplate(name=template.name, raw=template.raw, sources=template.sources),
        via=call.via,
    )
    spec = description.complete(spec, template) if call.via is None else spec
    checked = tuple(description.check_spec(template, spec))
    fields = (_unused(template, description), _unmountable(template)) if call.via is None else ()
    own = (_renamed(spec), *fields, checked, _overridden(template, stable), _dollars(template))
    return Built(spec, (*template.notices, *(notice for notices in own for notice in notices)))


def _description(template: Template) -> Description:
    try:
        return describe(template.service)
    except UnknownServiceError as error:
        where = template.where("target", "service")
        raise UnknownServiceError(error.message, where=where, hint=error.hint) from None


def _shape(template: Template, call: Invocation, description: Description) -> Shape:
    flags = {"-n": call.nodes, "-p": call.processes, "--ppn": call.processes_per_node}
    fixed = description.shape(template)
    if fixed is not None:
        if given := ", ".join(f"`{flag}`" for flag, value in flags.items() if value is not None):
            hint = f"omit {given}"
            raise ShapeError(f"{given}: the template itself fixes the shape", where=str(template.path), hint=hint)
        if call.via is not None:
            message = f"`{call.via}` cannot run a template that itself fixes the shape of the job"
            raise ShapeError(message, where=str(template.path), hint=f"leave `--{call.via}` out")
        return fixed
    nodes = _count(template, call.nodes, "-n", ("jobs", 0, "instance_count"))
    processes = _count(template, call.processes, "-p", ("target", "gpus_per_node"))
    return Shape(nodes, processes, _processes_per_node(template, call, nodes, processes))


def _processes_per_node(template: Template, call: Invocation, nodes: int, processes: int) -> int:
    """A template's two special values: -1 is one process per GPU, 0 is one on the head node alone."""
    key = ("jobs", 0, "process_count_per_node")
    if call.processes_per_node is not None:
        return _positive(call.processes_per_node, "--ppn", "--ppn")
    value = template.get(*key, default=1)
    if value == -1:
        return processes
    if value == 0 and nodes > 1:
        message = f"`{dotted(*key)}: 0` is one process on the head node alone, but the job has {nodes} nodes"
        raise ShapeError(
            message, where=template.where(*key), hint="write 1 for one process on each node, or give `-n 1`"
        )
    return _positive(value or 1, dotted(*key), template.where(*key))


def _count(template: Template, flag: int | None, name: str, key: tuple[str | int, ...]) -> int:
    if flag is not None:
        return _positive(flag, name, name)
    value, where = template.get(*key), template.where(*key)
    if value is None:
        hint = f"give `{name} N`, or set `{dotted(*key)}` in the template"
        raise ShapeError(f"neither `{name}` nor `{dotted(*key)}` says how many", where=where, hint=hint)
    return _positive(value, dotted(*key), where)


def _positive(value: Json, name: str, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ShapeError(f"`{name}` is `{value}`, but must be a whole number from 1 on", where=where)
    return value


def _stable_shape(template: Template, shape: Shape) -> dict[str, str]:
    return {
        "AJ_TEMPLATE": template.name,
        "AJ_NODES": str(shape.nodes),
        "AJ_GPUS_PER_NODE": str(shape.processes),
        "AJ_PROCESSES": str(shape.nodes * shape.processes),
        "AJ_PROCESSES_PER_NODE": str(shape.processes_per_node),
    }


def _sku(template: Template, shape: Shape) -> str | None:
    sku, where = template.get("jobs", 0, "sku"), template.where("jobs", 0, "sku")
    if sku is None:
        return None
    text = resolve_sku(sku, shape.nodes, shape.processes, where)
    parse_sku(text, where)  # a typo is refused on every backend, also where the SKU schedules nothing
    return text


def _setup(template: Template) -> tuple[str, ...]:
    lines = _texts(template.get("environment", "setup"))
    check_string("AJ_SETUP", "\n".join(lines), template.where("environment", "setup"), _IN_A_SCRIPT)
    return lines


def _command(template: Template, call: Invocation) -> str:
    entries = _texts(template.get("jobs", 0, "command"))
    check_string("AJ_COMMAND", command_text(entries, ()), template.where("jobs", 0, "command"), _IN_A_SCRIPT)
    text = command_text(entries, command_words(call.argv, call.cwd))
    check_string("AJ_COMMAND", text, "COMMAND", _IN_A_SCRIPT)
    return text


def _texts(value: Json) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _environment(template: Template, call: Invocation, stable: Mapping[str, str]) -> dict[str, str]:
    return job_environment(template.get(*_ENV, default={}), call.env, stable, lambda name: template.where(*_ENV, name))


def _mounts(template: Template) -> Iterator[Mount]:
    for name, storage in template.get("storage", default={}).items():
        if _mountable(storage):
            folder = storage.get("mount_dir", f"/mnt/{name}")
            _check_folder(folder, template.where("storage", name, "mount_dir"))
            yield Mount(name, storage["storage_account_name"], storage["container_name"], folder)


def _mountable(storage: Mapping[str, Json]) -> bool:
    return "storage_account_name" in storage and "container_name" in storage


def _check_folder(folder: str, where: str) -> None:
    names = folder.split("/")
    if names[0] or not any(names) or ".." in names or not folder.isprintable():
        raise TemplateError(
            f"`{folder!r}` is not an absolute path", where=where, hint="write for example `/mnt/outputs`"
        )


def _unmountable(template: Template) -> Iterator[Notice]:
    for name, storage in template.get("storage", default={}).items():
        if not _mountable(storage):
            message = f"`storage.{name}` is not mounted: it has no `storage_account_name` and `container_name`"
            yield Notice(message, template.where("storage", name), "give it both to mount it in the job")


def _unused(template: Template, description: Description) -> Iterator[Notice]:
    for pointer, reason in description.unused.items():
        if at(template.raw, pointer, _ABSENT) is not _ABSENT:
            path = parts(pointer)
            yield Notice(f"`{dotted(*path)}` has no effect: {reason}", template.where(*path))


def _overridden(template: Template, stable: Mapping[str, str]) -> Iterator[Notice]:
    for name in template.get(*_ENV, default={}):
        if name in stable:
            yield Notice(f"`{name}` has no effect: aj sets it", template.where(*_ENV, name), "remove it")


def _dollars(template: Template) -> Iterator[Notice]:
    places: list[tuple[str | int, ...]] = [("environment", "setup"), ("jobs", 0, "command")]
    for place in (*places, *((*_ENV, name) for name in template.get(*_ENV, default={}))):
        if doubles_dollars(_texts(template.get(*place))):
            yield Notice(f"`{dotted(*place)}` {DOUBLED_DOLLARS}", template.where(*place), SINGLE_DOLLARS)


def _renamed(spec: JobSpec) -> Iterator[Notice]:
    wanted = f"{spec.identity.base}_{spec.identity.id}"
    if re.sub("[-_. ]", "-", wanted.lower()) != re.sub("[-_. ]", "-", spec.name.lower()):
        yield Notice(
            f"`{wanted}` is not a legal name there, the job is called `{spec.name}`", hint="AJ_NAME sets another"
        )
