"""What plan may touch, what it may not, and what a submission does when an answer is lost."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from aj.build.effects import ReadOnly, Sealed, Upload
from aj.server.submission import frozen_from_json, frozen_to_json
from aj.server.submit import get_execution
from aj.shared.errors import InputError, OutcomeUnknownError, ReadOnlyError, SubmissionError
from aj.shared.model import Event, nowhere


def test_G01_an_input_edited_while_a_step_runs_is_stale_next_time(project_of_double: Any) -> None:
    project = project_of_double
    large = project.code / "z.bin"
    large.write_bytes(b"old" * 3_000_000)

    def edit_once(event: Event) -> None:
        if event.kind == "pack" and (project.code / "train.py").read_text() == "print(1)\n":
            (project.code / "train.py").write_text("print(2)\n")

    first = project.submissions.prepare(project.spec(), project.caller, edit_once)
    second = project.submissions.prepare(project.spec(), project.caller, nowhere)
    with tarfile.open(project.submissions.store.path(second.archive.sha256)) as archive:
        member = archive.extractfile("train.py")
        assert member is not None and member.read() == b"print(2)\n"
    assert first.archive.tree != second.archive.tree or first.archive == second.archive


def test_G09_a_plan_writes_nothing_to_the_remote_and_works_without_one(project_of_double: Any) -> None:
    project = project_of_double
    plan = project.submissions.plan(project.spec(), project.caller, nowhere)
    assert {step.name: step.verdict for step in plan.steps if step.kind == "write"} == {
        "upload-code": "would",
        "upload-bootstrap": "would",
        "submit": "would",
    }
    assert not project.remote.exists()
    offline = project.submissions.plan_offline(project.spec(), project.caller, nowhere)
    assert {step.verdict for step in offline.steps if step.name.startswith("upload")} == {"unknown"}
    assert [why.reason for step in offline.steps if step.name == "upload-code" for why in step.why] == [
        "never_verified"
    ]


def test_every_write_is_refused_where_only_reads_are_allowed(project_of_double: Any) -> None:
    project = project_of_double
    frozen = project.submissions.prepare(project.spec(), project.caller, nowhere)
    path = project.submissions.store.path(frozen.archive.sha256)
    upload = Upload("code", frozen.archive.sha256, frozen.archive.size, path)
    effects = ReadOnly(get_execution("double").effects(project.home, project.caller))
    with pytest.raises(ReadOnlyError, match="upload `code`"):
        effects.upload(upload, frozen.facts, nowhere)
    with pytest.raises(ReadOnlyError, match="submit `job_0a1b2c3d`"):
        effects.submit(Sealed(frozen.spec, frozen.payload, (upload,), path), {}, nowhere)
    assert project.log() == []


def test_the_second_run_with_other_arguments_uploads_nothing(project_of_double: Any) -> None:
    project = project_of_double
    for number in range(5):
        spec = project.spec("echo", str(number), id=f"{number:08x}")
        project.submissions.execute(project.submissions.prepare(spec, project.caller, nowhere), project.caller, nowhere)
    did = [line.split()[0] for line in project.log()]
    assert (sorted(did[:2]), did[2:]) == (["upload-bootstrap", "upload-code"], ["submit"] * 5)


def test_a_saved_plan_is_refused_when_an_input_has_moved(project_of_double: Any) -> None:
    project = project_of_double
    plan = project.submissions.plan(project.spec(), project.caller, nowhere)
    assert project.submissions.prepare(project.spec(), project.caller, nowhere, plan.payload_sha256)
    (project.code / "train.py").write_text("print(3)\n")
    with pytest.raises(InputError, match="moved"):
        project.submissions.prepare(project.spec(), project.caller, nowhere, plan.payload_sha256)


def test_D08_what_is_frozen_survives_json_and_later_edits(project_of_double: Any) -> None:
    project = project_of_double
    frozen = project.submissions.prepare(project.spec(), project.caller, nowhere)
    again = frozen_from_json(json.loads(json.dumps(frozen_to_json(frozen))))
    assert frozen_to_json(again) == frozen_to_json(frozen)
    (project.code / "train.py").write_text("print('edited')\n")
    project.submissions.execute(again, project.caller, nowhere)
    sent = json.loads((project.remote / "jobs" / "job_0a1b2c3d.json").read_text())
    assert sent["env"]["AJ_CODE_ARCHIVE_SHA256"] == frozen.archive.sha256


def test_U10_an_answer_lost_after_success_is_adopted(project_of_double: Any) -> None:
    project = project_of_double
    frozen = project.submissions.prepare(project.spec(), project.caller, nowhere)
    project.remote.mkdir()
    (project.remote / "fault").write_text("lost after")
    result = project.submissions.execute(frozen, project.caller, nowhere)
    assert (result.status, result.azure_name) == ("submitted", "job_0a1b2c3d")
    assert result.note is not None and "adopted" in result.note
    assert len(list((project.remote / "jobs").iterdir())) == 1


def test_U10_an_answer_lost_before_the_write_is_a_failure_with_nothing_left(project_of_double: Any) -> None:
    project = project_of_double
    frozen = project.submissions.prepare(project.spec(), project.caller, nowhere)
    project.remote.mkdir()
    (project.remote / "fault").write_text("lost before")
    with pytest.raises(SubmissionError, match="was not created"):
        project.submissions.execute(frozen, project.caller, nowhere)


def test_U10_when_the_look_up_fails_too_the_outcome_is_unknown(project_of_double: Any) -> None:
    project = project_of_double
    frozen = project.submissions.prepare(project.spec(), project.caller, nowhere)
    project.remote.mkdir()
    (project.remote / "fault").write_text("lost after")
    (project.remote / "blind").touch()
    with pytest.raises(OutcomeUnknownError):
        project.submissions.execute(frozen, project.caller, nowhere)
    assert project.submissions.plan(project.spec(), project.caller, nowhere).baseline is None


def test_env_values_are_hidden_in_the_build_folder_and_clear_in_what_is_sent(project_of_double: Any) -> None:
    project = project_of_double
    spec = project.spec(env={"HF_TOKEN": "hf_the_marker", "MODE": "a_marker_too"})
    frozen = project.submissions.prepare(spec, project.caller, nowhere)
    project.submissions.execute(frozen, project.caller, nowhere)
    sent = (project.remote / "jobs" / "job_0a1b2c3d.json").read_text()
    assert "hf_the_marker" in sent and "a_marker_too" in sent
    kept = [path for path in Path(project.home.root).rglob("*") if path.is_file() and b"_marker" in path.read_bytes()]
    assert kept == []


def test_a_secret_that_changes_is_a_change(project_of_double: Any) -> None:
    project = project_of_double
    first = project.submissions.prepare(project.spec(env={"T": "one"}), project.caller, nowhere)
    project.submissions.execute(first, project.caller, nowhere)
    plan = project.submissions.plan(project.spec(env={"T": "two"}), project.caller, nowhere)
    assert plan.would_change
    spec = next(step for step in plan.steps if step.name == "spec")
    assert (spec.verdict, [(why.reason, why.detail) for why in spec.why]) == ("changed", [("key_changed", "env.T")])
    assert "one" not in plan.diffs["payload"] and "<hidden" in plan.diffs["payload"]
