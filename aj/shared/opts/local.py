"""The description of `local`: jobs that run on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from aj.shared.job.naming import fit_name
from aj.shared.model import from_json
from aj.shared.spec import Description
from aj.shared.template.template import Template


@dataclass(frozen=True, slots=True)
class LocalOpts:
    """Nothing to choose: a local job is its shape, command and environment."""


def build_spec_backend(template: Template) -> LocalOpts:
    """No field of a template is particular to local jobs."""
    del template
    return LocalOpts()


def normalize_job_name(name: str) -> str:
    """A folder's name: letters, digits, `_`, `.` and `-`, at most 128 bytes, the id kept."""
    return fit_name(name, allowed="A-Za-z0-9_.-", first="A-Za-z0-9_", limit=128)


DESCRIPTION = Description(
    service="local",
    build_spec_backend=build_spec_backend,
    load_spec_backend=partial(from_json, LocalOpts),
    normalize_job_name=normalize_job_name,
    attached=True,
    unused={
        "/environment/image": "a local job runs on this machine, not in an image",
        "/environment/registry": "a local job runs on this machine, not in an image",
        "/target/name": "a local job has no compute to choose",
        "/target/subscription_id": "a local job needs no Azure",
        "/target/resource_group": "a local job needs no Azure",
        "/target/workspace_name": "a local job needs no Azure",
        "/target/namespace": "a local job needs no cluster",
        "/target/queue": "a local job has no queue",
        "/target/context": "a local job needs no cluster",
        "/target/cpus_per_node": "a local job is not limited in CPUs",
        "/target/memory": "a local job is not limited in memory",
        "/target/rdma": "a local job uses what this machine has",
        "/target/priority_class": "a local job starts at once",
        "/target/labels": "a local job has no labels",
        "/storage": "a local job mounts nothing; it sees this machine's own folders",
        "/jobs/0/name": "a job is called by AJ_NAME, else by the folder and the script",
        "/jobs/0/sku": "a local job takes this machine as it is",
        "/jobs/0/identity": "a local job acts as you",
        "/jobs/0/mpi": "local processes are started by aj, not by mpirun",
        "/jobs/0/sla_tier": "a local job has no tier",
        "/jobs/0/preemptible": "a local job is never preempted",
        "/jobs/0/priority": "a local job starts at once",
        "/jobs/0/tags": "a local job has no tags",
        "/jobs/0/submit_args/container_args": "a local job has no container",
    },
)
