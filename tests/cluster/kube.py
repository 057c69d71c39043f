"""A real API server with etcd behind it, Volcano's resources known, for as long as a test session lasts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import CERT_NONE, create_default_context
from typing import Any, TypeVar

TOKENS = {"admin": ("admin-token", "system:masters"), "bob": ("bob-token", "people")}
PATIENCE = 60.0
"""Seconds for what servers and controllers do in milliseconds, on a machine that others use too."""
T = TypeVar("T")


@dataclass(frozen=True)
class Kube:
    """A running server; `kubeconfig` has the contexts `admin` and `bob`, who may do nothing."""

    url: str
    kubeconfig: Path
    kubectl: Path

    def __call__(self, *words: str, stdin: str = "") -> str:
        """What `kubectl WORDS` prints, as admin."""
        return self.attempt(*words, stdin=stdin, check=True).stdout

    def attempt(self, *words: str, stdin: str = "", check: bool = False) -> subprocess.CompletedProcess[str]:
        """The same, whatever its end."""
        argv: list[str | Path] = [self.kubectl, "--kubeconfig", self.kubeconfig, "--context", "admin", *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, done.stderr
        return done

    def get(self, *words: str) -> Any:
        """`kubectl get WORDS` as a value."""
        return json.loads(self("get", *words, "-o", "json"))

    def namespace(self, name: str) -> str:
        """A fresh namespace."""
        self("create", "namespace", name)
        return name

    def await_resources(self) -> None:
        """Until every CRD is served; `kubectl wait` fails where one has no conditions yet."""
        until(
            lambda: [item["status"].get("conditions") or () for item in self.get("crd")["items"]],
            lambda every: all(any(each["type"] == "Established" for each in conditions) for conditions in every),
        )


def until(look: Callable[[], T], good: Callable[[T], bool], seconds: float = PATIENCE) -> T:
    """What is seen once it is good; fails with what was seen last."""
    deadline = time.monotonic() + seconds
    while not good(seen := look()):
        assert time.monotonic() < deadline, f"still {json.dumps(seen, default=str)[:800]}"
        time.sleep(0.2)
    return seen


@contextmanager
def running(assets: Path, work: Path, crds: Path) -> Iterator[Kube]:
    """Etcd and API server in `work`, both gone afterwards."""
    with ExitStack() as stack:
        client, peer, port = (free_port() for _ in range(3))
        etcd: list[str | Path] = [
            assets / "etcd",
            "--data-dir",
            work / "etcd",
            "--unsafe-no-fsync",
            "--logger",
            "zap",
            "--log-level",
            "error",
        ]
        etcd += [
            "--listen-client-urls",
            f"http://127.0.0.1:{client}",
            "--advertise-client-urls",
            f"http://127.0.0.1:{client}",
        ]
        etcd += ["--listen-peer-urls", f"http://127.0.0.1:{peer}"]
        stack.enter_context(process(etcd, work / "etcd.log"))
        stack.enter_context(process(_apiserver(assets, work, client, port), work / "apiserver.log"))
        url = f"https://127.0.0.1:{port}"
        _await(url + "/readyz", work / "apiserver.log")
        kube = Kube(
            url, _kubeconfig(work / "kubeconfig", url, work / "certificates" / "apiserver.crt"), assets / "kubectl"
        )
        kube("create", "-f", str(crds))
        kube.await_resources()
        for name in ("default", "research", "inference", "q" * 63):
            kube("create", "-f", "-", stdin=json.dumps(queue(name)))
        kube("create", "priorityclass", "high-priority", "--value", "1000")
        yield kube


def queue(name: str, **spec: Any) -> dict[str, Any]:
    """A queue as it is written."""
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, **spec},
    }


def _apiserver(assets: Path, work: Path, etcd: int, port: int) -> list[str | Path]:
    key = work / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens = work / "tokens.csv"
    tokens.write_text("".join(f'{token},{name},{name},"{group}"\n' for name, (token, group) in TOKENS.items()))
    return [
        assets / "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={work / 'certificates'}",
        f"--token-auth-file={tokens}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={key}",
        f"--service-account-key-file={key}",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",
        "--watch-cache=false",
    ]


def _kubeconfig(path: Path, url: str, certificate: Path) -> Path:
    document: Mapping[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin",
        "clusters": [{"name": "kube", "cluster": {"server": url, "certificate-authority": str(certificate)}}],
        "users": [{"name": name, "user": {"token": token}} for name, (token, _) in TOKENS.items()],
        "contexts": [{"name": name, "context": {"cluster": "kube", "user": name}} for name in TOKENS],
    }
    path.write_text(json.dumps(document))
    return path


@contextmanager
def process(argv: Sequence[str | Path], log: Path) -> Iterator[None]:
    """A program for a while, its output in a file."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            argv, stdout=out, stderr=out, cwd=log.parent, env={"PATH": os.defpath, "HOME": str(log.parent)}
        )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _await(url: str, log: Path) -> None:
    unchecked = create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKENS['admin'][0]}"})
    deadline = time.monotonic() + 200
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5, context=unchecked):
                return
        except OSError as error:
            assert time.monotonic() < deadline, f"{error}\n{log.read_text()[-2000:]}"
            time.sleep(0.2)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
