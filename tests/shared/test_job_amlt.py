"""The amlt-shaped document: what amlt reads from it is the template with aj's resolved fields, dollar for dollar."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import ShapeError
from aj.shared.job.amlt import amlt_document, overlaid, with_code
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity, JobSpec
from aj.shared.paths import Home
from aj.shared.schema import violations
from aj.shared.template.merge import Origin
from aj.shared.template.template import Template, load_template
from aj.shared.yaml import Mark, dump, load

IDENTITY = Identity("0123abcd", "vision", "2026-01-31T08:00:00+00:00")
SMALL = "base:\nconfig:\n  target: {service: local, gpus_per_node: 1}\n  jobs: [{instance_count: 1}]\n"
FULL = """\
base:
config:
  description: costs $5
  target:
    {service: local, name: vc, subscription_id: s, resource_group: g, workspace_name: w, queue: q, cluster: c,
     gpus_per_node: 8, namespace: n, context: k, cpus_per_node: 4, memory: 64Gi, rdma: true, priority_class: p,
     labels: {a: b}}
  environment:
    {image: pytorch, registry: nvcr.io, setup: ['echo $HOME'], conda_yaml_file: $CONFIG_DIR/$X.yaml, username: me}
  code: {local_dir: $CONFIG_DIR/../.., ignore: ['$x']}
  storage:
    data:
      {storage_account_name: acc, container_name: con, mount_dir: /data/$x, local_dir: '${CONFIG_DIR}/d',
       is_output: false}
  env_defaults: {A: '$CONFIG_DIR'}
  jobs:
  - name: given
    sku: {1: 'G{processes}', 2+: '{nodes}xG{processes}'}
    instance_count: 2
    process_count_per_node: 4
    command: ['export A=$$', 'cd /tmp']
    identity: Managed
    sla_tier: PREMIUM
    priority: mEDIUM
    preemptible: false
    mpi: false
    tags: ['owner:me', 'cost:$5']
    azml_int: true
    submit_args:
      env: {PW: pa$$w0rd, T: $(HOSTNAME), AJ_NAME: mine}
      max_run_duration_seconds: 60
      max_attempts: 2
      container_args: {shm_size: 64g, user: 0, cpus: 2, $odd: x}
  _extra: {x: {y: null}}
"""


def job(folder: Path, text: str = FULL, *argv: str, **shape: Any) -> JobSpec:
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True)
    (home.templates / "gpu.yaml").write_text(text)
    call = Invocation(argv or ("echo", "$HOME", "a b"), folder, env={"TOKEN": "$"}, **shape)
    return build_spec(load_template(home, "gpu"), call, IDENTITY).spec


def as_amlt_reads(value: Any) -> Any:
    """amlt's own reading, but for the folder that it puts in place of `$CONFIG_DIR`."""
    if isinstance(value, str):
        left = re.sub(r"\$\$|\$CONFIG_DIR(?![A-Za-z0-9_])|\$\{CONFIG_DIR\}", "", value)
        assert "$" not in left, f"amlt would look for a variable in {value!r}"
        return value.replace("$$", "$")
    if isinstance(value, Mapping):
        return {as_amlt_reads(key): as_amlt_reads(item) for key, item in value.items()}
    return [as_amlt_reads(item) for item in value] if isinstance(value, list) else value


def test_the_resolved_job(tmp_path: Path) -> None:
    spec = job(tmp_path)
    document = amlt_document(spec)
    assert document["target"] == {
        "service": "local",
        "name": "vc",
        "subscription_id": "s",
        "resource_group": "g",
        "workspace_name": "w",
        "queue": "q",
        "cluster": "c",
    }
    assert "_extra" not in document
    (entry,) = document["jobs"]
    assert entry == {
        "name": "vision_0123abcd",
        "sku": "2xG8",
        "process_count_per_node": 4,
        "command": ["export A=$$$$", "cd /tmp", "echo '$$HOME' 'a b'"],
        "identity": "Managed",
        "sla_tier": "Premium",
        "priority": "medium",
        "preemptible": False,
        "mpi": False,
        "tags": ["owner:me", "cost:$$5"],
        "azml_int": True,
        "submit_args": {
            "env": {**spec.env, "PW": "pa$$$$w0rd", "T": "$$(HOSTNAME)", "TOKEN": "$$"},
            "max_run_duration_seconds": 60,
            "max_attempts": 2,
            "container_args": {"shm_size": "64g", "user": "0", "cpus": 2, "$$odd": "x"},
        },
    }
    assert entry["submit_args"]["env"]["AJ_NAME"] == "vision_0123abcd"


