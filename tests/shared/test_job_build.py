"""Template, flags and command in, one JobSpec out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aj.shared import spec as registry
from aj.shared.errors import AjError, CommandError, ShapeError, TemplateError, UnknownServiceError
from aj.shared.job.build import Built, Invocation, build_spec
from aj.shared.model import Identity, Mount, Shape
from aj.shared.paths import Home
from aj.shared.spec import describe
from aj.shared.template.template import Template, load_template

IDENTITY = Identity("0123abcd", "vision", "2026-01-31T08:00:00+00:00")
LOCAL = "config:\n  target: {service: local, gpus_per_node: 2}\n  jobs: [{instance_count: 3}]\n"

Build = Callable[..., Built]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def build(code: Path) -> Build:
    """A template's text and an invocation's fields in, what `aj run -t gpu` would submit out."""

    def built(text: str, *argv: str, **fields: Any) -> Built:
        return build_spec(written(code, text), Invocation(argv or ("echo", "hi"), code, **fields), IDENTITY)

    return built


def written(code: Path, text: str) -> Template:
    home = Home(code / ".azure_jobs")
    home.templates.mkdir(parents=True, exist_ok=True)
    (home.templates / "gpu.yaml").write_bytes(b"base:\n" + text.encode())
    return load_template(home, "gpu")


def test_every_field_of_a_job(build: Build, code: Path) -> None:
    (code / "train.py").touch()
    text = """\
config:
  description: a demonstration
  target: {service: local, gpus_per_node: 8}
  environment: {image: pytorch/pytorch:2.4, registry: nvcr.io, setup: [pip list, pwd]}
  code: {ignore: ["*.pt"]}
  storage:
    outputs: {storage_account_name: acc, container_name: out-1}
    data: {storage_account_name: acc, container_name: data, mount_dir: /data}
  jobs:
  - sku: "{nodes}xG{processes}"
    instance_count: 2
    process_count_per_node: 4
    command: [export A=1, cd /tmp]
    submit_args: {max_run_duration_seconds: 60, env: {SEED: 0123, PW: pa$$w0rd}}
  _extra: {consumer: {x: null, y: [1, {z: 2}]}}
