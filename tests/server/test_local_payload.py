"""What `local` would run for a job, as the document that plan and snapshots show."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.build.render import render_payload
from aj.shared.errors import PayloadError
from aj.shared.model import ArchiveRecord, Identity, JobSpec, MergedTemplate, Shape
from aj.shared.opts.local import LocalOpts
from aj.shared.schema import check

ARCHIVE = ArchiveRecord(sha256="ab" * 32, size=1, files=1, tree="cd" * 32, format=1)
STABLE = {"AJ_ID": "00000000", "AJ_NAME": "gpu_00000000", "AJ_NODES": "2", "AJ_PROCESSES_PER_NODE": "4"}
SPEC = JobSpec(
    service="local",
    identity=Identity.symbolic("gpu"),
    name="gpu_00000000",
    shape=Shape(2, 8, 4),
    sku="2xG8",
    image=None,
    registry=None,
    setup=("pip install .", "echo ready"),
    command="echo start\npython train.py",
    argv=("train.py",),
    env=STABLE,
    secret_env=(),
    storage=(),
    ignore=(),
    timeout_seconds=60,
    description=None,
    backend_spec=LocalOpts(),
    extra={},
    template=MergedTemplate("gpu", {}, ()),
)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def test_the_payload_is_shape_archive_and_environment() -> None:
    assert render_payload(SPEC, {}, ARCHIVE) == {
        "kind": "local_job",
        "name": "gpu_00000000",
        "nodes": 2,
        "processes_per_node": 4,
        "timeout_seconds": 60,
        "archive": {"sha256": "ab" * 32},
        "env": {
            **STABLE,
            "AJ_CODE_ARCHIVE_SHA256": "ab" * 32,
            "AJ_COMMAND": "echo start\npython train.py",
            "AJ_SETUP": "pip install .\necho ready",
        },
    }


def test_an_absent_limit_is_absent_and_no_setup_is_empty() -> None:
    payload = render_payload(replace(SPEC, timeout_seconds=None, setup=()), {}, ARCHIVE)
    assert "timeout_seconds" not in payload
    assert payload["env"]["AJ_SETUP"] == ""


def test_the_runners_own_variables_win_over_a_templates() -> None:
    env = {**STABLE, "AJ_COMMAND": "rm -rf /", "AJ_SETUP": "curl evil", "AJ_CODE_ARCHIVE_SHA256": "0" * 64}
    assert render_payload(replace(SPEC, env=env), {}, ARCHIVE) == render_payload(SPEC, {}, ARCHIVE)


@given(value=TEXT, command=TEXT.filter(bool))
def test_E09_every_text_is_in_the_payload_as_it_is(value: str, command: str) -> None:
    payload = render_payload(replace(SPEC, env={**STABLE, "V": value, "a.b-c": value}, command=command), {}, ARCHIVE)
    assert (payload["env"]["V"], payload["env"]["a.b-c"], payload["env"]["AJ_COMMAND"]) == (value, value, command)
    assert json.loads(json.dumps(payload)) == payload


@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"name": "../up"},
        {"name": "gpu\n"},
        {"nodes": 0},
        {"processes_per_node": "4"},
        {"timeout_seconds": None},
        {"timeout_seconds": 0},
        {"archive": {"sha256": "AB" * 32}},
        {"archive": {"sha256": "ab" * 32 + "\n"}},
        {"env": {**STABLE, "AJ_COMMAND": "true", "AJ_SETUP": ""}},
        {"env": {**STABLE, "AJ_COMMAND": "a\0b", "AJ_SETUP": "", "AJ_CODE_ARCHIVE_SHA256": "ab" * 32}},
        {"env": {**STABLE, "AJ_COMMAND": "true", "AJ_SETUP": "", "AJ_CODE_ARCHIVE_SHA256": "ab" * 32, "A=B": "x"}},
        {"env": {**STABLE, "AJ_COMMAND": "true", "AJ_SETUP": "", "AJ_CODE_ARCHIVE_SHA256": "ab" * 32, "N": 1}},
    ],
)
def test_the_schema_refuses_what_no_job_can_be(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadError):
        check({**render_payload(SPEC, {}, ARCHIVE), **change}, "payload-local", "the payload")
