"""The remote life of Azure ML jobs: lists with filters and pages, logs by ranges, cancel, and what else can be seen."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from aj.server.submit.aml import jobs as module
from aj.shared.errors import ConflictError, NotFoundError
from tests.aml.project import ROOT, Here, Project
from tests.azure.cloud import OTHER_SUBSCRIPTION, Azure, Place
from tests.azure.fake_az import NOT_LOGGED_IN

COUNT = "import time\nfor n in range(3):\n    print('line', n, flush=True)\n    time.sleep(0.3)\n"


def test_lists_are_newest_first_filtered_and_read_no_further_than_needed(project: Project, azure: Azure) -> None:
    here = Here(project)
    names = [here.run("echo", str(number)).azure_name for number in range(7)]
    project.configure(None, experiment="other")  # the workspace is known from the submissions
    azure.settings(page_size=2)
    with azure.window() as seen:
        listed = project.aj("--json", "job", "list", "--limit", "3").document()
    assert [row["azure_name"] for row in listed["jobs"]] == names[:3:-1]
    assert seen.lines() == ["GET Jobs_List 200"] * 2
    everything = project.aj("--json", "job", "list", "--experiment", "Default", "--backend", "aml").document()
    assert [row["azure_name"] for row in everything["jobs"]] == names[::-1]
    assert {"id", "status", "nodes", "created_at", "portal_url"} <= set(everything["jobs"][0])
    none = project.aj("--json", "job", "list", "--status", "paused").document()
    assert none["jobs"] == []


def test_a_job_that_somebody_else_submitted_is_found_by_its_short_id(
    project: Project, azure: Azure, place: Place
) -> None:
    result = Here(project).run()
    azure.wait(place, str(result.azure_name))
    (project.home / "build").rename(project.folder / "old-build")  # what this project remembers
    azure.settings(page_size=1)
    found = project.aj("--json", "job", "show", result.id[:5]).document()["job"]
    assert (found["azure_name"], found["status"], found["id"]) == (result.azure_name, "Completed", result.id)
    assert found["tags"]["aj_template"] == "gpu" and found["compute"] == "gpus" and found["ended_at"]
    missing = project.aj("job", "show", "deadbeef")
    assert missing.code == 2 and "no job `deadbeef` in `ws1`" in missing.err


def test_logs_say_why_there_are_none_yet_and_follow_to_the_end(project: Project, azure: Azure, place: Place) -> None:
    (project.code / "count.py").write_text(COUNT)
    azure.settings(hold=True)
    result = project.submitted("python", "count.py")
    azure.wait(place, result["azure_name"], "Queued")
    early = project.aj("job", "logs", result["id"])
    assert (early.code, early.out) == (0, "") and "no logs yet: the job is Queued" in early.err
    command = [sys.executable, "-m", "aj", "job", "logs", "-f", result["id"]]
    env = {**project.env, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=project.code, env=env, stdout=subprocess.PIPE, text=True) as following:
        azure.settings(hold=False)
        out, _ = following.communicate(timeout=60)
    assert out == "line 0\nline 1\nline 2\n" and following.returncode == 0


def test_one_of_several_logs_can_be_chosen(project: Project, azure: Azure, place: Place) -> None:
    result = Here(project).run(nodes=2)
    azure.wait(place, str(result.azure_name))
    names = sorted(azure.logs(place, str(result.azure_name)))
    assert len(names) == 2
    one = project.aj("job", "logs", result.id, "--file", names[1])
    assert one.out.count("training") == 1 and "training 1 2" in one.out
    wrong = project.aj("job", "logs", result.id, "--file", "stdout")
    assert wrong.code == 2 and all(f"`{name}`" in wrong.err for name in names)


def test_logs_come_in_ranges_that_cut_no_character(
    here: Here, azure: Azure, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE_BYTES", 7)
    result = here.run("echo", "äöü 日本語 🚀 end")
    azure.wait(place, str(result.azure_name))
    cursor: dict[str, int] = {}
    text, pages, finished = "", 0, False
    while not finished:
        page = here.jobs().logs(str(result.azure_name), cursor)
        text += "".join(chunk.text for chunk in page.chunks)
        cursor, finished, pages = dict(page.cursor), page.finished, pages + 1
    assert text.endswith("äöü 日本語 🚀 end\n") and "\ufffd" not in text and pages > 3


def test_a_running_job_is_canceled_and_an_ended_one_stays(project: Project, azure: Azure, place: Place) -> None:
    result = Here(project).run("sleep", "60")
    azure.wait(place, str(result.azure_name), "Running")
    canceled = project.aj("--json", "job", "cancel", result.id).document()
    assert (canceled["status"], canceled["azure_name"]) == ("Canceled", result.azure_name)
    with azure.window() as seen:
        assert project.aj("--json", "job", "cancel", result.id).document()["status"] == "Canceled"
    assert not [line for line in seen.lines() if line.startswith("POST")]


def test_without_any_workspace_the_way_to_one_is_named(project: Project, azure: Azure) -> None:
    azure.workspace("ws2")
    project.configure(None)
    with pytest.raises(NotFoundError, match="you can see 2") as caught:
        list(Here(project).jobs().list_jobs())
    assert "aj ws set" in (caught.value.hint or "")


LOCAL = """\
base:
config:
  target: {service: local, gpus_per_node: 1}
  jobs: [{instance_count: 1}]
