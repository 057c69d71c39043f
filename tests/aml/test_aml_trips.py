"""How many round trips a submission takes, one after the other, with 300 ms of latency in each."""

from __future__ import annotations

import pytest

from tests.aml.project import Project
from tests.azure.cloud import Azure

MOUNTS = """\
base:
config:
  target: {service: aml, name: gpus, gpus_per_node: 1}
  environment: {image: pytorch/pytorch:2.5.1}
  storage:
    data: {storage_account_name: ajstoretwo, container_name: data}
    out: {storage_account_name: ajstoretwo, container_name: out-1, mount_dir: /mnt/results}
  jobs: [{instance_count: 1}]
"""


def test_cold_takes_five_round_trips_at_most_and_warm_takes_two(project: Project, azure: Azure) -> None:
    project.template("mounts", MOUNTS)
    azure.settings(latency_ms=300)  # far more than a busy machine needs to start two requests
    with azure.window() as cold:
        project.submitted(template="mounts")
    with azure.window() as warm:
        project.submitted("python", "train.py", "again", template="mounts")
    with azure.window() as plan:
        planned = project.aj("--json", "plan", "-t", "mounts", "python", "train.py")
    for name, seen in (("cold", cold), ("warm", warm), ("plan", plan)):
        print(
            f"{name}: {seen.sequential} sequential, wall {seen.seconds / 0.3:.1f} latencies", *seen.lines(), sep="\n  "
        )
    assert cold.sequential <= 5
    assert len({(one["method"], one["path"]) for one in cold.requests}) == len(cold.requests), "a repeated call"
    assert warm.sequential <= 2 and len(warm.requests) == 3
    assert planned.code == 0 and plan.sequential == 1 and len(plan.requests) == 2


@pytest.mark.parametrize("others", [0, 1])
def test_cold_takes_five_round_trips_at_most_when_the_workspace_is_searched_for(
    project: Project, azure: Azure, others: int
) -> None:
    for number in range(others):
        azure.compute(azure.workspace(f"other{number}"), "elsewhere")
    project.configure()
    project.template("mounts", MOUNTS)
    azure.settings(latency_ms=300)
    with azure.window() as cold:
        project.submitted(template="mounts")
    print(f"{cold.sequential} sequential", *cold.lines(), sep="\n  ")
    assert cold.sequential <= 5
    assert len({(one["method"], one["path"]) for one in cold.requests}) == len(cold.requests), "a repeated call"
