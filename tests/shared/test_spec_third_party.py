"""A backend from somebody else's package: found by its entry point, built like one of aj's own, blamed by name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = """
from dataclasses import dataclass

from aj.shared.job.naming import fit_name
from aj.shared.spec import Description


@dataclass(frozen=True, slots=True)
class SlurmOpts:
    partition: str


DESCRIPTION = Description(
    service="slurm",
    build_spec_backend=lambda template: SlurmOpts(template.get("target", "queue", default="debug")),
    load_spec_backend=lambda document: SlurmOpts(**document),
    normalize_job_name=lambda name: fit_name(name, allowed="a-z0-9-", first="a-z", limit=30),
    unused={"/environment/image": "slurm runs no images"},
)
"""
PROGRAM = """
import json, sys
from pathlib import Path
from aj.shared.errors import AjError, to_wire
from aj.shared.job.build import Invocation, build_spec
from aj.shared.jsonio import canonical
from aj.shared.model import Identity
from aj.shared.paths import Home
from aj.shared.spec import services, spec_from_json, spec_to_json
from aj.shared.template.template import load_template

folder = Path(sys.argv[1])
identity = Identity("0123abcd", "My Exp", "2026-01-31T08:00:00+00:00")
try:
    built = build_spec(load_template(Home(folder), "gpu"), Invocation(("echo", "hi"), folder), identity)
except AjError as error:
    print(json.dumps({"services": services(), "error": to_wire(error)}))
else:
    document = spec_to_json(built.spec)
    same = spec_from_json(json.loads(canonical(document))) == built.spec
    warnings = [notice.message for notice in built.warnings]
    print(json.dumps({"services": services(), "spec": document, "same": same, "warnings": warnings}))
"""


def submit(folder: Path, module: str, entry: str = "slurm = their_slurm:DESCRIPTION") -> Any:
    """Install the module beside a dist-info, and build a job in a fresh Python that sees it."""
    (folder / "their_slurm.py").write_text(module)
    metadata = folder / "their_slurm-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: their-slurm\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[aj.backends]\n{entry}\n")
    (folder / "template").mkdir()
    (folder / "template" / "gpu.yaml").write_text(
        "base:\nconfig:\n  target: {service: slurm, queue: long, gpus_per_node: 2}\n"
        "  environment: {image: x}\n  jobs: [{instance_count: 3}]\n"
    )
    path = [str(folder), str(Path(__file__).parents[2])]
    program = f"import sys; sys.path[:0] = {path!r}\n" + PROGRAM
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_backend_from_another_package(tmp_path: Path) -> None:
    answer = submit(tmp_path, MODULE)
    assert "slurm" in answer["services"] and "local" in answer["services"] and answer["same"]
    spec = answer["spec"]
    assert (spec["service"], spec["name"], spec["backend_spec"]) == ("slurm", "my-exp-0123abcd", {"partition": "long"})
    assert spec["shape"] == {"nodes": 3, "processes": 2, "processes_per_node": 1}
    assert answer["warnings"] == ["`environment.image` has no effect: slurm runs no images"]


@pytest.mark.parametrize(
    ("module", "entry", "said"),
    [
        ("import nowhere_to_be_found", "slurm = their_slurm:DESCRIPTION", "nowhere_to_be_found"),
        ("", "slurm = their_slurm:DESCRIPTION", "DESCRIPTION"),
        (MODULE, "slurm = missing_module:DESCRIPTION", "missing_module"),
        ("DESCRIPTION = 1", "slurm = their_slurm:DESCRIPTION", "not the description of the service `slurm`"),
        (MODULE.replace('"slurm"', '"other"'), "slurm = their_slurm:DESCRIPTION", "not the description of the service"),
    ],
)
def test_a_broken_one_is_an_error_that_names_it(tmp_path: Path, module: str, entry: str, said: str) -> None:
    error = submit(tmp_path, module, entry)["error"]
    assert error["type"] == "ConfigError" and said in error["message"]
    assert error["where"].startswith("aj.backends: ") and error["hint"]


def test_it_cannot_take_the_name_of_one_of_ours(tmp_path: Path) -> None:
    answer = submit(tmp_path, MODULE, "local = their_slurm:DESCRIPTION")
    assert answer["error"]["type"] == "UnknownServiceError" and "slurm" not in answer["services"]
