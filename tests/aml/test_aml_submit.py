"""What a submission finds and says when Azure is not as the template thinks, and when an answer is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aj.server.azure import wire
from aj.shared.errors import (
    AccessError,
    AjError,
    AzureError,
    CodeError,
    ConflictError,
    LoginError,
    NotFoundError,
    OutcomeUnknownError,
    SubmissionError,
)
from aj.shared.spec import describe
from tests.aml.project import ROOT, TEMPLATE, Here, Project
from tests.azure.cloud import OTHER_SUBSCRIPTION, Azure, Place
from tests.azure.fake_az import NOT_LOGGED_IN

MOUNT = "  storage: {data: {storage_account_name: ajstoretwo, container_name: data-1, mount_dir: /mnt/data}}\n"


def nothing_was_written(azure: Azure) -> bool:
    traffic = azure.control("traffic")["requests"]
    return not [one for one in traffic if one["method"] in ("PUT", "PATCH", "DELETE")]


def test_U10_a_lost_answer_is_adopted_and_nothing_is_sent_twice(here: Here, azure: Azure) -> None:
    azure.fault("lose_after", "PUT Jobs_CreateOrUpdate")
    result = here.run()
    assert result.status == "submitted" and "adopted" in (result.note or "")
    assert azure.control("job_ids") == [result.azure_name]
    assert (result.portal_url or "").startswith("https://ml.azure.com/runs/")


def test_U10_a_request_that_never_arrived_is_a_failure_that_nothing_survives(project: Project, azure: Azure) -> None:
    azure.fault("lose_before", "PUT Jobs_CreateOrUpdate")
    result = project.run()
    assert (result["status"], result["error"]["type"]) == ("failed", "SubmissionError")
    assert azure.control("job_ids") == []


@pytest.mark.parametrize("kind", ["slow", "lose_before"])
def test_U10_a_time_out_is_looked_up_and_a_job_that_comes_to_be_later_is_adopted(
    here: Here, azure: Azure, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The client gave up after a second; the service takes the request three seconds later, or never saw it."""
    monkeypatch.setitem(wire._SECONDS, "read", 1.0)
    wire._client.cache_clear()
    azure.fault(kind, "PUT Jobs_CreateOrUpdate", seconds=3)
    if kind == "lose_before":
        with pytest.raises(SubmissionError, match="was not created"):
            here.run()
        assert azure.control("job_ids") == []
    else:
        result = here.run()
        assert azure.control("job_ids") == [result.azure_name] and "adopted" in (result.note or "")
    wire._client.cache_clear()


def test_U10_when_nobody_can_tell_the_outcome_is_unknown_with_its_own_exit_code(project: Project, azure: Azure) -> None:
    azure.fault("lose_after", "PUT Jobs_CreateOrUpdate")
    azure.fault("refuse", "GET Jobs_Get", times=100)
    ran = project.aj("--json", "run", "-t", "gpu", "python", "train.py")
    assert (ran.code, ran.document()["status"]) == (4, "unknown")
    assert len(azure.control("job_ids")) == 1


def test_a_conflict_is_looked_up_and_when_nothing_is_there_it_is_a_failure(
    here: Here, azure: Azure, place: Place
) -> None:
    azure.fault("refuse", "PUT Jobs_CreateOrUpdate", status=409, code="Conflict", message="It exists.")
    with pytest.raises(SubmissionError, match="was not created"):
        here.run()


def test_a_lost_job_is_found_although_the_project_moved_to_another_workspace(
    here: Here, azure: Azure, place: Place
) -> None:
    spec = here.spec()
    frozen = here.submissions().prepare(spec, here.caller, here.emit)
    azure.fault("lose_after", "PUT Jobs_CreateOrUpdate")
    azure.fault("refuse", "GET Jobs_Get", times=4)
    with pytest.raises(OutcomeUnknownError):
        here.submissions().execute(frozen, here.caller, here.emit)
    other = azure.workspace("ws2")
    here.project.configure(other)
    assert here.submissions().reconcile(frozen, here.caller, here.emit).azure_name == spec.name
    azure.compute(other, "gpus")
    here.submissions().prepare(spec, here.caller, here.emit)
    with pytest.raises(SubmissionError, match="another workspace now"):
        here.submissions().execute(frozen, here.caller, here.emit)
    assert azure.control("job_ids") == [spec.name]


