"""How code gets to where the pods find it: onto their shared volume by a pod of ours, or into Blob storage."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any, Protocol

from aj.build.effects import Receipt, Unseen, Upload
from aj.build.generated import bootstrap
from aj.build.render import backend_folder, render_document
from aj.server.azure.blob import BlobStore
from aj.server.submit.volcano.kubectl import Kubectl
from aj.shared.clock import monotonic
from aj.shared.errors import ChildError, SubmissionError
from aj.shared.jsonio import Json, sha256
from aj.shared.model import Caller, Emit, Event

Containers = Callable[[str, str, str], BlobStore]
"""Account, container, our folder in it → what the caller can do there."""
READY_SECONDS = 600.0
TRANSFER_SECONDS = 6600.0
"""Less than the helper lives."""
BLOCK = 1 << 20
_FOLDER = "/volume/.aj"
_HOPELESS = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"),
    }
)


@dataclass(frozen=True, slots=True)
class CodeUploadResult:
    """Where the code lies now, and whether it lay there before."""

    receipt: Receipt
    reused: bool


class CodeUploader(Protocol):
    """One way for the code; the bootstrap goes with it."""

    def present(self, upload: Upload) -> CodeUploadResult | Unseen | None:
        """Read: equal bytes that are there already."""
        ...

    def upload(self, upload: Upload, emit: Emit) -> CodeUploadResult:
        """Write: send what is not there."""
        ...


def pick_uploader(facts: Json, caller: Caller, containers: Containers) -> CodeUploader:
    """The uploader of the strategy that the facts name."""
    code = facts["code"]
    if code["strategy"] == "blob":
        return BlobUploader(containers(code["storage_account"], code["container"], code["upload_dir"]))
    kubectl = Kubectl(caller, facts["context"], facts["namespace"])
    return VolumeUploader(kubectl, facts["volume"]["claim"], facts["volume"]["image"])


def helper_name(job_id: str) -> str:
    """Of the pod that writes a job's code to the volume."""
    return f"aj-upload-{job_id}"


def with_bootstrap(upload: Upload) -> tuple[Upload, ...]:
    """The code's upload and that of the bootstrap which unpacks it."""
    content = bootstrap().read_bytes()
    return upload, Upload("bootstrap", sha256(content), len(content), bootstrap(), upload.job_id)


@dataclass(frozen=True, slots=True)
class BlobUploader:
    """Through Blob storage: each pod fetches the code by HTTPS."""

    store: BlobStore

    def present(self, upload: Upload) -> CodeUploadResult | None:
        """Both files are looked for, side by side."""
        files = with_bootstrap(upload)
        with ThreadPoolExecutor(len(files), thread_name_prefix="look") as pool:
            found = list(pool.map(self.store.present, files))
        return CodeUploadResult(found[0], True) if found[0] and all(found) else None

    def upload(self, upload: Upload, emit: Emit) -> CodeUploadResult:
        """The bootstrap first: where the code is, all is. What lies there already is adopted."""
        receipts = [self.store.put(each, emit) for each in reversed(with_bootstrap(upload))]
        return CodeUploadResult(receipts[-1], False)


