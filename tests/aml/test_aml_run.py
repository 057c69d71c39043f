"""`aj run` to Azure ML, end to end: a real daemon, real Blob, and a service that runs what it accepts."""

from __future__ import annotations

from tests.aml.project import Project
from tests.azure.cloud import Azure, Place


def test_a_job_runs_on_two_nodes_and_its_output_comes_back(project: Project, azure: Azure, place: Place) -> None:
    result = project.submitted("-n", "2", "--ppn", "2", "python", "train.py", "--lr", "1e-3", "a b")
    assert result["azure_name"] == result["name"] and result["portal_url"].startswith("https://ml.azure.com/runs/")
    job = azure.wait(place, result["azure_name"])
    assert job["status"] == "Completed", job
    logs = project.aj("job", "logs", result["id"])
    lines = sorted(line.partition(" | ")[2] for line in logs.out.splitlines() if "training" in line)
    words = "['--lr', '1e-3', 'a b']"
    assert lines == [f"training {rank} 4 {rank // 2} {words}" for rank in range(4)], logs
    status = project.aj("--json", "job", "status", result["id"][:6]).document()
    assert (status["status"], status["azure_name"]) == ("Completed", result["azure_name"])
    assert [said for said in azure.refusals() if "ResourceNotFound" not in said] == []


def test_follow_prints_the_output_and_a_failed_job_exits_1(project: Project, azure: Azure) -> None:
    ran = project.aj("run", "-t", "gpu", "--follow", "bash", "-c", "echo to the log; exit 3")
    assert ran.code == 1 and "to the log" in ran.out, ran
    done = project.aj("--json", "run", "-t", "gpu", "--follow", "echo", "fine")
    assert (done.code, done.document()["job_status"]) == (0, "Completed"), done


def test_a_queued_job_is_sent_by_the_daemon_and_waited_for(project: Project, azure: Azure, place: Place) -> None:
    queued = project.aj("--json", "run", "-t", "gpu", "--queue", "python", "train.py").document()
    assert project.aj("queue", "wait", queued["ticket"]).code == 0
    assert azure.wait(place, queued["name"])["status"] == "Completed"
