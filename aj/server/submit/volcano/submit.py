"""The writes of `volcano`: the code's upload, then one `kubectl create`, and what is known after it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import sleep
from typing import NoReturn, cast

from aj.build.effects import JobReceipt, Receipt, Sealed, Unseen, Upload
from aj.server.submit import Execution
from aj.server.submit.volcano import storage
from aj.server.submit.volcano.kubectl import ID_LABEL, JOBS, Kubectl
from aj.server.submit.volcano.preflight import preflight
from aj.server.submit.volcano.storage import Credentials, credentials
from aj.server.submit.volcano.upload import Blobs, BlobsOf, CodeUploadResult, pick_uploader
from aj.shared.errors import ChildError, OutcomeUnknownError, SubmissionError
from aj.shared.jsonio import Json
from aj.shared.model import Caller, Emit, Event, JobSpec
from aj.shared.opts.volcano import VolcanoOpts
from aj.shared.paths import Home

LOOKS = (0.0, 2.0, 5.0, 10.0)
"""Seconds before each look for a job whose creation failed: a slow server may still be at it."""


@dataclass(frozen=True, slots=True)
class VolcanoEffects:
    """One caller's cluster."""

    caller: Caller
    blobs: BlobsOf

    def facts(self, spec: JobSpec, emit: Emit) -> Json:
        """Context and namespace, once it is known that they would take the job."""
        options = cast(VolcanoOpts, spec.backend_spec)
        for account, container in _containers(spec, options):
            self.blobs(self.caller, account, container)
        emit(Event("step", "asking the cluster whether it would take the job"))
        return preflight(spec, self.caller, emit)

    def present(self, upload: Upload, facts: Json) -> Receipt | Unseen | None:
        """What Blob storage has; on a volume nothing can be seen without a write."""
        found = pick_uploader(facts, self.caller, self.blobs).present(upload)
        return found.receipt if isinstance(found, CodeUploadResult) else found

    def upload(self, upload: Upload, facts: Json, emit: Emit) -> Receipt:
        """Send the code, unless it is there."""
        result = pick_uploader(facts, self.caller, self.blobs).upload(upload, emit)
        if result.reused:
            emit(Event("note", "the code is there already"))
        return result.receipt

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """Credentials, then the Job, once; `SubmissionError` when there is surely none, and then no Secret either."""
        del receipts
        metadata = sealed.payload["metadata"]
        kubectl = Kubectl(self.caller, metadata["annotations"]["aj/context"], metadata["namespace"])
        made = credentials(sealed, self.caller, self.blobs)
        if made:
            emit(Event("step", f"making the Secret `{made.name}`"))
            storage.create(kubectl, made)
        emit(Event("submit", f"creating `{sealed.spec.name}`"))
        try:
            name = kubectl.create(sealed.payload)
        except ChildError as error:
            name = self._look(kubectl, sealed.spec, made, error, emit)
        if made:
            storage.own(kubectl, made, name, emit)
        return _receipt(kubectl, sealed.spec, name)

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """Our Job by the AJ_ID that labels it."""
        kubectl = Kubectl(self.caller, facts["context"], facts["namespace"])
        found = kubectl.find(JOBS, spec.identity.id)
        return _receipt(kubectl, spec, found[0]["metadata"]["name"]) if found else None

    def _look(self, kubectl: Kubectl, spec: JobSpec, made: Credentials | None, error: ChildError, emit: Emit) -> str:
        """The name of the Job that a failed creation made after all."""
        # The server's own word is an answer; silence is not, and the Job may come to be a moment later.
        answered = any(words in error.message for words in ("Error from server", "is invalid:", "error validating"))
        for pause in LOOKS[:1] if answered else LOOKS:
            sleep(pause)
            try:
                found = kubectl.find(JOBS, spec.identity.id)
            except ChildError as failure:
                last: ChildError | None = failure
                continue
            last = None
            if found:
                emit(Event("note", "the answer to the creation was lost, but the job is there"))
                return str(found[0]["metadata"]["name"])
        if last is not None:
            _give_up(kubectl, spec, made, error)
        left = storage.remove(kubectl, made) if made else None
        raise SubmissionError(f"the cluster did not take `{spec.name}`: {error.message}", hint=left) from error


def _give_up(kubectl: Kubectl, spec: JobSpec, made: Credentials | None, error: ChildError) -> NoReturn:
    look = kubectl.shown("get", JOBS, "--selector", f"{ID_LABEL}={spec.identity.id}")
    hint = f"look with `{look}` before you run it again"
    if made:
        hint += f"; if there is no job, `{kubectl.shown('delete', 'secret', made.name)}`"
    raise OutcomeUnknownError(f"nobody knows whether `{spec.name}` exists: {error.message}", hint=hint) from error


def _containers(spec: JobSpec, options: VolcanoOpts) -> list[tuple[str, str]]:
    code = options.code
    own = [(str(code.storage_account), str(code.container))] if code.strategy == "blob" else []
    return own + [(mount.account, mount.container) for mount in spec.storage]


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


def _no_blobs(caller: Caller, account: str, container: str) -> Blobs:
    del caller
    raise SubmissionError(
        f"the container `{container}` of `{account}` cannot be used: Volcano jobs have no Blob storage in this version",
        hint="use `_extra.code_upload.strategy: kubectl-exec`, and a volume instead of `storage`",
    )


EXECUTION = Execution(effects=lambda home, caller: _effects(home, caller), jobs=None)


def _effects(home: Home, caller: Caller) -> VolcanoEffects:
    del home
    return VolcanoEffects(caller, _no_blobs)