def test_only_CONFIG_DIR_of_paths_stays(tmp_path: Path) -> None:
    document = amlt_document(job(tmp_path))
    assert document["code"] == {"local_dir": "$CONFIG_DIR/../..", "ignore": ["$$x"]}
    assert document["environment"]["conda_yaml_file"] == "$CONFIG_DIR/$$X.yaml"
    assert document["storage"]["data"]["local_dir"] == "${CONFIG_DIR}/d"
    assert document["storage"]["data"]["mount_dir"] == "/data/$$x"
    assert document["env_defaults"] == {"A": "$$CONFIG_DIR"}
    assert document["environment"]["setup"] == ["echo $$HOME"] and document["description"] == "costs $$5"


@pytest.mark.parametrize(
    ("written", "escaped"),
    [
        ("$CONFIG_DIRX", "$$CONFIG_DIRX"),
        ("${CONFIG_DIRX}", "$${CONFIG_DIRX}"),
        ("$$CONFIG_DIR", "$$$CONFIG_DIR"),
        ("$CONFIG_DIR$CONFIG_DIR", "$CONFIG_DIR$CONFIG_DIR"),
        ("${CONFIG_DIR", "$${CONFIG_DIR"),
        ("$CONFIG_DIR\u00e9$", "$CONFIG_DIR\u00e9$$"),
    ],
)
def test_what_only_looks_like_CONFIG_DIR(tmp_path: Path, written: str, escaped: str) -> None:
    text = f"{SMALL}  code: {{local_dir: '{written}'}}\n"
    assert amlt_document(job(tmp_path, text))["code"]["local_dir"] == escaped


def test_services_have_the_names_that_amlt_knows(tmp_path: Path) -> None:
    spec = job(tmp_path)
    assert amlt_document(replace(spec, service="sing"))["target"]["service"] == "singularity"
    assert amlt_document(replace(spec, service="volcano"))["target"]["service"] == "volcano"


def test_the_template_itself_is_not_touched(tmp_path: Path) -> None:
    spec = job(tmp_path)
    before = copy.deepcopy(spec)
    amlt_document(spec)["jobs"][0]["submit_args"]["env"].clear()
    assert spec == before


def test_entries_that_may_stay_open_are_closed_before_the_command(tmp_path: Path) -> None:
    text = FULL.replace("['export A=$$', 'cd /tmp']", '"cat <<EOF\\nbody"')
    first, last = amlt_document(job(tmp_path, text))["jobs"][0]["command"]
    assert first == "eval 'cat <<EOF\nbody\n'" and last == "echo '$$HOME' 'a b'"


def test_a_template_without_jobs_or_command(tmp_path: Path) -> None:
    document = amlt_document(job(tmp_path, SMALL, "echo", "hi"))
    assert document["jobs"][0]["command"] == ["echo hi"]
    assert "sku" not in document["jobs"][0] and document["target"] == {"service": "local"}


