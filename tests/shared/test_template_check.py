"""What a strict template refuses, in which words, and at which place of which file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aj.shared.errors import TemplateError
from aj.shared.model import Notice
from aj.shared.paths import Home
from aj.shared.schema import load_schema
from aj.shared.template.template import Template, check_template, load_template
from aj.shared.yaml import dump, load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / ".azure_jobs")
    home.templates.mkdir(parents=True)
    return home


def issues(home: Home, config: str) -> list[Notice]:
    """What is wrong with a leaf that has these lines under `config:`, from line 3 on."""
    lines = "".join(f"  {line}\n" for line in config.splitlines())
    (home.templates / "t.yaml").write_text(f"base:\nconfig:\n{lines}")
    return check_template(home, "t")


def loaded(home: Home, config: Any) -> Template:
    (home.templates / "t.yaml").write_text(dump({"base": None, "config": config}))
    return load_template(home, "t")


def test_S01_a_misspelt_key_is_named_where_it_is_written(home: Home) -> None:
    (home.root / "set").mkdir()
    (home.root / "set" / "low.yaml").write_text("config:\n  target: {gpus_per_nodes: 8}\n")
    (home.templates / "t.yaml").write_text("base: set.low\n")
    with pytest.raises(TemplateError) as caught:
        load_template(home, "t")
    assert caught.value.message == "unknown key `gpus_per_nodes`"
    assert caught.value.hint == "did you mean `gpus_per_node`?"
    assert caught.value.where == ".azure_jobs/set/low.yaml:2:12"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("config", "key", "meant"),
    [
        ("targt: x", "targt", "target"),  # T17
        ("jobs:\n- num_workers: 4", "num_workers", "instance_count"),  # S01
        ("jobs:\n- nodes: 4", "nodes", "instance_count"),
        ("jobs:\n- env: {A: 1}", "env", "submit_args.env"),
        ("env: {A: 1}", "env", "jobs[0].submit_args.env"),
        ("jobs:\n- submit_args: {enviroment: {}}", "enviroment", "env"),
        ("environment: {Image: x}", "Image", "image"),
        ("storage: {s: {account: x}}", "account", "storage_account_name"),
        ("target: {gpus_per_nodes: }", "gpus_per_nodes", "gpus_per_node"),
    ],
)
def test_S01_a_wrong_key_is_answered_with_the_right_one(home: Home, config: str, key: str, meant: str) -> None:
    (issue,) = issues(home, config)
    assert issue.message == f"unknown key `{key}`"
    assert issue.hint == f"did you mean `{meant}`?"
    assert (issue.where or "").startswith(".azure_jobs/template/t.yaml:")


def test_a_key_unlike_any_other_lists_the_keys(home: Home) -> None:
    (issue,) = issues(home, "code: {zzzzzz: 1}")
    assert "the keys here are `ignore`" in (issue.hint or "")


NAMES = "storage: {s: {storage_account_name: %s}}"
CONTAINER = "storage: {s: {container_name: %s}}"
ENV = "jobs:\n- submit_args: {env: {%s}}"

WRONG = [
    # types
    ("target: x", "3:3", "`x` is text, where a mapping is expected", "`key: value`"),
    ("jobs: 3", "3:3", "`3` is a number, where a list is expected", "write a list"),
    ("jobs: {name: a}", "3:3", "is a mapping, where a list is expected", ""),
    ("jobs: [x]", "3:10", "`x` is text, where a mapping is expected", ""),
    ("environment: {setup: pip install x}", "3:17", "where a list is expected", "write a list"),
    ("environment: {image: 1.10}", "3:17", "`1.1` is a number, where text is expected", "quote it"),
    ("jobs:\n- mpi: yes", "4:5", "`yes` is text, where `true` or `false` is expected", "write `true`"),
    ("jobs:\n- preemptible: off", "4:5", "`off` is text", "write `false`"),
    ("jobs:\n- instance_count: '2'", "4:5", "`2` is text, where a whole number is expected", "without quotes"),
    ("jobs:\n- instance_count: 02", "4:5", "`02` is text", "without leading zeros"),
    (
        "jobs:\n- instance_count: 2.0",
        "4:5",
        "`2.0` is a number, where a whole number is expected",
        "write a whole number",
    ),
    ("jobs:\n- instance_count: true", "4:5", "`true` is a boolean, where a whole number is expected", ""),
    ("jobs:\n- tags: [a: b]", "4:12", '`{"a": "b"}` is a mapping, where text is expected', "quote it"),
    ("jobs:\n- tags: [1]", "4:12", "`1` is a number, where text is expected", "quote it"),
    ("jobs:\n- command: [echo: x]", "4:15", "is a mapping, where text is expected", "quote it"),
    ("jobs:\n- command: {a: b}", "4:5", "where text or a list is expected", "quote it"),
    ("jobs:\n- sku: 8", "4:5", "`8` is a number, where text or a mapping is expected", "quote it"),
    ("jobs:\n- sku: [G1]", "4:5", "is a list, where text or a mapping is expected", ""),
    ("_extra: [1]", "3:3", "is a list, where a mapping is expected", ""),
    # ranges
    ("jobs:\n- instance_count: 0", "4:5", "`0` is less than 1", ""),
    ("target: {gpus_per_node: 0}", "3:12", "`0` is less than 1", ""),
    ("jobs:\n- process_count_per_node: -2", "4:5", "`-2` is less than -1", ""),
    ("jobs:\n- submit_args: {max_run_duration_seconds: 0}", "4:19", "`0` is less than 1", ""),
    ("target: {cpus_per_node: 0}", "3:12", "`0` is not more than 0", ""),
    # words
    ("jobs:\n- identity: me", "4:5", "`me` is not of the right form", "write `user`, `managed` or `none`"),
    ("jobs:\n- sla_tier: Gold", "4:5", "`Gold`", "write `Premium`, `Standard` or `Basic`"),
    ('jobs:\n- priority: "high\\n"', "4:5", "'high\\n'", "write `high`, `medium` or `low`"),
    # names
    ("storage: {a-b: {}}", "3:13", "`a-b` is not of the right form", "letters, digits and `_`"),
    ("storage: {ä: {}}", "3:13", "`ä`", "letters, digits and `_`"),
    (NAMES % "Abc", "3:17", "`Abc`", "3 to 24 lower-case"),
    (NAMES % "ab", "3:17", "`ab`", "3 to 24 lower-case"),
    (CONTAINER % "a--b", "3:17", "`a--b`", "single dashes"),
    (CONTAINER % "-ab", "3:17", "`-ab`", "single dashes"),
    (CONTAINER % ("a" * 64), "3:17", "aaa…", "3 to 63"),
    ("storage: {s: {mount_dir: mnt}}", "3:17", "`mnt`", "absolute path"),
    ("jobs:\n- sku: {0: G1}", "4:11", "`0` is not of the right form", "`N`, `A-B` or `A+`"),
    ("jobs:\n- sku: {1-: G1}", "4:11", "`1-`", "`N`, `A-B` or `A+`"),
    ("jobs:\n- sku: ''", "4:5", "''", ""),
    # environment
    (ENV % "1A: x", "4:25", "`1A` is not of the right form", "does not begin with a digit"),
    (ENV % "A-B: x", "4:25", "`A-B`", "letters, digits and `_`"),
    (ENV % '"A\\n": x', "4:25", "'A\\n'", "letters, digits and `_`"),
    (ENV % "A: [1]", "4:25", "`[1]` is a list", "a variable holds one text"),
    (ENV % "A: {b: 1}", "4:25", "is a mapping", "quote it"),
    (ENV % 'A: "x\\0"', "4:25", "'x\\x00' is not of the right form", "NUL"),
    ('environment:\n  setup: ["x\\0"]', "4:13", "'x\\x00'", "NUL"),
    # one job
    ("jobs:\n- name: a\n- name: b", "5:5", "`jobs` has 2 entries, where at most 1 can be", "one template for each job"),
]


@pytest.mark.parametrize(("config", "place", "message", "hint"), WRONG)
def test_a_wrong_value_is_shown_with_what_is_right(
    home: Home, config: str, place: str, message: str, hint: str
) -> None:
    (issue,) = issues(home, config)
    assert issue.where == f".azure_jobs/template/t.yaml:{place}"
    assert message in issue.message
    assert hint in (issue.hint or "")


@pytest.mark.parametrize("field", ["storage_account_name", "container_name", "mount_dir"])
def test_T16_a_final_newline_is_seen_and_refused(home: Home, field: str) -> None:
    (issue,) = issues(home, f"storage:\n  s:\n    {field}: |\n      /abc"[:-4] + "abc")
    assert issue.message == "'abc\\n' is not of the right form"


def test_T16_a_value_must_match_from_end_to_end(home: Home) -> None:
    (issue,) = issues(home, NAMES % "BAD_NAME x")
    assert "`BAD_NAME x`" in issue.message


RIGHT = [
    {"jobs": [{"sku": "{nodes}xG{processes}", "priority": "HIGH", "identity": "User", "sla_tier": "basic"}]},
    {"jobs": [{"sku": {"1": "G1", "2-4": "2xG8", "5+": "8x G4"}, "process_count_per_node": 0}]},
    {"jobs": [{"process_count_per_node": -1, "command": "echo\n", "tags": ["a:b"]}]},
    {"jobs": [{"command": ["a", "b\nc\n", ""]}]},
    {"jobs": []},
    {"storage": {"a_1": {"container_name": "$web", "mount_dir": "/mnt/x y"}, "b": {"container_name": "a-b-c"}}},
    {"target": {"memory": "512Gi", "cpus_per_node": 0.5, "rdma": True, "labels": {"a": "b"}}},
    {"target": {"cpus_per_node": "500m", "service": "my-own"}},
    {"_extra": {"any": {"thing": [None, 1, {"x": None}]}}},
    {"jobs": [{"submit_args": {"container_args": {"shm_size": "64g", "cpus": 2, "gpus": "all", "cap-add": ["X"]}}}]},
]


@pytest.mark.parametrize("config", RIGHT)
def test_what_people_write_is_accepted_and_kept(home: Home, config: dict[str, Any]) -> None:
    assert loaded(home, config).raw == config


def test_null_unsets_any_key_of_any_kind(home: Home) -> None:
    config = "description:\ntarget: {name: null, gpus_per_node: ~}\njobs:\n- sku:\n  mpi:\n  tags:\n  priority:\n"
    config += "  submit_args: {env: {A: }, container_args: {cpus: }}\nstorage: {s: }\ncode:\n"
    assert issues(home, config) == []
    raw = load_template(home, "t").raw
    assert raw == {"target": {}, "jobs": [{"submit_args": {"env": {}, "container_args": {}}}], "storage": {}}


def test_the_first_issue_in_the_text_leads_and_the_others_are_counted(home: Home) -> None:
    found = issues(home, "targt: 1\njobs:\n- nodes: 1\n  mpi: 1\n")
    assert [issue.where.rpartition("yaml:")[2] for issue in found if issue.where] == ["3:3", "5:5", "6:5"]
    with pytest.raises(TemplateError) as caught:
        load_template(home, "t")
    assert caught.value.message == "unknown key `targt`"
    assert caught.value.hint == "did you mean `target`?; 2 more: `aj template validate t` lists them"


def test_a_fault_of_the_yaml_is_the_one_issue(home: Home) -> None:
    (issue,) = issues(home, "a: [")
    assert issue.where == ".azure_jobs/template/t.yaml:4:1"


AMLT = """\
base:
config:
  description: a job
  target: {service: sing, name: vc, workspace_name: ws, vc: x, cluster: y, group_policy_name: z, metadata: [1]}
  environment:
    image: pytorch/pytorch:1.10
    registry: nvcr.io
    username: me
    setup: [pip install x]
    image_setup: [apt-get update]
    conda_yaml_file: $CONFIG_DIR/env.yml
    conda_spec: {a: [1]}
    skip_conda_packages_on_sing: [x]
    env: {A: '1'}
  code: {local_dir: $CONFIG_DIR/../.., ignore: ['*.pyc'], git_repo: x, storage_id: s}
  storage:
    output: {storage_account_name: account1, file_share_name: share, is_output: true, local_dir: /x}
    other: {datastore_name: d, mount_options: [-o, ro]}
  env_defaults: {A: '1.10'}
  search: {max_trials: 3, job_template: {name: x, command: [y]}, params: [{name: lr, values: [1]}]}
  data: {local_dir: x}
  exp_name: e
  version: 2
  jobs:
  - name: j
    sku: 2x80G8-A100-NvLink
    command: [python x.py]
    mpi: true
    azml_int: true
    execution_mode: x
    archived_data: []
    attachments: {}
    submit_args:
      max_attempts: 2
      max_run_duration_seconds: 60
      env: {HF_TOKEN: x}
      constraints: [a]
      container_args: {shm_size: 64g, user: me, cpu_limit: 4, shm_size_per_gpu: 8g}
