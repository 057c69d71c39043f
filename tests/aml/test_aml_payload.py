"""Payloads of Azure ML jobs, held against the service's contract and its own old models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
from aj.shared.job.build import Invocation, build_spec
from aj.shared.jsonio import read_json
from aj.shared.model import Identity, JobSpec
from aj.shared.paths import Home
from aj.shared.schema import violations
from aj.shared.template.template import load_template
from fixtures.cases import cases, spec_of
from tests.azure.second_opinion import lost_keys

AML = [case for case in cases() if spec_of(case).spec.service == "aml"]
TEMPLATE = """\
base:
config:
  target: {service: aml, name: c, gpus_per_node: 1}
  environment: {image: ubuntu}
  storage: {m: {storage_account_name: acc, container_name: con}}
  jobs: [{instance_count: 1}]
"""


@pytest.fixture(scope="session")
def contract(contracts: Path) -> Draft202012Validator:
    return Draft202012Validator(json.loads((contracts / "aml-commandjob.contract.schema.json").read_text()))


def faults(contract: Draft202012Validator, body: Any) -> list[str]:
    return [f"{list(error.absolute_path)}: {error.message}" for error in contract.iter_errors(body)]


def test_there_are_ten_templates_of_this_service() -> None:
    assert len(AML) >= 10


@pytest.mark.parametrize("case", AML, ids=lambda case: case.name)
def test_every_golden_payload_keeps_the_services_contract(case: Any, contract: Draft202012Validator) -> None:
    body = read_json(case.folder / "golden" / "payload.json")["payload"]
    assert faults(contract, body) == []
    assert set(lost_keys(body)) <= {"/properties/limits/timeout"}, "one duration has several spellings"
    assert body["properties"]["command"] == "bash ${{inputs.aj_bootstrap}} ${{inputs.aj_code_archive}}"


def job(folder: Path, **more: Any) -> JobSpec:
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True, exist_ok=True)
    (home.templates / "t.yaml").write_text(TEMPLATE)
    identity = Identity("0123abcd", "x", "2026-01-31T08:00:00+00:00")
    return build_spec(load_template(home, "t"), Invocation(("echo",), folder, **more), identity).spec


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@given(env=st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,20}", fullmatch=True), TEXT), word=TEXT)
def test_any_environment_and_command_arrive_exactly(
    tmp_path_factory: pytest.TempPathFactory, contract: Draft202012Validator, env: dict[str, str], word: str
) -> None:
    spec = job(tmp_path_factory.getbasetemp() / "any")
    own = dict(spec.env)
    spec = replace(spec, env={**env, **own}, command=f"echo {word}")
    facts = symbolic_facts("aml")
    body = render_payload(spec, facts, SYMBOLIC_ARCHIVE, {"git_commit": word[:100]})
    assert faults(contract, body) == [] and violations(body, "payload-aml") == []
    sent = body["properties"]["environmentVariables"]
    assert {name: sent[name] for name in env if name not in own} == {k: v for k, v in env.items() if k not in own}
    assert sent["AJ_COMMAND"] == f"echo {word}" and body["properties"]["tags"]["git_commit"] == word[:100]
