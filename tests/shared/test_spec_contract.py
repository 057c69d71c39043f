"""What every registered backend description must hold, whoever wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import UnknownServiceError
from aj.shared.job.build import Invocation, build_spec
from aj.shared.jsonio import canonical
from aj.shared.model import Identity, JobSpec, to_json
from aj.shared.paths import Home
from aj.shared.schema import load_schema, violations
from aj.shared.spec import Description, describe, seal, services, spec_from_json, spec_to_json, symbolic
from aj.shared.template.template import Template, load_template

FULL = """\
base:
config:
  target: {service: %s, name: c, subscription_id: s, resource_group: g, workspace_name: w, gpus_per_node: 1}
  environment: {image: pytorch, setup: [pwd]}
  storage: {data: {storage_account_name: acc, container_name: con}}
  jobs: [{instance_count: 1, sku: 'G{processes}', tags: ['a:b'],
    submit_args: {env: {AMLT_PERSISTENT_VOLUME_NAME: v, AMLT_PERSISTENT_VOLUME_MOUNT_DIR: /v}}}]
"""
every_service = pytest.mark.parametrize("service", services())


def template(folder: Path, service: str) -> Template:
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True)
    (home.templates / "gpu.yaml").write_text(FULL % service)
    return load_template(home, "gpu")


def job(folder: Path, service: str) -> JobSpec:
    identity = Identity("0123abcd", "My Exp.v2", "2026-01-31T08:00:00+00:00")
    return build_spec(template(folder, service), Invocation(("echo", "hi"), folder), identity).spec


def test_there_is_a_backend_that_needs_nothing() -> None:
    assert "local" in services() and list(services()) == sorted(services())


@pytest.mark.parametrize("service", ["", "LOCAL", "local ", "slurm", "local:DESCRIPTION"])
def test_an_unknown_service_lists_the_registered_ones(service: str) -> None:
    with pytest.raises(UnknownServiceError) as caught:
        describe(service)
    assert all(f"`{name}`" in (caught.value.hint or "") for name in services())


@every_service
def test_the_description_is_of_the_service_that_it_is_registered_for(service: str) -> None:
    assert isinstance(describe(service), Description) and describe(service).service == service
    assert set(describe(service).uploads) <= {"code", "bootstrap"}


@every_service
def test_options_are_frozen_and_survive_the_wire(service: str, tmp_path: Path) -> None:
    options: Any = describe(service).build_spec_backend(template(tmp_path, service))
    assert is_dataclass(options) and "__slots__" in vars(type(options))
    assert options.__hash__ is not None, "not frozen"
    document = json.loads(canonical(to_json(options)))
    assert describe(service).load_spec_backend(document) == options
    assert violations(document, f"options-{service}") == []
    assert set(load_schema(f"options-{service}")["properties"]) == {each.name for each in fields(options)}


@every_service
def test_unknown_options_are_refused(service: str, tmp_path: Path) -> None:
    document = to_json(job(tmp_path, service).backend_spec)
    assert violations({**document, "surplus": 1}, f"options-{service}") != []
    with pytest.raises(TypeError):
        describe(service).load_spec_backend({**document, "surplus": 1})


@every_service
@given(base=st.text(max_size=300), identifier=st.from_regex("[0-9a-f]{8}", fullmatch=True))
def test_any_name_becomes_one_that_keeps_its_id_and_stays(service: str, base: str, identifier: str) -> None:
    normalize = describe(service).normalize_job_name
    name = normalize(f"{base}_{identifier}")
    assert re.fullmatch(rf"[A-Za-z0-9_][A-Za-z0-9_.-]*[-_]{identifier}|_{identifier}", name)
    assert len(name) <= 255
    assert normalize(name) == name


@every_service
def test_fields_without_effect_exist_in_the_template_schema(service: str) -> None:
    schema = load_schema("template")
    for pointer, reason in describe(service).unused.items():
        assert reason and not reason.endswith(".")
        node: Mapping[str, Any] = schema["$defs"]["config"]
        for part in pointer.split("/")[1:]:
            node = resolved(schema, node)
            node = node["items"] if part.isdigit() else node.get("properties", {}).get(part)
            assert node is not None, f"`{pointer}` is no field of a template"


def resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in node:
        target: Any = schema
        for part in node["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        node = target
    return node


@every_service
def test_the_job_is_a_valid_document_and_the_same_after_the_wire(service: str, tmp_path: Path) -> None:
    spec = job(tmp_path, service)
    document = json.loads(canonical(spec_to_json(spec)))
    assert violations(document, "jobspec") == []
    assert violations(document["backend_spec"], f"options-{service}") == []
    assert spec_from_json(document) == spec


@every_service
def test_a_seal_changes_identity_fields_only(service: str, tmp_path: Path) -> None:
    spec = job(tmp_path, service)
    sealed = seal(spec, Identity("deadbeef", "other", "2027-01-31T08:00:00+00:00"))
    before, after = spec_to_json(spec), spec_to_json(sealed)
    assert {key for key in before if before[key] != after[key]} == {"identity", "name", "env"}
    changed = {key for key in spec.env.keys() | sealed.env.keys() if spec.env.get(key) != sealed.env.get(key)}
    assert changed == {"AJ_NAME", "AJ_ID", "AJ_SUBMIT_TIMESTAMP_UTC"}
    assert symbolic(sealed) == symbolic(spec) and symbolic(spec).name.endswith("00000000")
