"""The job as a document that amlt reads: the merged template, what aj resolved laid over it, dollars escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping

from aj.shared.job.command import preamble
from aj.shared.jsonio import Json
from aj.shared.model import JobSpec

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
    if spec.sku is not None:
        job["sku"] = spec.sku
    return job


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