"""
    spec = build(text, "train.py", "--lr", "1 e", env={"HF_TOKEN": "t"}).spec
    assert (spec.service, spec.identity, spec.name) == ("local", IDENTITY, "vision_0123abcd")
    assert (spec.shape, spec.sku) == (Shape(2, 8, 4), "2xG8")
    assert (spec.image, spec.registry, spec.setup) == ("pytorch/pytorch:2.4", "nvcr.io", ("pip list", "pwd"))
    assert spec.command == "export A=1\ncd /tmp\nuv run train.py --lr '1 e'"
    assert spec.argv == ("train.py", "--lr", "1 e")
    assert spec.env == {
        "SEED": "0123",
        "PW": "pa$$w0rd",
        "HF_TOKEN": "t",
        "AJ_NAME": "vision_0123abcd",
        "AJ_ID": "0123abcd",
        "AJ_SUBMIT_TIMESTAMP_UTC": "2026-01-31T08:00:00+00:00",
        "AJ_TEMPLATE": "gpu",
        "AJ_NODES": "2",
        "AJ_GPUS_PER_NODE": "8",
        "AJ_PROCESSES": "16",
        "AJ_PROCESSES_PER_NODE": "4",
    }
    assert spec.secret_env == ("HF_TOKEN",)
    assert spec.storage == (Mount("outputs", "acc", "out-1", "/mnt/outputs"), Mount("data", "acc", "data", "/data"))
    assert (spec.ignore, spec.timeout_seconds, spec.description) == (("*.pt",), 60, "a demonstration")
    assert spec.extra == {"consumer": {"x": None, "y": [1, {"z": 2}]}}
    assert spec.template.name == "gpu" and [source.path for source in spec.template.sources] == ["template/gpu.yaml"]


def test_flags_win_over_the_template(build: Build) -> None:
    assert build(LOCAL).spec.shape == Shape(3, 2, 1)
    assert build(LOCAL, nodes=1, processes=8, processes_per_node=8).spec.shape == Shape(1, 8, 8)


@pytest.mark.parametrize(
    ("text", "flag", "key"),
    [
        ("config:\n  target: {service: local, gpus_per_node: 1}\n", "-n", "jobs[0].instance_count"),
        ("config:\n  target: {service: local}\n  jobs: [{instance_count: 1}]\n", "-p", "target.gpus_per_node"),
    ],
)
def test_a_missing_shape_names_the_flag_and_the_key(build: Build, text: str, flag: str, key: str) -> None:
    with pytest.raises(ShapeError) as caught:
        build(text)
    assert f"`{flag}`" in caught.value.message and f"`{key}`" in caught.value.message
    assert re.search(r"gpu\.yaml:\d+:\d+\Z", caught.value.where or "")


@pytest.mark.parametrize(("field", "flag"), [("nodes", "-n"), ("processes", "-p"), ("processes_per_node", "--ppn")])
@pytest.mark.parametrize("value", [0, -1])
def test_a_flag_must_be_positive(build: Build, field: str, flag: str, value: int) -> None:
    with pytest.raises(ShapeError, match=str(value)) as caught:
        build(LOCAL, **{field: value})
    assert caught.value.where == flag


def test_minus_one_process_is_one_for_each_gpu(build: Build) -> None:
    text = LOCAL.replace("instance_count: 3", "instance_count: 3, process_count_per_node: -1")
    assert build(text).spec.shape == Shape(3, 2, 2)
    assert build(text, processes=8).spec.shape == Shape(3, 8, 8)


def test_zero_processes_is_one_on_the_head_node_alone(build: Build) -> None:
    text = LOCAL.replace("instance_count: 3", "instance_count: 3, process_count_per_node: 0")
    assert build(text, nodes=1).spec.shape == Shape(1, 2, 1)
    assert build(text, processes_per_node=2).spec.shape == Shape(3, 2, 2)
    with pytest.raises(ShapeError, match="3 nodes") as caught:
        build(text)
    assert (caught.value.where or "").endswith("gpu.yaml:4:30")


def test_a_shape_that_the_template_fixes_forbids_the_flags(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = replace(describe("local"), shape=lambda template: Shape(5, 1, 1))
    monkeypatch.setattr("aj.shared.job.build.describe", lambda service: fixed)
    assert build("config: {target: {service: local}}\n").spec.shape == Shape(5, 1, 1)
    with pytest.raises(ShapeError, match="`amlt` cannot run a template that itself fixes the shape"):
        build("config: {target: {service: local}}\n", via="amlt")
    with pytest.raises(ShapeError, match="`-n`, `--ppn`"):
        build("config: {target: {service: local}}\n", nodes=5, processes_per_node=1)


def test_S05_the_shape_comes_from_flags_and_keys_never_from_the_sku(build: Build) -> None:
    with pytest.raises(ShapeError, match=r"`-n` nor `jobs\[0\].instance_count`"):
        build("config: {target: {service: local}, jobs: [{sku: 2xG2}]}\n", processes=2)


def test_T02_a_sku_stays_the_text_it_was_and_a_typo_is_refused_on_every_backend(build: Build) -> None:
    text = "config:\n  target: {service: local, gpus_per_node: 1}\n  jobs: [{sku: 4090:8, instance_count: 1}]\n"
    with pytest.raises(ShapeError, match="`'4090:8'` is not a SKU"):
        build(text)


def test_a_sku_by_ranges_in_source_order(build: Build) -> None:
    text = """\
config:
  target: {service: local, gpus_per_node: 4}
  jobs:
  - sku:
      10+: 16C2
      2-9: "{nodes}xG{processes}"
      1: G{processes}
