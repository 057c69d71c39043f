"""A JobSpec is a document: to JSON and back without a change, held by a strict schema, sealed in its identity alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.jsonio import canonical
from aj.shared.model import Identity, JobSpec, MergedTemplate, Mount, Shape, Source
from aj.shared.opts.local import LocalOpts
from aj.shared.paths import shipped
from aj.shared.schema import load_schema, violations
from aj.shared.spec import seal, spec_from_json, spec_to_json, symbolic

_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
_some = _text.filter(bool)
_count = st.integers(1, 10_000)
_name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_text, _json, max_size=3)
_digest = st.from_regex("[0-9a-f]{64}", fullmatch=True)
_identity = st.builds(
    Identity,
    st.from_regex("[0-9a-f]{8}", fullmatch=True),
    _some,
    st.datetimes().map(lambda when: when.replace(microsecond=0).isoformat() + "+00:00"),
)
_STABLE = (
    "TEMPLATE",
    "NODES",
    "GPUS_PER_NODE",
    "PROCESSES",
    "PROCESSES_PER_NODE",
    "NAME",
    "ID",
    "SUBMIT_TIMESTAMP_UTC",
)
_stable = st.fixed_dictionaries({f"AJ_{name}": _text for name in _STABLE})
_specs = st.builds(
    JobSpec,
    service=st.just("local"),
    identity=_identity,
    name=_some,
    shape=st.builds(Shape, _count, _count, _count),
    sku=st.none() | _text,
    image=st.none() | _text,
    registry=st.none() | _text,
    setup=st.lists(_text, max_size=3).map(tuple),
    command=_some,
    argv=st.lists(_text, min_size=1, max_size=3).map(tuple),
    env=st.builds(lambda own, stable: {**own, **stable}, st.dictionaries(_name, _text, max_size=3), _stable),
    secret_env=st.lists(_name, unique=True, max_size=3).map(tuple),
    storage=st.lists(st.builds(Mount, _some, _some, _some, st.from_regex("/[a-z]+", fullmatch=True)), max_size=2).map(
        tuple
    ),
    ignore=st.lists(_text, max_size=3).map(tuple),
    timeout_seconds=st.none() | _count,
    description=st.none() | _text,
    backend_spec=st.just(LocalOpts()),
    extra=_objects,
    template=st.builds(
        MergedTemplate, _some, _objects, st.lists(st.builds(Source, _some, _digest), max_size=2).map(tuple)
    ),
    via=st.sampled_from([None, "amlt"]),
)


@given(_specs)
def test_to_json_and_back_is_the_same_job(spec: JobSpec) -> None:
    document = spec_to_json(spec)
    assert spec_from_json(json.loads(canonical(document))) == spec
    assert violations(document, "jobspec") == []


@given(_specs, _identity)
def test_a_seal_changes_the_identity_and_nothing_else(spec: JobSpec, identity: Identity) -> None:
    sealed = seal(spec, identity)
    assert sealed.identity == identity and sealed.name.endswith(f"_{identity.id}")
    assert sealed.env == {
        **spec.env,
        "AJ_NAME": sealed.name,
        "AJ_ID": identity.id,
        "AJ_SUBMIT_TIMESTAMP_UTC": identity.submitted_at,
    }
    assert replace(sealed, identity=spec.identity, name=spec.name, env=spec.env) == spec
    assert seal(sealed, identity) == sealed
    assert symbolic(sealed) == symbolic(spec)


def document() -> dict[str, Any]:
    """A valid document, to spoil."""
    stable = {f"AJ_{name}": "x" for name in _STABLE}
    return {
        "service": "local",
        "identity": {"id": "0123abcd", "base": "b", "submitted_at": "2026-01-31T08:00:00+00:00"},
        "name": "b_0123abcd",
        "shape": {"nodes": 1, "processes": 1, "processes_per_node": 1},
        **dict.fromkeys(("via", "sku", "image", "registry", "timeout_seconds", "description")),
        "setup": [],
        "command": "echo",
        "argv": ["echo"],
        "env": stable,
        "secret_env": [],
        "storage": [{"name": "a", "account": "acc", "container": "con", "mount_dir": "/mnt/a"}],
        "ignore": [],
        "backend_spec": {},
        "extra": {},
        "template": {"name": "gpu", "raw": {}, "sources": [{"path": "template/gpu.yaml", "sha256": "0" * 64}]},
    }


def test_the_document_to_spoil_is_valid() -> None:
    assert violations(document(), "jobspec") == []
    assert spec_to_json(spec_from_json(document())) == document()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("extra_key", 1),
        ("identity/id", "0123abcd\n"),
        ("identity/id", "0123ABCD"),
        ("identity/submitted_at", "2026-01-31T08:00:00Z"),
        ("identity/surplus", 1),
        ("shape/nodes", 0),
        ("shape/nodes", 1.5),
        ("shape/nodes", True),
        ("argv", []),
        ("command", ""),
        ("env/A B", "x"),
        ("env/A\n", "x"),
        ("env/A", 1),
        ("secret_env", ["A", "A"]),
        ("storage/0/mount_dir", "mnt"),
        ("storage/0/mount_dir", "/mnt\n"),
        ("timeout_seconds", 0),
        ("backend_spec", None),
        ("template/sources/0/sha256", "0" * 64 + "\n"),
        ("setup", "pip list"),
    ],
)
def test_T16_the_schema_is_strict(place: str, value: Any) -> None:
    spoilt = document()
    holder: Any = spoilt
    *way, last = place.split("/")
    for part in way:
        holder = holder[int(part) if part.isdigit() else part]
    holder[last] = value
    assert violations(spoilt, "jobspec") != []


@pytest.mark.parametrize("key", sorted(document()))
def test_every_field_is_required(key: str) -> None:
    assert violations({name: value for name, value in document().items() if name != key}, "jobspec") != []


@pytest.mark.parametrize("name", ["jobspec", "options-local"])
def test_T16_every_pattern_is_anchored_and_newline_proof(name: str) -> None:
    for pattern in patterns(load_schema(name)):
        assert pattern.startswith("^") and pattern.endswith("$"), pattern
        assert not re.search(pattern.removesuffix("$") + r"\n\Z", "anything\n"), pattern


@pytest.mark.parametrize("name", ["jobspec", "options-local"])
def test_every_field_is_described_and_no_object_is_open_by_chance(name: str) -> None:
    for place, node in nodes(load_schema(name), name):
        assert node.get("description"), f"{place} has no description"
        if node.get("type") == "object" and "properties" in node:
            assert node["additionalProperties"] is False, f"{place} is open"
            assert node.get("required", []) == list(node["properties"]), f"{place} has optional fields"


def test_the_schema_has_the_fields_of_the_class() -> None:
    assert set(load_schema("jobspec")["properties"]) == set(JobSpec.__dataclass_fields__)
    assert (shipped("schemas") / "jobspec.schema.json").is_file()


def nodes(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every subschema that describes a value."""
    yield place, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{place}/{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            yield from nodes(schema[keyword], f"{place}/{keyword}")


def patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for inner in schema.values():
            yield from patterns(inner)
    if isinstance(schema, list):
        for inner in schema:
            yield from patterns(inner)


def test_a_job_built_from_a_checkout_is_the_same_after_the_wire(tmp_path: Path) -> None:
    from aj.shared.job.build import Invocation, build_spec
    from aj.shared.paths import Home
    from aj.shared.template.template import load_template

    home = Home(tmp_path / ".azure_jobs")
    home.templates.mkdir(parents=True)
    text = (
        "base:\nconfig: {target: {service: local, gpus_per_node: 1}, jobs: [{instance_count: 1}], _extra: {a: null}}\n"
    )
    (home.templates / "gpu.yaml").write_text(text)
    call = Invocation(("echo", "é\n'"), tmp_path, env={"A": ""})
    spec = build_spec(load_template(home, "gpu"), call, Identity("0123abcd", "x", "2026-01-31T08:00:00+00:00")).spec
    assert spec_from_json(json.loads(canonical(spec_to_json(spec)))) == spec
    assert violations(spec_to_json(spec), "jobspec") == []