@dataclass(frozen=True, slots=True)
class VolumeUploader:
    """Onto the pods' shared volume: `tar | kubectl exec` into a pod of ours that is removed whatever happens."""

    kubectl: Kubectl
    claim: str
    image: str

    def present(self, upload: Upload) -> Unseen:
        """Only a pod sees the volume, and to make one is a write."""
        del upload
        return Unseen.UNSEEN

    def upload(self, upload: Upload, emit: Emit) -> CodeUploadResult:
        """`SubmissionError` when the code is not there whole; nothing of ours but whole files is left."""
        files = with_bootstrap(upload)
        with self._helper(upload.job_id, emit) as helper:
            have = self._script(helper, "check", files)
            missing = [each for each in files if each.place not in have]
            if missing:
                stream = _tar(missing, emit)
                self._script(helper, "store", missing, stream)
        receipt = Receipt(f"pvc://{self.claim}/.aj/{upload.place}", None, upload.sha256, upload.size)
        return CodeUploadResult(receipt, upload not in missing)

    def _script(
        self, helper: str, what: str, files: Sequence[Upload], stream: Iterator[bytes] | bytes = b""
    ) -> frozenset[str]:
        """Run the volume's script there; the files that it has afterwards."""
        script = (backend_folder("volcano") / "scripts" / "volume.sh").read_text()
        words = ("sh", "-c", script, "aj-volume", what, _FOLDER, files[0].job_id, *(each.place for each in files))
        try:
            output = self.kubectl.run(
                "exec", *(("-i",) if stream else ()), helper, "--", *words, stdin=stream, seconds=TRANSFER_SECONDS
            )
        except ChildError as error:
            why = error.message.replace(script, "…")
            raise SubmissionError(f"the code could not be written to the volume `{self.claim}`: {why}") from error
        have = frozenset(line.removeprefix("have ") for line in output.stdout.splitlines() if line.startswith("have "))
        if what == "store" and not have >= {each.place for each in files}:
            raise SubmissionError(f"the code did not arrive on the volume `{self.claim}`: the connection was cut")
        return have

    @contextmanager
    def _helper(self, job_id: str, emit: Emit) -> Iterator[str]:
        name = helper_name(job_id)
        names = {"name": name, "namespace": self.kubectl.namespace, "id": job_id}
        manifest = render_document("volcano", "helper.yaml.j2", {**names, "image": self.image, "claim": self.claim})
        emit(Event("step", f"starting the pod `{name}`, which writes the code to the volume `{self.claim}`"))
        try:
            try:
                self.kubectl.create(manifest)
            except ChildError as error:
                raise SubmissionError(f"the pod that writes the code could not be made: {error.message}") from error
            self._await(name)
            yield name
        finally:
            if left := self.kubectl.remove("pod", name):
                emit(Event("warning", left))

    def _await(self, name: str) -> None:
        deadline, why = monotonic() + READY_SECONDS, "nobody has looked at it"
        while monotonic() < deadline:
            try:
                status = self.kubectl.read("pod", name).get("status") or {}
            except ChildError as error:
                why = error.message
            else:
                if _is_ready(status):
                    return
                hopeless, why = _judge(status)
                if hopeless:
                    break
            sleep(0.5)
        hint = (
            f"an image that is small, has `sh` and `tar` and can be pulled: `_extra.code_upload.helper_image`; look at \
`{self.kubectl.shown('get', 'events')}`"
        )
        raise SubmissionError(f"the pod `{name}`, which writes the code, does not run: {why}", hint=hint)


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ())


def _judge(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a pod that is not ready will never be, and why it is not."""
    phase = status.get("phase", "Pending")
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason"):
            text = f"{waiting['reason']}: {waiting.get('message', 'no more is said')}"
            return waiting["reason"] in _HOPELESS or phase in ("Failed", "Succeeded"), text
    why = [each["message"] for each in status.get("conditions") or () if each.get("message")]
    said = "; ".join(filter(None, [status.get("reason"), status.get("message"), *why]))
    return phase in ("Failed", "Succeeded"), f"it is {phase}" + (f": {said}" if said else "")


def _tar(files: Sequence[Upload], emit: Emit) -> Iterator[bytes]:
    """The files as a tar, block by block."""
    total, sent = sum(each.size for each in files), 0
    for each in files:
        member = tarfile.TarInfo(each.place)
        member.size, member.mode = each.size, 0o644
        yield member.tobuf(tarfile.GNU_FORMAT)
        with Path(each.path).open("rb") as content:
            while block := content.read(BLOCK):
                yield block
                sent += len(block)
                emit(Event("upload", each.file, sent, total))
        yield b"\0" * (-each.size % tarfile.BLOCKSIZE or 0)
    yield b"\0" * tarfile.RECORDSIZE
