"""The description of `sing`: what a Singularity job chooses, and which SKU of it can be scheduled."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from aj.shared.errors import TemplateError
from aj.shared.model import JobSpec, Notice, from_json
from aj.shared.opts.aml import UPLOAD_LIMIT, check_image, check_sizes, normalize_job_name, shm_size, tags_of
from aj.shared.sku import check_shape, parse_sku
from aj.shared.spec import Description
from aj.shared.template.template import Template

TIERS = ("Premium", "Standard", "Basic")
"""From the best to the one that is preempted first."""
UAI = "_AZUREML_SINGULARITY_JOB_UAI"
"""The variable that names the identity a job acts as, by its ARM id."""
ALIAS = "amlt-sing/"
"""Before the name of an image of Singularity's own."""

_ENV = ("jobs", 0, "submit_args", "env")
_CONTAINER = ("jobs", 0, "submit_args", "container_args")
_IDENTITY = re.compile(
    r"/subscriptions/[^/\s]+/resourceGroups/[^/\s]+/providers/Microsoft\.ManagedIdentity/userAssignedIdentities/[^/\s]+",
    re.IGNORECASE,
)
_ALIASED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class SingOpts:
    """Where a Singularity job may run, how it is treated there and what its container gets."""

    cluster: str | None
    """The virtual cluster; None: the one that fits best."""
    subscription_id: str | None
    """Of the virtual cluster, like `resource_group`; None: any that the caller can see."""
    resource_group: str | None
    workspace: str | None
    workspace_subscription_id: str | None
    workspace_resource_group: str | None
    tier: str
    """The best SLA tier to take."""
    priority: str
    image_version: str | None
    """An image of Singularity's own, instead of `JobSpec.image`."""
    identity: str | None
    """ARM id of the user-assigned identity that the job acts as."""
    group_policy: str | None
    azml_int: bool
    mpi: bool
    tags: tuple[tuple[str, str], ...]
    shm_size: str | None


def build_spec_backend(template: Template) -> SingOpts:
    """The options; `TemplateError` at the field that Singularity would refuse."""
    job = ("jobs", 0)
    if template.get(*job, "sku") is None:
        hint = "set it, for example to `{nodes}xG{processes}-A100`"
        raise TemplateError("`jobs[0].sku` is missing: which machines?", where=template.where(*job), hint=hint)
    check_sizes(template)
    preemptible = template.get(*job, "preemptible", default=False)
    return SingOpts(
        cluster=template.get("target", "name") or None,
        subscription_id=template.get("target", "subscription_id"),
        resource_group=template.get("target", "resource_group"),
        workspace=template.get("target", "workspace_name"),
        workspace_subscription_id=template.get("target", "workspace_subscription_id"),
        workspace_resource_group=template.get("target", "workspace_resource_group"),
        tier="Basic" if preemptible else str(template.get(*job, "sla_tier", default="Premium")).capitalize(),
        priority=str(template.get(*job, "priority", default="high")).capitalize(),
        image_version=_image_version(template),
        identity=_identity(template),
        group_policy=template.get("target", "group_policy_name"),
        azml_int=bool(template.get(*job, "azml_int", default=False)),
        mpi=bool(template.get(*job, "mpi", default=False)),
        tags=tags_of(template),
        shm_size=shm_size(template),
    )


def check_spec(template: Template, spec: JobSpec) -> Iterator[Notice]:
    """`ShapeError` for a SKU that is none, or that names another shape than the job's."""
    where = template.where("jobs", 0, "sku")
    sku = parse_sku(spec.sku or "", where)
    check_shape(sku, spec.shape.nodes, spec.shape.processes, where)
    if spec.via is None:
        who = str(template.get("jobs", 0, "identity", default="managed"))
        if who.lower() != "managed":
            message = f"`identity: {who}` has no effect: a Singularity job acts as the identity that `{UAI}` names"
            yield Notice(message, template.where("jobs", 0, "identity"))
        for name in template.get(*_CONTAINER, default={}):
            if name != "shm_size":
                message = f"`container_args.{name}` has no effect: Singularity takes no arguments of `docker run`"
                yield Notice(message, template.where(*_CONTAINER, name))


def _image_version(template: Template) -> str | None:
    image, where = template.get("environment", "image"), template.where("environment", "image")
    if image is None or not image.startswith(ALIAS):
        check_image(template)
        return None
    version = str(image).removeprefix(ALIAS)
    if not _ALIASED.fullmatch(version):
        raise TemplateError(f"`{image}` names no image", where=where, hint="`aj image list` shows what there is")
    return version


def _identity(template: Template) -> str | None:
    identity, where = template.get(*_ENV, UAI), template.where(*_ENV, UAI)
    if not identity:
        return None
    if not _IDENTITY.fullmatch(identity):
        hint = "write `/subscriptions/…/providers/Microsoft.ManagedIdentity/userAssignedIdentities/NAME`"
        raise TemplateError(f"`{UAI}` is not the ARM id of an identity", where=where, hint=hint)
    return str(identity)


DESCRIPTION = Description(
    service="sing",
    build_spec_backend=build_spec_backend,
    load_spec_backend=partial(from_json, SingOpts),
    normalize_job_name=normalize_job_name,
    check_spec=check_spec,
    uploads=("code", "bootstrap"),
    upload_limit=UPLOAD_LIMIT,
    unused={
        "/target/namespace": "a virtual cluster has no namespaces",
        "/target/queue": "a virtual cluster has one queue",
        "/target/context": "Singularity is no Kubernetes cluster of yours",
        "/target/cpus_per_node": "the SKU decides",
        "/target/memory": "the SKU decides",
        "/target/rdma": "the SKU decides: `-IB`",
        "/target/priority_class": "a Singularity job has `jobs[0].priority`",
        "/target/labels": "a Singularity job has tags: `jobs[0].tags`",
    },
)
