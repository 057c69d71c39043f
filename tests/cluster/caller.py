"""A person at their machine: a project with a Volcano template, kubectl on PATH, a kubeconfig."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from aj.build.effects import Receipt, Upload
from aj.build.store import Store
from aj.server.submission import Frozen, Submissions
from aj.server.submit import get_execution
from aj.server.submit.volcano.submit import VolcanoEffects
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Caller, Emit, Event, Identity, JobResult, Plan
from aj.shared.paths import Home
from aj.shared.template.template import load_template
from tests.cluster.prepare import assets

TEMPLATE = """\
base:
config:
  target: {service: volcano, gpus_per_node: 8, cpus_per_node: 96, memory: 512Gi}
  environment: {image: registry.example.com/train:1}
  jobs:
    - submit_args:
        env: {AMLT_PERSISTENT_VOLUME_NAME: team-code, AMLT_PERSISTENT_VOLUME_MOUNT_DIR: /mnt/team}
"""


OLDEST = 30
"""The first minor version whose `exec` speaks websockets, which is what the double understands."""


def kubectls() -> list[Path]:
    """Every kubectl at hand, the pinned one first; a dispatcher counts as those that it dispatches to."""
    pinned = assets(os.environ) / "kubectl"
    found = [pinned] if pinned.exists() else []
    if own := shutil.which("kubectl"):
        others = sorted(Path(own).resolve().parent.glob("kubectl.1.*"), key=lambda path: int(path.suffix[1:]))
        speaking = [path for path in others if int(path.suffix[1:]) >= OLDEST]
        found += speaking[-1:] + speaking[:1] if others else [Path(own)]
    return found


@dataclass
class Person:
    """Submits from `folder`; `events` is what they were told."""

    folder: Path
    kubeconfig: Path
    kubectl: Path
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = Home(self.folder / "project" / ".azure_jobs")
        self.home.templates.mkdir(parents=True)
        self.write(TEMPLATE)
        (self.home.root.parent / "train.py").write_text("print('trained')\n")
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "kubectl").symlink_to(self.kubectl)
        self.work = Submissions(self.home, Store(self.folder / "cache"))

    def write(self, template: str) -> None:
        (self.home.templates / "train.yaml").write_text(template)

    @property
    def caller(self) -> Caller:
        env = {
            "PATH": str(self.folder / "bin"),
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.kubeconfig),
        }
        return Caller(str(self.home.root.parent), env)

    def prepare(self, identity: str = "0badcafe", nodes: int = 2, env: Mapping[str, str] | None = None) -> Frozen:
        """Everything before the first write."""
        call = Invocation(("train.py",), self.home.root.parent, nodes, env=env or {})
        who = Identity(identity, "train", "2026-01-31T08:00:00+00:00")
        spec = build_spec(load_template(self.home, "train"), call, who).spec
        return self.work.prepare(spec, self.caller, self.events.append)

    def plan(self, nodes: int = 2) -> Plan:
        """What `aj plan` judges."""
        call = Invocation(("train.py",), self.home.root.parent, nodes)
        spec = build_spec(
            load_template(self.home, "train"), call, Identity("0badcafe", "train", "2026-01-31T08:00:00+00:00")
        ).spec
        return self.work.plan(spec, self.caller, self.events.append)

    def submit(self, frozen: Frozen) -> JobResult:
        """The writes."""
        return self.work.execute(frozen, self.caller, self.events.append)

    def run(self, **words: Any) -> JobResult:
        """Both."""
        return self.submit(self.prepare(**words))

    def told(self, kind: str) -> list[str]:
        """What was said in events of a kind."""
        return [event.detail for event in self.events if event.kind == kind]


def a_kubectl() -> Path:
    """The first kubectl; skips where there is none."""
    found = kubectls()
    if not found:
        pytest.skip("no kubectl here: `python tests/cluster/prepare.py` brings one")
    return found[0]


SAS = "sv=2024&sig=hush%2Fhush%3D"
BLOB_TEMPLATE = (
    TEMPLATE
    + "  storage: {out: {storage_account_name: teamdata, container_name: outputs}}\n"
    + "  _extra: {code_upload: {strategy: blob, blob: {storage_account: team, container: jobs, sas_expiry_days: 2}}}\n"
)


class Blobs:
    """Blob storage that has everything it was sent, and signs what it is asked for."""

    def __init__(self) -> None:
        self.sent: dict[str, bytes] = {}

    @classmethod
    def instead(cls, person: Person) -> Blobs:
        """The jobs of this person use this one from now on."""
        store, execution = cls(), get_execution("volcano")
        effects: Callable[[Home, Caller], VolcanoEffects] = lambda home, caller: VolcanoEffects(caller, store.of)  # noqa: E731
        person.work = replace(person.work, executions=lambda service: replace(execution, effects=effects))
        return store

    def of(self, caller: Caller, account: str, container: str) -> Blobs:
        return self

    def present(self, path: str, upload: Upload) -> Receipt | None:
        return Receipt(f"https://x/{path}", "1", upload.sha256, upload.size) if path in self.sent else None

    def upload(self, path: str, upload: Upload, emit: Emit) -> Receipt:
        self.sent[path] = upload.path.read_bytes()
        return Receipt(f"https://x/{path}", "1", upload.sha256, upload.size)

    def read_sas(self, path: str, days: int) -> str:
        assert path in self.sent and days == 2
        return f"https://x/{path}?{SAS}"

    def mount_sas(self, days: int) -> tuple[str, str]:
        return "https://teamdata.blob.core.windows.net", SAS
