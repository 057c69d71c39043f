"""`aj template`, `aj schema`, `aj init`, `aj config`, `aj doctor`: a project's files, seen from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

Here = Callable[..., Any]
GPU = """\
base: storage.team
config:
  target:
    service: local
    gpus_per_node: 2
  jobs:
    - instance_count: 1
      submit_args:
        env:
          LR: 1e-3
"""


def test_init_writes_a_project_that_runs_and_changes_nothing_twice(here: Here, project: Any) -> None:
    first = here("--json", "init").document()
    assert [path.rpartition("/")[2] for path in first["written"]] == [
        "local.yaml",
        ".gitignore",
        "template.schema.json",
    ]
    template = project.home / "template" / "local.yaml"
    assert template.read_text().startswith("# yaml-language-server: $schema=../template.schema.json\n")
    template.write_text(template.read_text() + "# mine\n")
    again = here("--json", "init").document()
    assert again["written"] == []
    assert template.read_text().endswith("# mine\n")
    assert here("template", "validate").code == 0
    assert here("run", "-d", "-t", "local", "echo", "hi").code == 0


def test_init_prints_what_it_wrote(here: Here, project: Any) -> None:
    ran = here("init")
    assert ran.out.splitlines()[0] == f"wrote {project.home / 'template' / 'local.yaml'}"
    assert "aj run -t local" in ran.err
    assert here("init").out == ""


def test_list_shows_each_leaf_with_its_service(here: Here, project: Any) -> None:
    project.template("gpu", GPU)
    project.template("local")
    fragment = project.home / "storage" / "team.yaml"
    fragment.parent.mkdir()
    fragment.write_text("config:\n  description: the team's\n")
    document = here("--json", "template", "list").document()
    path = project.home / "template" / "gpu.yaml"
    assert document["templates"][0] == {"name": "gpu", "path": str(path), "base": "storage.team", "service": "local"}
    assert "gpu" in here("template", "list").out


def test_list_of_nothing_says_how_to_begin(here: Here, project: Any) -> None:
    (project.home / "template").mkdir(parents=True)
    ran = here("template", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "`aj init`" in ran.err


def test_show_merges_the_bases_and_explain_names_file_and_line(here: Here, project: Any) -> None:
    project.template("gpu", GPU)
    fragment = project.home / "storage" / "team.yaml"
    fragment.parent.mkdir()
    fragment.write_text("config:\n  description: the team's\n")
    document = here("--json", "template", "show", "gpu").document()
    assert document["config"]["description"] == "the team's"
    assert document["config"]["jobs"][0]["submit_args"]["env"]["LR"] == "1e-3"
    place = document["provenance"]["/target/gpus_per_node"]
    assert (place["file"].endswith("gpu.yaml"), place["line"], place["column"]) == (True, 5, 5)
    assert document["provenance"]["/description"]["file"].endswith("storage/team.yaml")
    explained = here("template", "show", "gpu", "--explain").out
    (line,) = [line for line in explained.splitlines() if line.startswith("description ")]
    assert "storage/team.yaml:2:3" in line
    assert line.endswith("template/gpu.yaml")


def test_S01_validate_names_the_place_and_the_key_that_was_meant(here: Here, project: Any) -> None:
    project.template()
    path = project.template(
        "bad", "base: null\nconfig:\n  target:\n    service: local\n    gpus_per_nodes: 1\n  jobbs: []\n"
    )
    document_ran = here("--json", "template", "validate")
    document = document_ran.document()
    assert document_ran.code == 2
    assert (document["valid_count"], document["invalid_count"]) == (1, 1)
    issues = document["results"][0]["issues"]
    assert len(issues) == 2
    assert "gpus_per_nodes" in issues[0]["message"]
    assert "did you mean `gpus_per_node`?" in issues[0]["hint"]
    assert issues[0]["where"].endswith("bad.yaml:5:5")
    ran = here("run", "-t", "bad", "-d", "true")
    assert ran.code == 2
    assert f"{path.relative_to(project.folder)}:5:5" in ran.err


def test_T15_a_yaml_error_is_one_line_with_its_place(here: Here, project: Any) -> None:
    project.template("bad", "jobs:\n- name: A\n sku: C1\n")
    for words in (("template", "show", "bad"), ("run", "-t", "bad", "-d", "true"), ("plan", "-t", "bad", "true")):
        ran = here(*words)
        assert ran.code == 2
        assert "template/bad.yaml:3:2" in ran.err
        assert "Traceback" not in ran.err
    assert here("template", "validate", "bad").code == 2


def test_validate_finds_what_only_building_a_job_finds(here: Here, project: Any) -> None:
    project.template("mars", "base: null\nconfig:\n  target:\n    service: mars\n")
    ran = here("template", "validate")
    assert ran.code == 2
    assert "mars" in ran.err
    assert "`local`" in ran.err


def test_validate_shows_warnings_without_failing(here: Here, project: Any) -> None:
    project.template("t", "base: null\nconfig:\n  target:\n    service: local\n    queue: fast\n")
    ran = here("template", "validate", "t")
    assert ran.code == 0
    assert "warning: `target.queue` has no effect" in ran.err
    assert here("--json", "template", "validate", "t").document()["results"][0]["warnings"]


def test_schema_lists_and_prints(here: Here) -> None:
    names = here("schema").out.split()
    assert {"template", "output", "config"} <= set(names)
    assert json.loads(here("schema", "template").out)["$schema"].startswith("https://json-schema.org/")
    assert here("--json", "schema").document()["names"] == names
    assert here("--json", "schema", "config").document()["schema"]["type"] == "object"
    ran = here("schema", "templat")
    assert ran.code == 2
    assert "template" in ran.err


def test_a_configured_template_replaces_t_and_other_keys_stay(here: Here, project: Any) -> None:
    project.template("gpu", GPU.replace("storage.team", "null"))
    ran = here("run", "-d", "true")
    assert ran.code == 2
    assert "`-t NAME`" in ran.err
    assert "`aj config template NAME`" in ran.err
    config = project.home / "aj_config.json"
    config.write_text('{"workspace": {"name": "w"}, "x": 1}')
    assert here("config", "template", "gpu").code == 0
    assert json.loads(config.read_text()) == {"workspace": {"name": "w"}, "x": 1, "template": "gpu"}
    assert here("--json", "run", "-d", "true").document()["template"] == "gpu"
    assert here("--json", "config", "show").document()["config"]["template"] == "gpu"
    assert here("config", "template", "--unset").code == 0
    assert "template" not in json.loads(config.read_text())


def test_config_refuses_what_does_not_exist(here: Here, project: Any) -> None:
    project.template()
    ran = here("config", "template", "loccal")
    assert ran.code == 2
    assert "no template `loccal`" in ran.err
    assert not (project.home / "aj_config.json").exists()
    assert here("config", "template").code == 2
    assert here("config", "template", "local", "--unset").code == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"template": 3}', "\xff"])
def test_a_broken_configuration_is_named_and_kept(here: Here, project: Any, text: str) -> None:
    project.template()
    config = project.home / "aj_config.json"
    config.write_text(text, encoding="latin-1")
    ran = here("config", "template", "local")
    assert ran.code == 2
    assert str(config) in ran.err
    assert config.read_text(encoding="latin-1") == text


def test_doctor_checks_tools_folders_and_templates(here: Here, project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here("init")
    ran = here("--json", "doctor")
    document = ran.document()
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert {"python", "bash", "tar", "gzip", "sha256sum", "home", "cache", "runtime", "daemon", "templates"} <= set(
        states
    )
    assert (ran.code, document["ok"]) == (0, True)
    project.template("bad", "base: null\nconfig:\n  x: 1\n")
    ran = here("doctor")
    assert ran.code == 1
    assert "`aj template validate bad` says why" in ran.out
    monkeypatch.setenv("PATH", "/nonexistent")
    failed = [check["name"] for check in here("--json", "doctor").document()["checks"] if check["state"] == "fail"]
    assert failed == ["bash", "tar", "gzip", "sha256sum", "templates"]
