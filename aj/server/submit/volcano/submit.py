"""The writes of `volcano`: the code's upload, then one `kubectl create`, and what is known after it failed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import sleep
from typing import cast

from aj.build.effects import JobReceipt, Receipt, Sealed, Unseen, Upload
from aj.server.azure.arm import Arm, azure_of
from aj.server.azure.blob import BlobStore, account_url
from aj.server.submit import Execution
from aj.server.submit.volcano import storage
from aj.server.submit.volcano.kubectl import ID_LABEL, JOBS, Kubectl
from aj.server.submit.volcano.preflight import preflight
from aj.server.submit.volcano.upload import CodeUploadResult, helper_name, pick_uploader
from aj.shared.errors import ChildError, OutcomeUnknownError, SubmissionError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Emit, Event, JobSpec
from aj.shared.opts.volcano import VolcanoOpts
from aj.shared.paths import Home

LOOKS = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0)
"""Seconds before each look for a job whose creation failed. Only then it is surely absent: a server gives a request up
after 60 s, and so does a kubectl that a killed daemon has left behind."""
_REFUSED = re.compile(
    r"Error from server \((BadRequest|Unauthorized|Forbidden|NotFound|AlreadyExists|Conflict|Invalid|Request\w+)\)"
    r"|is invalid:|error validating|webhook .*denied the request|failed calling webhook"
)
"""The server's own word that it has stored nothing; of silence or a time-out nothing follows."""


@dataclass(slots=True)
class VolcanoEffects:
    """One caller's cluster, and the containers of Blob storage that go with it."""

    home: Home
    caller: Caller
    _opened: Arm | None = field(default=None, repr=False)

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Context and namespace, once it is known that cluster and containers would take the job."""
        emit(Event("step", "asking the cluster whether it would take the job"))
        beside = ThreadPoolExecutor(1, thread_name_prefix="beside")
        containers = beside.submit(storage.access(spec, self._container).check)
        beside.shutdown(wait=False)  # what the cluster refuses does not wait for Azure
        found = preflight(spec, self.caller, emit)
        containers.result()
        return found

    def present(self, upload: Upload, facts: Json) -> Receipt | Unseen | None:
        """What Blob storage has; on a volume nothing can be seen without a write."""
        found = pick_uploader(facts, self.caller, self._container).present(upload)
        return found.receipt if isinstance(found, CodeUploadResult) else found

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        """Send the code, unless it is there."""
        result = pick_uploader(facts, self.caller, self._container).upload(upload, emit)
        if result.reused:
            emit(Event("note", "the code is there already"))
        return result.receipt

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """Credentials, then the Job, once; `SubmissionError` when there is surely none, and then no Secret either."""
        del receipts
        metadata = sealed.payload["metadata"]
        kubectl = Kubectl(self.caller, metadata["annotations"]["aj/context"], metadata["namespace"])
        made = storage.credentials(sealed, self._container)
        if made:
            emit(Event("step", f"making the Secret `{made.name}`"))
            storage.create(kubectl, made)
        emit(Event("submit", f"creating `{sealed.spec.name}`"))
        try:
            name = kubectl.create(sealed.payload)
        except ChildError as error:
            if not _REFUSED.search(error.message):
                raise _unknown(kubectl, sealed.spec, error) from error
            left = kubectl.remove("secret", made.name) if made else None
            raise SubmissionError(
                f"the cluster did not take `{sealed.spec.name}`: {error.message}", hint=left
            ) from error
        if made and (left := storage.own(kubectl, made.name, name)):
            emit(Event("warning", left))
        return _receipt(kubectl, sealed.spec, name)

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """Our Job by the AJ_ID that labels it, several times before it counts as absent."""
        kubectl = Kubectl(self.caller, facts["context"], facts["namespace"])
        for pause in LOOKS:
            sleep(pause)
            try:
                found = kubectl.find(JOBS, spec.identity.id)
            except ChildError as error:
                failure: ChildError | None = error
                continue
            failure = None
            if found:
                return _receipt(kubectl, spec, found[0]["metadata"]["name"])
        if failure:
            raise failure
        return None

    def _container(self, account: str, container: str, folder: str) -> BlobStore:
        if self._opened is None:
            self._opened = azure_of(self.home, self.caller)
        scope = f"storageAccounts/{account}/blobServices/default/containers/{container}"
        return BlobStore(self._opened, account_url(self._opened.cloud, account), account, container, scope, folder)


def _settle(caller: Caller, spec: JobSpec, facts: Json, receipt: JobReceipt | None) -> str | None:
    """The Secret goes to the job that was found; without one, Secret and helper go."""
    kubectl, secret = Kubectl(caller, facts["context"], facts["namespace"]), storage.secret_name(spec)
    if receipt:
        return storage.own(kubectl, secret, receipt.remote_name) if secret else None
    by_volume = cast(VolcanoOpts, spec.backend_spec).code.strategy == "kubectl-exec"
    made = [("secret", secret), ("pod", helper_name(spec.identity.id) if by_volume else None)]
    return "; ".join(filter(None, (kubectl.remove(kind, name) for kind, name in made if name))) or None


def _unknown(kubectl: Kubectl, spec: JobSpec, error: ChildError) -> OutcomeUnknownError:
    look = kubectl.shown("get", JOBS, "--selector", f"{ID_LABEL}={spec.identity.id}")
    hint = f"look with `{look}` before you run it again"
    if secret := storage.secret_name(spec):
        hint += f"; if there is no job, `{kubectl.shown('delete', 'secret', secret)}`"
    return OutcomeUnknownError(f"no clear answer to the creation of `{spec.name}`: {error.message}", hint=hint)


def _receipt(kubectl: Kubectl, spec: JobSpec, name: str) -> JobReceipt:
    master = f"{name}-{cast(VolcanoOpts, spec.backend_spec).tasks[0].name}-0"
    commands = {
        "watch": kubectl.shown("get", JOBS, name, "--watch"),
        "pods": kubectl.shown("get", "pods", "--selector", f"volcano.sh/job-name={name}"),
        "why it waits": kubectl.shown("describe", JOBS, name),
        "log": kubectl.shown("logs", "--follow", master),
        "delete": kubectl.shown("delete", JOBS, name),
    }
    note = "\n".join(f"{what}: {command}" for what, command in commands.items())
    return JobReceipt(remote_name=name, portal_url=None, status="Queued", note=note)


EXECUTION = Execution(effects=VolcanoEffects, jobs=None, settle=_settle)