"""
    assert [build(text, nodes=n).spec.sku for n in (1, 3, 12)] == ["G4", "3xG4", "16C2"]
    with pytest.raises(ShapeError, match="placeholder") as caught:
        build(text.replace("{nodes}", "{gpus}"), nodes=2)
    assert (caught.value.where or "").endswith("gpu.yaml:5:5")


def test_an_unknown_service_lists_the_registered_ones_at_its_line(build: Build) -> None:
    with pytest.raises(UnknownServiceError, match="`slurm`") as caught:
        build("config:\n  target:\n    service: slurm\n", nodes=1, processes=1)
    assert (caught.value.where or "").endswith("gpu.yaml:4:5") and "`local`" in (caught.value.hint or "")


def test_a_variable_that_aj_sets_is_overridden_with_a_warning(build: Build) -> None:
    text = LOCAL.replace("instance_count: 3", "instance_count: 3, submit_args: {env: {AJ_NAME: x, AJ_NODES: 9}}")
    built = build(text)
    assert (built.spec.env["AJ_NAME"], built.spec.env["AJ_NODES"]) == ("vision_0123abcd", "3")
    found = [notice for notice in built.warnings if "aj sets it" in notice.message]
    assert [notice.message.split("`")[1] for notice in found] == ["AJ_NAME", "AJ_NODES"]
    assert all("gpu.yaml:4:" in (notice.where or "") for notice in found)


@pytest.mark.parametrize("name", ["AJ_COMMAND", "AJ_FOO"])
def test_another_variable_in_the_name_of_aj_is_refused_at_its_line(build: Build, name: str) -> None:
    with pytest.raises(CommandError, match="reserved") as caught:
        build(LOCAL.replace("instance_count: 3", f"instance_count: 3, submit_args: {{env: {{{name}: x}}}}"))
    assert "gpu.yaml:4:" in (caught.value.where or "")


def test_E09_a_variable_of_the_caller_is_checked(build: Build) -> None:
    with pytest.raises(CommandError) as caught:
        build(LOCAL, env={"A B": "1"})
    assert caught.value.where == "--env"


def test_E10_a_variable_of_the_template_that_is_too_long(build: Build) -> None:
    text = LOCAL.replace("instance_count: 3", "instance_count: 3, submit_args: {env: {V: %s}}")
    assert len(build(text % ("x" * 131_069)).spec.env["V"]) == 131_069
    with pytest.raises(CommandError, match="`V=…`") as caught:
        build(text % ("x" * 131_070))
    assert "gpu.yaml:4:" in (caught.value.where or "") and "file" in (caught.value.hint or "")


def test_E10_a_command_that_is_too_long_is_named_and_has_a_way_out(build: Build) -> None:
    spare = 131_071 - len("AJ_COMMAND=echo ")
    assert build(LOCAL, "echo", "x" * spare).spec.command == "echo " + "x" * spare
    with pytest.raises(CommandError, match="`AJ_COMMAND=…` takes 131,072 bytes") as caught:
        build(LOCAL, "echo", "x" * (spare + 1))
    assert caught.value.where == "COMMAND" and "script file" in (caught.value.hint or "")
    with pytest.raises(CommandError, match="AJ_COMMAND") as caught:
        build(LOCAL.replace("instance_count: 3", "instance_count: 3, command: " + "x" * 131_072))
    assert "gpu.yaml:4:" in (caught.value.where or "")


def test_E10_a_setup_that_is_too_long(build: Build) -> None:
    text = LOCAL + "  environment: {setup: [a, %s]}\n"
    assert len(build(text % ("x" * (131_071 - len("AJ_SETUP=a\n")))).spec.setup) == 2
    with pytest.raises(CommandError, match="`AJ_SETUP=…`") as caught:
        build(text % ("x" * 131_062))
    assert "gpu.yaml:5:" in (caught.value.where or "") and "script file" in (caught.value.hint or "")


def test_E05_a_block_of_the_template_and_the_users_words(build: Build) -> None:
    text = LOCAL + "".join(
        f"{line}\n"
        for line in (
            "    command: |",
            "      export A=1",
            '      python -c "print(1)"',
            "      # note",
            "      echo done",
        )
    )
    command = build(text.replace("[{instance_count: 3}]", "\n  - instance_count: 3")).spec.command
    assert command == 'export A=1\npython -c "print(1)"\n# note\necho done\necho hi'


def test_E12_a_template_saved_with_carriage_returns_gives_the_same_script(code: Path) -> None:
    text = LOCAL.replace(
        "[{instance_count: 3}]", "\n  - instance_count: 3\n    command: |\n      export A=1\n      pwd"
    )
    call = Invocation(("echo", "hi"), code)
    command = build_spec(written(code, text), call, IDENTITY).spec.command
    assert command == "export A=1\npwd\necho hi"
    assert build_spec(written(code, text.replace("\n", "\r\n")), call, IDENTITY).spec.command == command


def test_E06_and_T19_what_the_template_notices_is_passed_on(build: Build) -> None:
    text = LOCAL.replace("[{instance_count: 3}]", "\n  - instance_count: 3\n    command: echo a #b")
    assert any("comment" in notice.message for notice in build(text).warnings)


def test_fields_without_effect_are_warnings_at_their_place(build: Build) -> None:
    text = """\
