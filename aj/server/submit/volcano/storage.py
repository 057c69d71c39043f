"""The Secret that lets a job's pods into Blob storage: made before the job, owned by it, gone with it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import cast

from aj.build.effects import Sealed
from aj.build.render import render_document
from aj.server.azure.blob import BlobStore
from aj.server.azure.sas import LONGEST, delegate
from aj.server.submit.volcano.kubectl import JOBS, Kubectl
from aj.server.submit.volcano.upload import Containers, with_bootstrap
from aj.shared.errors import ChildError, SubmissionError
from aj.shared.jsonio import Json, compact
from aj.shared.model import JobSpec
from aj.shared.opts.volcano import VolcanoOpts


@dataclass(frozen=True, slots=True)
class Credentials:
    """A Secret's manifest, and what in it must be seen nowhere else."""

    name: str
    manifest: Json
    secrets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Access:
    """The containers into which the pods of one job must get."""

    code: BlobStore | None
    """None where the code comes by a volume."""
    mounts: Mapping[str, BlobStore]
    """Name of a storage → its container."""

    def check(self) -> None:
        """`AzureError` unless all of them are there and the caller may let others in; changes nothing."""

        def one(store: BlobStore) -> None:
            store.check()
            delegate(store, 1)

        stores = [*filter(None, [self.code]), *self.mounts.values()]
        with ThreadPoolExecutor(max(1, len(stores)), thread_name_prefix="containers") as pool:
            list(pool.map(one, stores))


def access(spec: JobSpec, containers: Containers) -> Access:
    """What a job needs; no request is made."""
    code = cast(VolcanoOpts, spec.backend_spec).code
    mounts = {mount.name: containers(mount.account, mount.container, "") for mount in spec.storage}
    if code.strategy != "blob":
        return Access(None, mounts)
    return Access(containers(str(code.storage_account), str(code.container), code.upload_dir), mounts)


def secret_name(spec: JobSpec) -> str | None:
    """Of the job's Secret; None when its pods need none."""
    blob = cast(VolcanoOpts, spec.backend_spec).code.strategy == "blob"
    return f"{spec.name}-credentials" if blob or spec.storage else None


def credentials(sealed: Sealed, containers: Containers) -> Credentials | None:
    """What the job's pods need to get in; None when they need nothing. Asks Azure, writes nothing."""
    spec, needed, name = sealed.spec, access(sealed.spec, containers), secret_name(sealed.spec)
    if name is None:
        return None
    addresses, mounts = {}, []
    if needed.code:
        signer = delegate(needed.code, cast(VolcanoOpts, spec.backend_spec).code.sas_expiry_days)
        addresses = {f"{each.name}.url": signer.readable(each) for each in with_bootstrap(sealed.uploads[0])}
    for storage, store in needed.mounts.items():
        own = {"name": storage, "account": store.account, "container": store.container, "endpoint": store.url}
        mounts.append({**own, "sas": delegate(store, LONGEST.days).whole()})
    place = {"name": name, "namespace": sealed.payload["metadata"]["namespace"], "id": spec.identity.id}
    manifest = render_document("volcano", "secret.yaml.j2", {**place, "addresses": addresses, "mounts": mounts})
    texts = manifest["stringData"].values()
    return Credentials(name, manifest, frozenset((*texts, *addresses.values(), *(each["sas"] for each in mounts))))


def create(kubectl: Kubectl, made: Credentials) -> None:
    """Make the Secret; `SubmissionError` when it may not be there, and then it is not, unless one was before."""
    try:
        kubectl.create(made.manifest, made.secrets)
    except ChildError as error:
        message = f"the Secret `{made.name}` could not be made: {error.message}"
        if "(AlreadyExists)" in error.message:
            hint: str | None = f"if no job needs it any more, `{kubectl.shown('delete', 'secret', made.name)}`"
        else:
            hint = kubectl.remove("secret", made.name)
        raise SubmissionError(message, hint=hint) from error


def own(kubectl: Kubectl, name: str, job: str) -> str | None:
    """Let the Secret die with the job; None when that is arranged, else what to do about it."""
    try:
        owner = kubectl.read(JOBS, job)
        names = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": job, "uid": owner["metadata"]["uid"]}
        patch = compact({"metadata": {"ownerReferences": [names]}}).decode()
        kubectl.run("patch", "secret", name, "--type", "merge", "-p", patch)
    except ChildError as error:
        command = kubectl.shown("delete", "secret", name)
        return f"the Secret `{name}` outlives the job; afterwards run `{command}`: {error.message}"
    return None
