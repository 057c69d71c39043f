"""Uploads to Blob: memory over idle and time, beside the SDK's own, against a real Azurite over https."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SIZE = 300 * 1024 * 1024


def run(folder: Path) -> list[str]:
    """Seconds beside the SDK's own, and peak memory over idle, for 300 MiB; the better of two."""
    from tests.azure import azurite
    from tests.azure.certificate import self_signed

    folder.mkdir(parents=True)
    running, server = azurite.start(folder, self_signed(folder))
    try:
        file, account = folder / "code.tar.gz", azurite.ACCOUNTS[0]
        file.write_bytes(os.urandom(SIZE))
        job = {
            "file": str(file),
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "url": running.account_url(account),
            "account": account,
            "key": running.keys[account],
            "ca": str(running.ca_file),
        }
        ways = [(way, _measured(way, job)) for way in ("aj", "sdk", "aj", "sdk")]
    finally:
        server.stop()
    (seconds, memory), (reference, sdk_memory) = (
        min(found for name, found in ways if name == way) for way in ("aj", "sdk")
    )
    return [
        f"upload of 300 MiB: {seconds:.2f} s, SDK {reference:.2f} s, ratio {seconds / reference:.2f}, target 1.3",
        f"its memory over idle: {memory:.0f} MB, SDK {sdk_memory:.0f} MB, target 100 MB",
    ]


def _measured(way: str, job: dict[str, str]) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.bench.bench_blob", way, json.dumps(job)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(said[0]), float(said[1])


def upload(way: str, job: dict[str, str]) -> None:
    """One upload in a process of its own; prints seconds and MB over idle."""
    from azure.storage.blob import BlobServiceClient, ContainerClient

    from aj.build.effects import Upload
    from aj.server.azure.arm import Arm
    from aj.server.azure.blob import BlobStore
    from aj.server.azure.token import Login, Token
    from aj.server.azure.wire import http_client
    from aj.shared.model import nowhere
    from tests.azure.arm.tokens import token

    class Known(Login):
        def token(self, scope: str) -> Token:
            return Token(token("https://storage.azure.com"), int(time.time()) + 3600, "bench")

    service = BlobServiceClient(job["url"], credential=job["key"], connection_verify=job["ca"])
    container: ContainerClient = service.create_container(f"bench-{way}-{os.getpid()}")
    arm = Arm({"storage_scope": "s"}, Known({}, ""), http_client({"SSL_CERT_FILE": job["ca"]}))
    store = BlobStore(arm, job["url"], job["account"], container.container_name, scope="")
    path = Path(job["file"])
    store.present(Upload("bootstrap", "0" * 64, 1, path))
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, which a child has from its parent
    idle, began = _peak(), time.monotonic()
    if way == "aj":
        store.put(Upload("code", job["sha256"], path.stat().st_size, path), nowhere)
    else:
        with path.open("rb") as file:
            container.upload_blob("code", file, length=path.stat().st_size, max_concurrency=1)
    seconds = time.monotonic() - began
    print(f"{seconds:.3f} {(_peak() - idle) / 1024:.1f}")


def _peak() -> int:
    """kB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))


if __name__ == "__main__":
    upload(sys.argv[1], json.loads(sys.argv[2]))