config:
  target: {service: local, gpus_per_node: 1, queue: q}
  environment: {image: x}
  jobs:
  - instance_count: 1
    sku: G1
    submit_args:
      container_args: {shm_size: 64g}
"""
    found = {notice.message.split("`")[1]: notice.where or "" for notice in build(text).warnings}
    assert {key: where.rpartition("gpu.yaml:")[2] for key, where in found.items()} == {
        "target.queue": "3:46",
        "environment.image": "4:17",
        "jobs[0].sku": "7:5",
        "jobs[0].submit_args.container_args": "9:7",
    }


def test_a_storage_that_cannot_be_mounted_is_a_warning(build: Build) -> None:
    built = build(LOCAL + "  storage: {a: {datastore_name: d}, b: {storage_account_name: acc, container_name: con}}\n")
    assert [mount.name for mount in built.spec.storage] == ["b"]
    assert any("`storage.a` is not mounted" in notice.message for notice in built.warnings)


@pytest.mark.parametrize("folder", ["/", "/a/../b"])
def test_a_mount_needs_a_folder_of_its_own(build: Build, folder: str) -> None:
    text = f"  storage: {{a: {{storage_account_name: acc, container_name: con, mount_dir: {folder}}}}}\n"
    with pytest.raises(TemplateError) as caught:
        build(LOCAL + text)
    assert "gpu.yaml:5:" in (caught.value.where or "")


def test_S09_a_name_that_had_to_change_is_shown(code: Path) -> None:
    call = Invocation(("echo",), code)
    changed = build_spec(written(code, LOCAL), call, replace(IDENTITY, base="tf:3:13PM"))
    assert changed.spec.name == changed.spec.env["AJ_NAME"] == "tf-3-13PM_0123abcd"
    assert any("`tf-3-13PM_0123abcd`" in notice.message for notice in changed.warnings)
    assert not any(
        "legal name" in notice.message for notice in build_spec(written(code, LOCAL), call, IDENTITY).warnings
    )


def test_the_same_inputs_give_the_same_job_and_leave_no_trace(code: Path) -> None:
    template, call = written(code, LOCAL), Invocation(("echo",), code)
    before = sorted(code.rglob("*"))
    assert build_spec(template, call, IDENTITY) == build_spec(template, call, IDENTITY)
    assert sorted(code.rglob("*")) == before


@pytest.mark.parametrize("text", ["", "config:\n", "config: {}\n", "config: {jobs: null, target: {service: local}}\n"])
def test_an_empty_template_is_an_error_of_the_user(build: Build, text: str) -> None:
    with pytest.raises(AjError) as caught:
        build(text)
    assert caught.value.exit_code == 2


def test_the_builder_knows_no_service() -> None:
    sources = [Path(str(registry.__file__)).parent / "job" / name for name in ("build.py", "environment.py")]
    for name in {
        *registry.services(),
        "aml",
        "amlt",
        "azure",
        "azureml",
        "sing",
        "singularity",
        "volcano",
        "kubernetes",
    }:
        for path in sources:
            assert not re.search(rf"(?i)\b{name}\b", path.read_text()), f"{path.name} speaks of {name}"