def test_reads_outlast_throttling_and_a_busy_service(here: Here, azure: Azure) -> None:
    azure.fault("throttle", "GET Compute_Get", times=2, retry_after=1)
    azure.fault("refuse", "GET Workspaces_Get", status=503)
    azure.fault("lose_before", "GET Datastores_Get")
    assert here.run().status == "submitted"


def test_a_throttled_write_was_not_done_and_is_sent_again(here: Here, azure: Azure) -> None:
    azure.fault("throttle", "PUT Jobs_CreateOrUpdate", retry_after=1)
    result = here.run()
    assert (result.status, result.note, azure.control("job_ids")) == ("submitted", None, [result.azure_name])


def test_whoever_is_not_logged_in_is_told_what_to_run(project: Project, azure: Azure) -> None:
    azure.az.behave(error=NOT_LOGGED_IN)
    result = project.run()
    assert (result["status"], result["error"]["type"]) == ("failed", "LoginError")
    assert "az login" in result["error"]["hint"]
    assert azure.control("traffic")["requests"] == []
    ran = project.aj("auth", "status")
    assert ran.code == 1 and "az login" in ran.err


def test_a_new_daemon_asks_for_both_tokens_at_once(project: Project, azure: Azure) -> None:
    project.submitted()
    assert project.aj("daemon", "stop").code == 0
    real = azure.az.folder / "az"
    begun = project.folder / "begun"
    alone = project.folder / "bin" / "az"
    alone.parent.mkdir()
    alone.write_text(
        f"#!/bin/sh\necho >> {begun}\nfor _ in $(seq 200); do\n"
        f'  [ $(wc -l < {begun}) -ge 2 ] && exec {real} "$@"\n  sleep 0.05\ndone\necho alone >&2\nexit 1\n'
    )
    alone.chmod(0o755)
    project.submitted("python", "train.py", "again", env={"PATH": f"{alone.parent}:{os.environ['PATH']}"})
    assert begun.read_text().count("\n") == 2


def test_a_token_that_azure_refuses_is_asked_for_once_more(here: Here, azure: Azure) -> None:
    azure.az.behave(lifetime=-10)
    with pytest.raises(LoginError) as caught:
        here.run()
    assert caught.value.status_code == 401 and "az login" in (caught.value.hint or "")


def test_a_missing_role_names_action_scope_and_role(here: Here, azure: Azure) -> None:
    azure.control("deny", path="/workspaces/ws1/computes")
    with pytest.raises(AccessError, match="AuthorizationFailed") as caught:
        here.run()
    assert "Microsoft.MachineLearningServices/workspaces/read" in caught.value.message
    assert "`AzureML Data Scientist`" in (caught.value.hint or "") and nothing_was_written(azure)


def test_a_missing_compute_lists_those_that_are_there(here: Here, project: Project, azure: Azure) -> None:
    project.template("gpu", TEMPLATE.replace("gpus,", "gpsu,"))
    with pytest.raises(NotFoundError, match="no compute `gpsu` in the workspace `ws1`") as caught:
        here.run()
    assert "`gpus`" in (caught.value.hint or "") and nothing_was_written(azure)


def test_a_missing_workspace_lists_those_that_you_can_see(here: Here, project: Project, azure: Azure) -> None:
    project.template("gpu", TEMPLATE.replace("name: gpus", "name: gpus, workspace_name: ws2"))
    with pytest.raises(NotFoundError, match="no workspace `ws2` that you can see") as caught:
        here.run()
    assert "`ws1` (resource group `research`)" in (caught.value.hint or "")


def test_without_a_workspace_the_only_one_with_the_compute_is_found(here: Here, project: Project, azure: Azure) -> None:
    azure.settings(page_size=1)
    others = [azure.workspace(f"other{number}", group="b") for number in range(3)]
    project.configure(None)
    result = here.run()
    assert result.status == "submitted"
    azure.compute(others[1], "GPUS")
    (project.home / "build").rename(project.folder / "old-build")
    with pytest.raises(ConflictError, match="exists more than once") as caught:
        here.run("echo", "again")
    assert "`ws1`" in caught.value.message and "`other1`" in caught.value.message
    assert "aj ws set" in (caught.value.hint or "")


def test_a_workspace_name_in_two_groups_needs_more_words(here: Here, project: Project, azure: Azure) -> None:
    azure.workspace("twin", group="a")
    twin = azure.workspace("twin", group="b", subscription=OTHER_SUBSCRIPTION)
    azure.compute(twin, "gpus")
    project.template("gpu", TEMPLATE.replace("name: gpus", "name: gpus, workspace_name: twin"))
    with pytest.raises(ConflictError, match="`twin` exists more than once"):
        here.run()
    project.template("gpu", TEMPLATE.replace("name: gpus", "name: gpus, workspace_name: twin, resource_group: b"))
    assert here.run().status == "submitted"


