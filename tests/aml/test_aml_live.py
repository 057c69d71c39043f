"""One tiny job on a real workspace, only for whoever asks: docs/live.md has the steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aj.server.azure.arm import azure_of
from aj.shared.caller import caller
from aj.shared.paths import Home

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = """\
base:
config:
  target: {service: aml, name: %s, gpus_per_node: 1}
  environment: {image: "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"}
  jobs: [{instance_count: 1, identity: none, submit_args: {max_run_duration_seconds: 600}}]
"""
PATIENCE_SECONDS = 1800


@pytest.mark.timeout(PATIENCE_SECONDS + 300)
@pytest.mark.skipif(os.environ.get("AJ_LIVE") != "1", reason="AJ_LIVE=1 asks for a job on a real workspace")
def test_a_tiny_job_runs_on_a_real_workspace(tmp_path: Path) -> None:
    workspace = os.environ["AJ_LIVE_WORKSPACE"]
    words = workspace.split("/")
    place = {"subscription_id": words[2], "resource_group": words[4], "workspace_name": words[8]}
    code, home = tmp_path / "code", tmp_path / "code" / ".azure_jobs"
    (home / "template").mkdir(parents=True)
    (home / "template" / "live.yaml").write_text(TEMPLATE % os.environ["AJ_LIVE_COMPUTE"])
    config = {"workspace": place, "cloud": os.environ.get("AJ_LIVE_CLOUD", "public")}
    (home / "aj_config.json").write_text(json.dumps(config))
    env = {name: value for name, value in os.environ.items() if not name.startswith("AJ_")}
    env |= {"AJ_CACHE_HOME": str(tmp_path / "cache"), "AJ_RUNTIME_DIR": str(tmp_path / "run"), "PYTHONPATH": str(ROOT)}

    def aj(*given: str) -> Any:
        how: dict[str, Any] = {"cwd": code, "env": env, "capture_output": True, "text": True}
        return json.loads(subprocess.run([sys.executable, "-m", "aj", "--json", *given], check=False, **how).stdout)

    try:
        result = aj("run", "-t", "live", "bash", "-c", 'echo "hello from $AJ_NAME"')
        assert result["status"] == "submitted", result
        until = time.monotonic() + PATIENCE_SECONDS
        while (state := aj("job", "status", result["id"])["status"]) not in ("Completed", "Failed", "Canceled"):
            assert time.monotonic() < until, state
            time.sleep(15)
        assert state == "Completed", result["portal_url"]
        assert f"hello from {result['name']}" in aj("job", "logs", result["id"])["content"]
        again = aj("plan", "-t", "live", "bash", "-c", 'echo "hello from $AJ_NAME"')
        assert not again["would_change"]
    finally:
        aj("daemon", "stop", "--force")
    arm = azure_of(Home(home), caller(os.environ, code))
    job = arm.get(f"{workspace}/jobs/{result['azure_name']}")
    arm.put(
        f"{workspace}/jobs/{result['azure_name']}", {"properties": {**_kept(job["properties"]), "isArchived": True}}
    )


def _kept(properties: dict[str, Any]) -> dict[str, Any]:
    """What may be sent back."""
    never = ("status", "parameters", "services")
    return {key: value for key, value in properties.items() if key not in never and value is not None}