def test_it_is_a_document_that_amlt_accepts(tmp_path: Path, contracts: Path) -> None:
    schema = json.loads((contracts / "amlt-config.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    document = amlt_document(job(tmp_path))
    assert [error.message for error in validator.iter_errors(document)] == []
    assert [error.message for error in validator.iter_errors({**document, "_extra": {}})] != []


_text = st.text("$ {}()CONFIGDIR_a\n'", max_size=20) | st.sampled_from(["$CONFIG_DIR/x", "${CONFIG_DIR}", "$$HOME"])
_name = st.from_regex("[A-Z][A-Z0-9]{0,4}", fullmatch=True)
_configs = st.fixed_dictionaries(
    {"target": st.just({"service": "local", "gpus_per_node": 1})},
    optional={
        "description": _text,
        "environment": st.fixed_dictionaries(
            {"image": _text}, optional={"setup": st.lists(_text), "conda_yaml_file": _text}
        ),
        "code": st.fixed_dictionaries({}, optional={"local_dir": _text, "ignore": st.lists(_text)}),
        "storage": st.dictionaries(
            _name, st.fixed_dictionaries({}, optional={"local_dir": _text, "file_share_name": _text})
        ),
        "_extra": st.dictionaries(_text, _text | st.none()),
        "jobs": st.tuples(
            st.fixed_dictionaries(
                {"command": _text | st.lists(_text)},
                optional={
                    "tags": st.lists(_text),
                    "submit_args": st.fixed_dictionaries(
                        {"env": st.dictionaries(_name, _text)},
                        optional={"container_args": st.dictionaries(_text, _text | st.integers())},
                    ),
                },
            )
        ).map(list),
    },
)


@given(_configs, st.lists(_text, min_size=1, max_size=4).filter(lambda words: bool(words[0].strip())))
def test_amlt_reads_back_the_overlaid_document_exactly(config: dict[str, Any], words: list[str]) -> None:
    origin = {"": Origin(Mark("t.yaml", 1, 1), ("t.yaml",))}
    template = Template("t", Path("t.yaml"), raw=config, provenance=origin, sources=(), notices=())
    call = Invocation(("echo", *words), Path("/nowhere"), nodes=1, env={"PW": words[0]})
    spec = build_spec(template, call, IDENTITY).spec
    document = amlt_document(spec)
    text = dump(document)
    assert yaml.safe_load(text) == load(text.encode(), "t.yaml").value == document  # YAML 1.1 and 1.2
    assert as_amlt_reads(document) == overlaid(spec)
    assert "\n".join(as_amlt_reads(document)["jobs"][0]["command"]) == spec.command
    assert as_amlt_reads(document)["jobs"][0]["submit_args"]["env"] == spec.env


@pytest.mark.parametrize(
    ("sku", "nodes", "processes", "expected"),
    [
        ("G8", 4, 8, "4xG8"),
        ("4xG8", 4, 8, "4xG8"),
        ("8x G4", 8, 4, "8x G4"),
        ("G8", 1, 8, "G8"),
        ("NDv4:80G8-A100-IB-NvLink@westus2", 2, 8, "NDv4:2x80G8-A100-IB-NvLink@westus2"),
        ("16C2", 3, 2, "3x16C2"),
        ("C2@westus2,eastus2", 2, 2, "2xC2@westus2,eastus2"),
        ("{nodes}xG{processes}", 16, 8, "16xG8"),
    ],
)
def test_amlt_hears_of_the_number_of_nodes(tmp_path: Path, sku: str, nodes: int, processes: int, expected: str) -> None:
    text = f"{SMALL[: SMALL.index('  target')]}  target: {{service: local}}\n  jobs: [{{sku: '{sku}'}}]\n"
    for via in (None, "amlt"):
        spec = job(tmp_path / str(via), text, "true", nodes=nodes, processes=processes, via=via)
        assert amlt_document(spec)["jobs"][0]["sku"] == expected


@pytest.mark.parametrize(
    ("sku", "message"),
    [
        ("2xG8", "asks for 2 nodes"),
        ("G4", "asks for 4 GPUs"),
        ("4xC3", "as its CPU"),
    ],
)
def test_a_SKU_that_says_something_else_is_an_error_there_and_shown_as_it_is_elsewhere(
    tmp_path: Path, sku: str, message: str
) -> None:
    text = f"base:\nconfig:\n  target: {{service: local}}\n  jobs: [{{sku: '{sku}'}}]\n"
    shown = job(tmp_path / "shown", text, "true", nodes=4, processes=8)
    assert amlt_document(shown)["jobs"][0]["sku"] == sku
    with pytest.raises(ShapeError, match=message):
        amlt_document(replace(shown, via="amlt"))


def test_the_code_is_the_callers_folder_where_the_template_leaves_it_open(tmp_path: Path) -> None:
    home, cwd = Home(tmp_path / "p$" / ".azure_jobs"), tmp_path / "p$"
    file = home.submission / "x.yaml"
    given = {"code": {"local_dir": "$CONFIG_DIR/src"}, "jobs": []}
    assert with_code(given, file, cwd, home) == given
    code = with_code({"code": {"ignore": ["data/"]}}, file, cwd, home)["code"]
    assert code["local_dir"] == "$CONFIG_DIR/../.." and code["ignore"][0] == "data/"
    assert ".azure_jobs/submission" in code["ignore"] and ".azure_jobs/record.jsonl" in code["ignore"]
    away = with_code({}, file, tmp_path / "other$", home)["code"]
    assert away == {"local_dir": "$CONFIG_DIR/../../../other$$", "ignore": []}
    inside = with_code({}, Home(tmp_path / "jobs").submission / "x.yaml", tmp_path, Home(tmp_path / "jobs"))["code"]
    assert inside["local_dir"] == "$CONFIG_DIR/../.." and "jobs/build" in inside["ignore"]


@given(_configs.filter(lambda config: "environment" in config), st.sampled_from([None, "amlt"]))
def test_whatever_a_template_says_amlts_schema_takes_it(
    contracts: Path, config: dict[str, Any], via: str | None
) -> None:
    schema = json.loads((contracts / "amlt-config.schema.json").read_text())
    origin = {"": Origin(Mark("t.yaml", 1, 1), ("t.yaml",))}
    template = Template("t", Path("t.yaml"), raw=config, provenance=origin, sources=(), notices=())
    spec = build_spec(template, Invocation(("true",), Path("/nowhere"), nodes=1, via=via), IDENTITY).spec
    document = amlt_document(spec)
    assert [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(document)] == []
    assert violations(document, "payload-amlt") == [] or not spec.image