def test_more_nodes_than_the_compute_can_have_are_refused_before_anything(here: Here, azure: Azure) -> None:
    with pytest.raises(AzureError, match="at most 4 nodes, the job wants 5") as caught:
        here.run(nodes=5)
    assert "-n 4" in (caught.value.hint or "") and nothing_was_written(azure)


def test_an_environment_that_the_service_refuses_is_an_error_and_no_fall_back(here: Here, azure: Azure) -> None:
    azure.fault("refuse", "PUT EnvironmentVersions", status=400, code="UserError", message="Unknown registry.")
    with pytest.raises(SubmissionError, match=r"cannot be registered: .*Unknown registry"):
        here.run()
    assert azure.control("job_ids") == []
    assert here.run("echo", "again").status == "submitted"


def test_a_lost_answer_of_a_registration_is_looked_up(here: Here, azure: Azure) -> None:
    azure.fault("lose_after", "PUT EnvironmentVersions")
    assert here.run().status == "submitted"
    azure.fault("lose_before", "PUT Datastores")
    (here.project.home / "template" / "gpu.yaml").write_text(TEMPLATE + MOUNT)
    with pytest.raises(SubmissionError, match="cannot be registered"):
        here.run("echo", "mounted")


def test_a_datastore_of_our_name_with_another_container_is_refused(here: Here, azure: Azure, place: Place) -> None:
    here.project.template("gpu", TEMPLATE + MOUNT)
    here.run()
    (path,) = [
        one["path"] for one in azure.control("traffic")["requests"] if one["operation"] == "Datastores_CreateOrUpdate"
    ]
    body = {"datastoreType": "AzureBlob", "accountName": "ajstoretwo", "containerName": "foreign"}
    azure.request("PUT", path, {"properties": {**body, "credentials": {"credentialsType": "None"}}})
    (here.project.home / "build").rename(here.project.folder / "old-build")
    with pytest.raises(ConflictError, match=r"the datastore of `storage.data` is there"):
        here.run("echo", "again")


def test_a_refused_job_says_what_the_service_says_and_facts_are_read_again(here: Here, azure: Azure) -> None:
    here.run()
    azure.fault("refuse", "PUT Jobs_CreateOrUpdate", status=400, code="QuotaExceeded", message="No cores are left.")
    with pytest.raises(SubmissionError, match=r"400 QuotaExceeded: No cores are left") as caught:
        here.run("echo", "again")
    assert caught.value.azure_code == "QuotaExceeded"
    with azure.window() as seen:
        here.run("echo", "once more")
    assert "GET Compute_Get 200" in seen.lines()


def test_plan_writes_nothing_and_offline_asks_nothing(project: Project, azure: Azure) -> None:
    first = project.aj("--json", "plan", "-t", "gpu", "--offline", "python", "train.py")
    assert first.code == 0 and azure.control("traffic")["requests"] == [] and azure.az.calls() == []
    planned = project.aj("--json", "plan", "-t", "gpu", "python", "train.py").document()
    assert nothing_was_written(azure) and planned["would_change"]
    verdicts = {step["name"]: step["verdict"] for step in planned["steps"]}
    assert (verdicts["upload-code"], verdicts["upload-bootstrap"], verdicts["submit"]) == ("would",) * 3
    project.submitted("python", "train.py")
    again = project.aj("--json", "plan", "-t", "gpu", "python", "train.py").document()
    assert not again["would_change"], again["diffs"]
    azure.control("forget_traffic")
    offline = project.aj("--json", "plan", "-t", "gpu", "--offline", "python", "train.py").document()
    assert not offline["would_change"] and azure.control("traffic")["requests"] == []


def test_no_token_and_no_key_is_written_anywhere(project: Project, azure: Azure, place: Place) -> None:
    azure.control("account", name=place.account, data_role=False)
    azure.fault("lose_after", "PUT Blob", "blob")
    ran = project.aj("run", "-t", "gpu", "--env", "API_TOKEN=hush-hush-hush", "python", "train.py")
    assert ran.code == 0, ran.err
    name = azure.control("job_ids")[0]
    azure.wait(place, name)
    project.aj("job", "logs", name)
    key = azure.azurite.keys[place.account]
    texts = {path: path.read_bytes() for path in project.folder.rglob("*") if path.is_file()}
    texts[Path("output")] = (ran.out + ran.err).encode()
    for secret in (key, "eyJ0eXAi", "eyJhbGci", "sig=", "hush-hush-hush"):
        found = [path for path, text in texts.items() if secret.encode() in text and path.suffix != ".py"]
        assert found == [], (secret, found)


