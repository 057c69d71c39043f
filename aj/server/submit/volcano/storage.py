"""The Secret that lets a job's pods into Blob storage: made before the job, owned by it, gone with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from aj.build.effects import Sealed
from aj.build.render import render_document
from aj.server.submit.volcano.kubectl import JOBS, Kubectl
from aj.server.submit.volcano.upload import BlobsOf, place, with_bootstrap
from aj.shared.errors import ChildError, SubmissionError
from aj.shared.jsonio import Json, compact
from aj.shared.model import Caller, Emit, Event
from aj.shared.opts.volcano import VolcanoOpts

MOUNT_DAYS = 7
"""The longest that a user delegation SAS may be good for: what a job writes later fails."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A Secret's manifest, and what in it must be seen nowhere else."""

    name: str
    manifest: Json
    secrets: frozenset[str]


def credentials(sealed: Sealed, caller: Caller, blobs: BlobsOf) -> Credentials | None:
    """What the job's pods need to get in; None when they need nothing. Asks Azure, writes nothing."""
    spec, options = sealed.spec, cast(VolcanoOpts, sealed.spec.backend_spec)
    code, addresses, mounts = options.code, {}, []
    if code.strategy == "blob":
        store = blobs(caller, str(code.storage_account), str(code.container))
        for upload in with_bootstrap(sealed.uploads[0]):
            path = f"{code.upload_dir}/{place(upload)}"
            addresses[f"{upload.name}.url"] = store.read_sas(path, code.sas_expiry_days)
    for mount in spec.storage:
        endpoint, sas = blobs(caller, mount.account, mount.container).mount_sas(MOUNT_DAYS)
        own = {"name": mount.name, "account": mount.account, "container": mount.container}
        mounts.append({**own, "endpoint": endpoint, "sas": sas})
    if not addresses and not mounts:
        return None
    name = f"{spec.name}-credentials"
    place_of = {"name": name, "namespace": sealed.payload["metadata"]["namespace"], "id": spec.identity.id}
    manifest = render_document("volcano", "secret.yaml.j2", {**place_of, "addresses": addresses, "mounts": mounts})
    texts = manifest["stringData"].values()
    return Credentials(name, manifest, frozenset((*texts, *addresses.values(), *(each["sas"] for each in mounts))))


def create(kubectl: Kubectl, made: Credentials) -> None:
    """Make the Secret; `SubmissionError` when it may not be there, and then it is not."""
    try:
        kubectl.create(made.manifest, made.secrets)
    except ChildError as error:
        left = remove(kubectl, made)
        message = f"the Secret `{made.name}` could not be made: {error.message}"
        raise SubmissionError(message, hint=left) from error


def remove(kubectl: Kubectl, made: Credentials) -> str | None:
    """Delete the Secret; None when that is done, else what to do about it."""
    try:
        kubectl.delete("secret", made.name)
    except ChildError:
        return f"the Secret `{made.name}` may be left: `{kubectl.shown('delete', 'secret', made.name)}`"
    return None


def own(kubectl: Kubectl, made: Credentials, job: str, emit: Emit) -> None:
    """Let the Secret die with the job; a warning when that cannot be arranged."""
    try:
        owner = kubectl.read(JOBS, job)
        names = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": job, "uid": owner["metadata"]["uid"]}
        patch = compact({"metadata": {"ownerReferences": [names]}}).decode()
        kubectl.run("patch", "secret", made.name, "--type", "merge", "-p", patch)
    except ChildError as error:
        command = kubectl.shown("delete", "secret", made.name)
        emit(
            Event("warning", f"the Secret `{made.name}` outlives the job; afterwards run `{command}`: {error.message}")
        )
