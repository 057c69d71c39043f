"""A pod played on this machine: its container's own command, after the kubelet's expansion, with folders for volumes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aj.build.effects import Upload
from aj.server.submit.volcano.upload import with_bootstrap

GNU = (
    *("bash", "sh", "tar", "gzip", "sha256sum", "mkdir", "mv", "rm", "ln", "readlink", "chmod", "sleep", "tail", "cat"),
    *("env", "date", "python3", "printf", "id", "hostname", "cp", "curl", "wget", "grep", "true", "false"),
)
"""The tools of an image that has GNU's."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expanded(text: str, names: Mapping[str, str]) -> str:
    """As the kubelet does it: `$$` is a dollar, `$(NAME)` the value of a variable that is known, else itself."""
    return _REFERENCE.sub(lambda found: "$" if found[1] is None else names.get(found[1], found[0]), text)


def tools(folder: Path, names: Sequence[str], busybox: str | None = None) -> Path:
    """A folder for PATH: of busybox's applets where it is given, and `names` as this machine has them."""
    folder.mkdir(parents=True)
    if busybox:
        subprocess.run([busybox, "--install", "-s", folder], check=True)
    for name in names:
        # A launcher of Pythons, which some machines have first on PATH, would need tools of its own.
        found = str(Path(sys.executable).resolve()) if name == "python3" else shutil.which(name)
        assert found, f"{name} is missing"
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(found)
    return folder


@dataclass
class Cluster:
    """What pods of one Job share: its name, the volume, a DNS that knows some names."""

    job: str
    payload: Any
    folder: Path
    path: Path
    """The tools in every pod's image."""
    known: list[str] = field(default_factory=list)
    """Names with an address; changes are seen by pods that wait."""

    def put_code(self, upload: Upload) -> None:
        """What the upload leaves on the shared volume."""
        for each in with_bootstrap(upload):
            target = self.folder / "volume" / ".aj" / each.place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each.path, target)

    def answer(self, name: str) -> None:
        """Let the DNS know a name."""
        (self.folder / "dns").mkdir(exist_ok=True)
        (self.folder / "dns" / name).touch()

    def command(self, task: str, index: int = 0, **more: str) -> tuple[list[str], dict[str, str]]:
        """The words and the environment with which the container of a pod starts."""
        spec = next(each for each in self.payload["spec"]["tasks"] if each["name"] == task)["template"]["spec"]
        container = spec["containers"][0]
        places = self._places(f"{task}-{index}", container)
        env = {
            "VC_TASK_INDEX": str(index),
            "VK_TASK_INDEX": str(index),
            **self._hosts(),
            "HOSTNAME": f"pod-{task}-{index}",
        }
        for item in container["env"]:
            env[item["name"]] = self._placed(expanded(item["value"], env), places)
        words = [self._placed(expanded(word, env), places) for word in (*container["command"], *container["args"])]
        return words, {"PATH": str(self.path), **env, **more}

    def run(self, task: str, index: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """The pod's whole life."""
        words, env = self.command(task, index, **more)
        return subprocess.run(words, env=env, cwd=self.folder, capture_output=True, text=True, timeout=60)

    def start(self, task: str, index: int = 0, **more: str) -> subprocess.Popen[str]:
        """The pod, running."""
        words, env = self.command(task, index, **more)
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=env, cwd=self.folder, stdout=pipe, stderr=pipe, text=True)

    def _hosts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for task in self.payload["spec"]["tasks"]:
            hosts = [f"{self.job}-{task['name']}-{index}.{self.job}" for index in range(task["replicas"])]
            key = task["name"].replace("-", "_").upper()
            found |= {f"VC_{key}_HOSTS": ",".join(hosts), f"VC_{key}_NUM": str(len(hosts))}
        return found

    def _places(self, pod: str, container: Any) -> dict[str, Path]:
        """Mount path → folder: the shared volume is one for all pods, the others are each pod's own."""
        places = {"/aj": self.folder / pod / "aj"}
        for mount in container["volumeMounts"]:
            own = self.folder / ("volume" if mount["name"] == "volume" else f"{pod}/{mount['name']}")
            if mount["mountPath"].startswith("/aj/"):
                own = self.folder / pod / mount["mountPath"].lstrip("/")
            own.mkdir(parents=True, exist_ok=True)
            places[mount["mountPath"]] = own
        return places

    def _placed(self, text: str, places: Mapping[str, Path]) -> str:
        for mount, folder in sorted(places.items(), reverse=True):
            if mount != "/dev/shm":
                text = re.sub(rf"(?<![\w.-]){re.escape(mount)}(?=[/\s]|\Z)", str(folder), text)
        return text


def getent(path: Path, dns: Path) -> None:
    """A `getent` in PATH that knows the names which lie in a folder."""
    script = path / "getent"
    script.unlink(missing_ok=True)
    script.write_text(f'#!/bin/sh\n[ "$1" = hosts ] && [ -e "{dns}/$2" ] && echo "10.0.0.1 $2"\n')
    script.chmod(0o755)