def test_provenance_travels_as_tags_and_is_not_compared(project: Project, azure: Azure, place: Place) -> None:
    import subprocess

    def git(*words: str) -> str:
        how = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(how, cwd=project.code, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "train.py")
    git("commit", "-qm", "one")
    result = project.submitted("python", "train.py")
    tags = azure.control("job", workspace=place.id, id=result["azure_name"])["properties"]["tags"]
    assert (tags["git_commit"], tags["git_dirty"]) == (git("rev-parse", "HEAD"), "false")
    assert tags["aj_id"] == result["id"] and tags["aj_archive_sha256"] == result["archive"]["sha256"]
    assert tags["aj_version"]
    git("commit", "-q", "--allow-empty", "-m", "two")
    planned = project.aj("--json", "plan", "-t", "gpu", "python", "train.py").document()
    assert not planned["would_change"]


@pytest.mark.parametrize("cloud", ["mars", {"name": "public", "blobs": "x"}, 7, {"arm": "http://example.com"}])
def test_a_cloud_that_is_none_is_refused_with_its_place(here: Here, azure: Azure, cloud: object) -> None:
    here.project.home.joinpath("aj_config.json").write_text(json.dumps({"cloud": cloud}))
    with pytest.raises(AjError) as caught:
        here.run()
    assert caught.value.exit_code == 2 and "aj_config.json/cloud" in (caught.value.where or "")


def test_our_token_goes_to_the_clouds_own_hosts_only(here: Here, azure: Azure, place: Place) -> None:
    here.project.configure(place, cloud={"arm": azure.arm, "storage_suffix": "core.elsewhere.net"})
    with pytest.raises(AzureError, match=r"`core.windows.net`, which is not `core.elsewhere.net`"):
        here.run()
    assert nothing_was_written(azure) and not [
        one for one in azure.control("traffic")["requests"] if one["surface"] == "blob"
    ]


def test_an_archive_over_the_limit_names_the_largest_files_and_the_ignore_file(
    here: Here, azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = replace(describe("aml"), upload_limit=1 << 20)
    monkeypatch.setattr("aj.server.submission.describe", lambda service: limited)
    (here.project.code / "weights.bin").write_bytes(os.urandom(3 << 20))
    for attempt in (here.plan, here.run):
        with pytest.raises(CodeError, match="has 3 MiB, but one upload takes 1 MiB") as caught:
            attempt()
        assert "`weights.bin` (3 MiB)" in (caught.value.hint or "") and "`.amltignore`" in (caught.value.hint or "")
    assert nothing_was_written(azure)
    assert describe("aml").upload_limit == 5000 * 1024 * 1024


@pytest.mark.parametrize(("point", "made"), [("step submit", False), ("executed", True)])
def test_D09_a_daemon_killed_around_the_send_is_told_truly_by_the_next(
    project: Project, azure: Azure, point: str, made: bool
) -> None:
    """Killed before the PUT: surely absent, failed. Killed between the PUT and the record: adopted, never sent again."""
    started = project.aj("daemon", "start", env={"AJ_DEBUG": "1", "AJ_DEBUG_STOP_AT": point})
    assert started.code == 0, started.err
    daemon = project.aj("--json", "daemon", "status").document()["pid"]
    words = [sys.executable, "-m", "aj", "--json", "run", "-t", "gpu", "python", "train.py"]
    env = {**project.env, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=project.code, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        stopped = Path(f"/proc/{daemon}/stat")
        assert eventually(lambda: stopped.read_text().rpartition(") ")[2].startswith("T"))
        os.kill(daemon, signal.SIGKILL)
        told = json.loads(client.communicate(timeout=60)[0])
    assert (client.returncode, told["status"]) == (4, "unknown")
    assert eventually(lambda: entry_of(project)["state"] in ("done", "failed"))
    entry = entry_of(project)
    assert len(azure.control("job_ids")) == made
    assert entry["state"] == ("done" if made else "failed"), entry
    assert not made or "adopted" in entry["result"]["note"]


def entry_of(project: Project) -> dict[str, Any]:
    (entry,) = project.aj("--json", "queue", "list").document()["entries"]
    assert isinstance(entry, dict)
    return entry


def eventually(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
