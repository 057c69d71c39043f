"""The job as a document that amlt reads: the merged template, what aj resolved laid over it, dollars escaped."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aj.shared.errors import ShapeError, TemplateError
from aj.shared.job.command import preamble
from aj.shared.jsonio import Json
from aj.shared.model import JobSpec
from aj.shared.paths import Home
from aj.shared.sku import check_shape, parse_sku
from aj.shared.template.template import Template

NAME = "amlt"
"""`JobSpec.via` of a job that amlt submits."""
MISSING = "install it as its documentation says, so that `amlt --version` works; `aj init amlt` checks it"
"""The way out where the program is not found."""
_SERVICES = {"sing": "singularity"}
_OWN_TARGET_FIELDS = (
    *("gpus_per_node", "cpus_per_node", "memory", "rdma"),
    *("namespace", "context", "priority_class", "labels"),
)
_PATH_FIELDS = (
    re.compile(r"/code/local_dir"),
    re.compile(r"/storage/[^/]*/local_dir"),
    re.compile(r"/environment/conda_yaml_file"),
)
_DOLLAR_OF_A_PATH = re.compile(r"\$(?!CONFIG_DIR(?![A-Za-z0-9_])|\{CONFIG_DIR\})")


def amlt_document(spec: JobSpec) -> dict[str, Json]:
    """The document of a dry run and of amlt's own submission; pure.

    amlt puts the caller's variables in place of each `$NAME` and reads `$$` as `$`: so every `$` of keys and
    values is doubled, but for amlt's own `$CONFIG_DIR` in paths.
    """
    escaped = _escaped(overlaid(spec), "")
    assert isinstance(escaped, dict)
    return escaped


def payload(spec: JobSpec) -> dict[str, Json]:
    """The document as it is submitted, checked by its schema: `PayloadError`, and `ShapeError` for the SKU."""
    from aj.shared.schema import check

    document = amlt_document(spec)
    check(document, "payload-amlt", f"the amlt document of `{spec.name}`")
    return document


def review(template: Template, spec: JobSpec) -> None:
    """Refuse, at the template's line, a job that amlt cannot run: `TemplateError`, `ShapeError`."""
    if spec.image is None:
        where = template.where("environment", "image")
        raise TemplateError("amlt needs an image", where=where, hint="set `environment.image` in the template")
    _sku(spec, template.where("jobs", 0, "sku"))


def with_code(document: Mapping[str, Json], file: Path, cwd: Path, home: Home) -> dict[str, Json]:
    """The document, to be written to `file`, with `cwd` as its code where the template leaves that open.

    What aj itself keeps in AJ_HOME stays behind: values of earlier jobs are in it.
    """
    code = document.get("code", {})
    if "local_dir" in code:
        return dict(document)
    folder = os.path.relpath(cwd, file.parent).replace("$", "$$")
    private = (home.build, home.daemon, home.dryrun, home.logs, home.submission, home.record)
    hidden = [path.relative_to(cwd).as_posix().replace("$", "$$") for path in private if path.is_relative_to(cwd)]
    return {**document, "code": {"local_dir": f"$CONFIG_DIR/{folder}", "ignore": [*code.get("ignore", ()), *hidden]}}


def overlaid(spec: JobSpec) -> dict[str, Json]:
    """What the document says once amlt has read it: the template with aj's resolved fields, without aj's own."""
    document = {key: value for key, value in spec.template.raw.items() if key != "_extra"}
    target = {key: value for key, value in document.get("target", {}).items() if key not in _OWN_TARGET_FIELDS}
    document["target"] = {**target, "service": _SERVICES.get(spec.service, spec.service)}
    first = document["jobs"][0] if document.get("jobs") else {}
    document["jobs"] = [_job(spec, first)]
    return document


def _job(spec: JobSpec, written: Mapping[str, Json]) -> dict[str, Json]:
    job = {key: _in_its_case(key, value) for key, value in written.items() if key != "instance_count"}
    job["name"] = spec.name
    job["command"] = _lines(spec, written.get("command", ()))
    job["process_count_per_node"] = spec.shape.processes_per_node
    job["submit_args"] = _submit_args(spec, job.get("submit_args", {}))
    if (sku := _sku(spec, f"`jobs[0].sku` of template `{spec.template.name}`")) is not None:
        job["sku"] = sku
    return job


def _sku(spec: JobSpec, where: str) -> str | None:
    """amlt hears of the number of nodes from the SKU alone; what is only shown may be no SKU at all."""
    nodes = spec.shape.nodes
    if spec.sku is None:
        if spec.via and nodes > 1:
            hint = "set `jobs[0].sku`, for example `{nodes}xG{processes}`"
            raise ShapeError(f"without a SKU amlt takes one node, but the job has {nodes}", where=where, hint=hint)
        return None
    try:
        sku = parse_sku(spec.sku, where)
        check_shape(sku, nodes, spec.shape.processes, where)
    except ShapeError:
        if spec.via:
            raise
        return spec.sku
    return spec.sku if sku.nodes or nodes == 1 else str(replace(sku, nodes=nodes))


def _in_its_case(key: str, value: Json) -> Json:
    """amlt knows `high` and `High`, where aj takes any case."""
    return value[:1] + value[1:].lower() if key in ("identity", "sla_tier", "priority") else value


def _submit_args(spec: JobSpec, written: Mapping[str, Json]) -> dict[str, Json]:
    args = {**written, "env": dict(spec.env)}
    if "container_args" in args:
        texts = ("user", "shm_size")
        args["container_args"] = {k: str(v) if k in texts else v for k, v in args["container_args"].items()}
    return args


def _lines(spec: JobSpec, written: Json) -> list[str]:
    """The template's entries and the user's command as entries of one list, which amlt runs in one shell."""
    first = preamble((written,) if isinstance(written, str) else tuple(written))
    return [*first, spec.command.removeprefix("".join(line + "\n" for line in first))]


def _escaped(value: Json, place: str) -> Json:
    if isinstance(value, str):
        if any(field.fullmatch(place) for field in _PATH_FIELDS):
            return _DOLLAR_OF_A_PATH.sub("$$", value)
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {key.replace("$", "$$"): _escaped(item, f"{place}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item, f"{place}/-") for item in value]
    return value