"""


def test_a_list_has_what_is_reachable_and_says_what_is_not(project: Project, azure: Azure) -> None:
    project.template("here", LOCAL)
    ran = project.submitted(template="here")
    azure.az.behave(error=NOT_LOGGED_IN)
    listed = project.aj("--json", "job", "list")
    document = listed.document()
    assert listed.code == 0 and [job["azure_name"] for job in document["jobs"]] == [ran["azure_name"]]
    (warning,) = document["warnings"]
    assert "`aml`" in warning["message"] and "az login" in warning["hint"]
    shown = project.aj("job", "list")
    assert shown.code == 0 and "warning: the jobs of `aml` cannot be listed" in shown.err
    assert ran["azure_name"] in shown.out
    alone = project.aj("--json", "job", "list", "--backend", "aml")
    assert alone.code != 0 and alone.document()["error"]["type"] == "LoginError"


def test_the_start_of_several_ids_is_refused(here: Here, azure: Azure, place: Place) -> None:
    for identifier in ("abcd0001", "abcd0002"):
        azure.environment(place)
        job = {
            "jobType": "Command",
            "command": "true",
            "environmentId": "azureml:env:1",
            "computeId": f"{place.id}/computes/gpus",
            "tags": {"aj_id": identifier},
        }
        azure.request("PUT", f"{place.id}/jobs/j_{identifier}", {"properties": job}).raise_for_status()
    with pytest.raises(ConflictError, match="start of several"):
        here.jobs().show("abcd")


def test_workspaces_are_listed_chosen_and_shown(project: Project, azure: Azure) -> None:
    azure.settings(page_size=1)
    azure.workspace("twin", group="a")
    azure.workspace("twin", group="b", subscription=OTHER_SUBSCRIPTION)
    listed = project.aj("--json", "ws", "list").document()
    assert [(row["name"], row["configured"]) for row in listed["workspaces"]] == [
        ("twin", False),
        ("twin", False),
        ("ws1", True),
    ]
    ambiguous = project.aj("ws", "set", "twin")
    assert ambiguous.code == 2 and "2 workspaces are called `twin`" in ambiguous.err and "`-g`" in ambiguous.err
    assert project.aj("ws", "set", "twin", "-g", "b").code == 0
    config = json.loads((project.home / "aj_config.json").read_text())
    assert config["workspace"] == {
        "subscription_id": OTHER_SUBSCRIPTION,
        "resource_group": "b",
        "workspace_name": "twin",
    }
    assert config["cloud"], "other keys are kept"
    assert "twin" in project.aj("ws", "show").out
    assert project.aj("ws", "set", "--unset").code == 0
    nothing = project.aj("ws", "show")
    assert nothing.code == 2 and "aj ws list" in nothing.err


def test_experiments_computes_and_login_are_shown(project: Project, azure: Azure, place: Place) -> None:
    azure.compute(place, "cpus", "STANDARD_D4S_V3", 9)
    Here(project).run()
    project.configure(place, experiment="vision")
    Here(project).run("echo", "two")
    experiments = project.aj("--json", "exp", "list").document()["experiments"]
    assert [(row["name"], row["jobs"]) for row in experiments] == [("vision", 1), ("Default", 1)]
    computes = project.aj("--json", "quota", "list", "--aml").document()["computes"]
    assert [(row["name"], row["max_nodes"]) for row in computes] == [("gpus", 4), ("cpus", 9)]
    login = project.aj("--json", "auth", "status").document()
    assert (login["logged_in"], login["source"]) == (True, "az") and login["workspace"] == place.id
    assert len(azure.az.calls()) <= 4, "tokens stay in memory"