"""


def test_amlt_only_fields_are_accepted_and_kept(home: Home) -> None:
    (home.templates / "t.yaml").write_text(AMLT)
    assert load_template(home, "t").raw == load(AMLT.encode(), "t").value["config"]


def test_every_field_of_amlt_s_own_schema_is_known(contracts: Path) -> None:
    schema = json.loads((contracts / "amlt-config.schema.json").read_text())
    rooms = {
        "TargetSchema": "target",
        "EnvironmentSchema": "environment",
        "CodeSchema": "code",
        "StorageSchema": "mount",
    }
    ours = load_schema("template")["$defs"]
    pairs = [(schema, ours["config"]), (schema["$defs"]["JobCommandSchema"], ours["job"])]
    pairs += [(schema["$defs"][name], ours[room]) for name, room in rooms.items()]
    submit = ours["job"]["properties"]["submit_args"]
    pairs += [(schema["$defs"]["BashSubmitArgsSchema"], submit)]
    for theirs, mine in pairs:
        assert set(fields(theirs)) <= set(mine["properties"])


def fields(schema: dict[str, Any]) -> Iterator[str]:
    yield from schema.get("properties", ())
    for pattern in schema.get("patternProperties", ()):
        yield from pattern.removeprefix("^(").removesuffix(")$").split("|")
