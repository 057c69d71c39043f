"""What a template means as a Volcano Job, and what is refused at its own line before anything is sent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.build.render import SYMBOLIC_ARCHIVE, render_payload, symbolic_facts
from aj.shared.errors import AjError, CommandError, ShapeError, TemplateError
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Identity, JobSpec
from aj.shared.opts import quantity
from aj.shared.opts.volcano import normalize_job_name
from aj.shared.paths import Home
from aj.shared.template.template import load_template
from aj.shared.yaml import dump
from fixtures.cases import Case, cases, spec_of

VOLUME = {"AMLT_PERSISTENT_VOLUME_NAME": "v", "AMLT_PERSISTENT_VOLUME_MOUNT_DIR": "/v"}
STORE = {"storage_account": "acc", "container": "con"}
TASK = {"cpus_per_node": 4, "memory": "8Gi", "gpus_per_node": 0, "rdma": False, "processes_per_node": 1}


def uniform(**parts: Any) -> dict[str, Any]:
    """A template with one kind of pods; a part `a.b` goes to that place, `...` takes it away."""
    config: dict[str, Any] = {
        "target": {"service": "volcano", "gpus_per_node": 1},
        "environment": {"image": "i:1"},
        "jobs": [{"submit_args": {"env": dict(VOLUME), "container_args": {}}}],
    }
    return with_parts(config, parts)


def declared(tasks: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """A template with declared tasks: a master, and those given over the least that a task needs."""
    config = uniform()
    del config["target"]["gpus_per_node"]
    every = {"master": {"replicas": 1}, **(tasks or {})}
    config["_extra"] = {"volcano": {"tasks": {name: {**TASK, **task} for name, task in every.items()}}}
    return with_parts(config, parts)


def with_parts(config: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    aliases = {
        "env": "jobs.0.submit_args.env",
        "args": "jobs.0.submit_args.container_args",
        "upload": "_extra.code_upload",
    }
    for key, value in parts.items():
        head, _, rest = key.partition("__")
        path = ".".join(filter(None, (aliases.get(head, head), rest.replace("__", ".")))).split(".")
        place: Any = config
        for part in path[:-1]:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        if value is ...:
            place.pop(path[-1])
        else:
            place[path[-1]] = value
    return config


def build(folder: Path, config: dict[str, Any], nodes: int | None = 2, base: str = "train", **call: Any) -> JobSpec:
    home = Home(folder / ".azure_jobs")
    home.templates.mkdir(parents=True, exist_ok=True)
    (home.templates / "t.yaml").write_text(dump({"base": None, "config": config}))
    nodes = None if "_extra" in config and "volcano" in config["_extra"] else nodes
    identity = Identity("0badcafe", base, "2026-01-31T08:00:00+00:00")
    return build_spec(load_template(home, "t"), Invocation(("echo",), folder, nodes, **call), identity).spec


def payload(spec: JobSpec) -> Any:
    return render_payload(spec, symbolic_facts("volcano"), SYMBOLIC_ARCHIVE)


def refusal(folder: Path, config: dict[str, Any], **call: Any) -> AjError:
    with pytest.raises(AjError) as caught:
        build(folder, config, **call)
    assert not isinstance(caught.value, AssertionError) and caught.value.where
    return caught.value


@pytest.mark.parametrize(
    "case", [each for each in cases() if spec_of(each).spec.service == "volcano"], ids=lambda case: case.name
)
def test_every_fixture_is_a_valid_job_by_the_clusters_own_schema(case: Case, contracts: Path) -> None:
    schema = json.loads((contracts / "volcano-job.contract.schema.json").read_text())
    job = payload(spec_of(case).spec)
    faults = [
        f"{list(each.absolute_path)}: {each.message}"
        for each in jsonschema.Draft202012Validator(schema).iter_errors(job)
    ]
    assert faults == []
    for task in job["spec"]["tasks"]:
        pod = task["template"]["spec"]
        for names in ([each["name"] for each in pod["containers"][0]["env"]], [each["name"] for each in pod["volumes"]],
                      [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]]):  # fmt: skip
            assert len(set(names)) == len(names)


def test_K09_a_gang_ends_together_and_tries_a_bounded_number_of_times(tmp_path: Path) -> None:
    """Evicted: all start again, three times at most. Failed: all end. All must succeed, or the declared master."""
    job = payload(build(tmp_path, uniform(), nodes=4))["spec"]
    assert (job["minAvailable"], job["minSuccess"], job["maxRetry"]) == (4, 4, 3)
    assert job["policies"] == [
        {"exitCode": 143, "action": "RestartJob"},
        {"event": "PodFailed", "action": "TerminateJob"},
        {"event": "PodEvicted", "action": "RestartJob"},
    ]
    # What ends pods after a time ends them by the same signal, and must not start them again.
    bounded = payload(build(tmp_path, uniform(jobs__0__submit_args__max_run_duration_seconds=60)))["spec"]
    assert bounded["policies"] == job["policies"][1:]
    assert [(task["name"], task["replicas"], task["minAvailable"]) for task in job["tasks"]] == [
        ("master", 1, 1),
        ("worker", 3, 3),
    ]
    assert {task["template"]["spec"]["restartPolicy"] for task in job["tasks"]} == {"Never"}
    tasks = payload(build(tmp_path, declared({"b": {"replicas": 2}, "a": {"replicas": 3}})))["spec"]
    assert tasks["minAvailable"] == 6 and "minSuccess" not in tasks
    assert [task["name"] for task in tasks["tasks"]] == ["master", "a", "b"]
    assert tasks["tasks"][0]["policies"] == [{"event": "TaskCompleted", "action": "CompleteJob"}]


@pytest.mark.parametrize(
    "text,bytes_or_hint",
    [
        ("512m", "did you mean `512Mi`?"),
        ("16g", "did you mean `16Gi`?"),
        ("16GB", "did you mean `16Gi`?"),
        ("1K", "did you mean `1Ki`?"),
        ("64 Gi", "did you mean `64Gi`?"),
        ("1_000", "write for example `64Gi`"),
        ("1E", None),
        ("1000Ki", None),
        ("-1Gi", "write for example `64Gi`"),
        ("2.1Gi", 2254857831),
        ("128M", 128_000_000),
        (".5Gi", 536870912),
        ("1Mi", 1048576),
        ("64Ti", 64 * 1024**4),
        (1073741824, 1024**3),
    ],
)
def test_K05_memory_is_a_quantity_that_can_be_meant(tmp_path: Path, text: Any, bytes_or_hint: Any) -> None:
    config = uniform(target__memory=text)
    if not isinstance(bytes_or_hint, int):
        error = refusal(tmp_path, config)
        assert isinstance(error, TemplateError) and "`memory: " in error.message
        assert re.search(r"t\.yaml:\d+:\d+", error.where or "") and (not bytes_or_hint or error.hint == bytes_or_hint)
        return
    resources = payload(build(tmp_path, config))["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"] == resources["requests"]
    assert (
        isinstance(resources["limits"]["memory"], str)
        and quantity.parse(resources["limits"]["memory"]) == bytes_or_hint
    )


@given(st.from_regex(r"[0-9]{0,3}\.?[0-9]{0,3}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2}|)", fullmatch=True))
def test_K05_what_is_written_is_what_was_meant_rounded_up(text: str) -> None:
    try:
        written = quantity.memory(text, "memory", "here")
    except TemplateError:
        return
    amount, meant = quantity.parse(written), quantity.parse(text)
    assert amount is not None and meant is not None and amount % 1 == 0 and 0 <= amount - meant < 1


def test_K06_gpus_are_whole_and_equal_in_requests_and_limits(tmp_path: Path) -> None:
    pod = payload(build(tmp_path, uniform(target__gpus_per_node=8)))["spec"]["tasks"][1]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"nvidia.com/gpu": "8", "rdma/rdma_shared_device_a": "1"}
    assert {each["key"] for each in pod["tolerations"]} == {"nvidia.com/gpu", "rdma/rdma_shared_device_a"}
    assert isinstance(refusal(tmp_path, declared({"a": {"replicas": 1, "gpus_per_node": 0.5}})), TemplateError)


@pytest.mark.parametrize("name", ["My_Exp.v2", "1st", "-x-", "é", "", "a" * 300, "a" * 45 + "-" * 20])
def test_K08_K03_a_name_is_mapped_by_one_rule_and_keeps_its_id(name: str) -> None:
    made = normalize_job_name(f"{name}_0badcafe")
    assert re.fullmatch(r"[a-z][-a-z0-9]*-0badcafe", made) and len(made) <= 53 and normalize_job_name(made) == made
    assert normalize_job_name(f"{'x' * 70}_0badcaf0") != normalize_job_name(f"{'x' * 70}_0badcafe")


@pytest.mark.parametrize(
    "task,replicas", [("w", 1), ("w", 10), ("w", 11), ("worker", 101), ("a" * 30, 101), ("a" * 40, 11), ("a" * 44, 10)]
)
def test_K02_the_longest_name_of_a_pod_has_63_characters_or_fewer(tmp_path: Path, task: str, replicas: int) -> None:
    """At every length of task and number of pods the job's name is as long as it may be, and no longer."""
    spec = build(tmp_path, declared({task: {"replicas": replicas}}), base="x" * 99)
    job = f"{spec.name}-abcde"
    longest = max(len(f"{job}-{task}-{replicas - 1}"), len(f"{job}-master-0"))
    assert longest == 63 and len(job) <= 59 and spec.name.endswith("-0badcafe")
    assert payload(spec)["metadata"]["generateName"] == spec.name + "-"


def test_K02_a_task_that_leaves_no_room_for_the_id(tmp_path: Path) -> None:
    error = refusal(tmp_path, declared({"a" * 45: {"replicas": 10}}))
    assert "leaves 9 characters" in error.message and "shorter name" in (error.hint or "")


def test_the_pods_names_fit_into_one_variable(tmp_path: Path) -> None:
    assert build(tmp_path, uniform(), nodes=1000)
    error = refusal(tmp_path, uniform(), nodes=4000, base="x" * 60)
    assert "the names of 3999 pods take" in error.message and "AJ_NAME" in (error.hint or "")


def test_an_object_that_no_cluster_would_hold(tmp_path: Path) -> None:
    values = {f"V{number}": "$x\n" * 40_000 for number in range(6)}
    error = refusal(tmp_path, uniform(env={**VOLUME, **values}))
    assert "the Job takes" in error.message and "files" in (error.hint or "")


def test_K01_a_misspelt_variable_of_a_tasks_hosts(tmp_path: Path) -> None:
    config = declared({"trainer-0": {"replicas": 2}}, jobs__0__command=["echo $VC_TRAINER-0_HOSTS"])
    assert refusal(tmp_path, config).hint == "Volcano calls it `VC_TRAINER_0_HOSTS`"
    assert build(tmp_path, declared({"trainer-0": {"replicas": 2}}, jobs__0__command=["echo $VC_TRAINER_0_HOSTS"]))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no image": (uniform(environment__image=...), "the key `image` is missing"),
    "queue root": (uniform(target__queue="root"), "queue"),
    "namespace": (uniform(target__namespace="Team"), "`Team`"),
    "label value": (uniform(target__labels={"a": "b c"}), "`b c`"),
    "label of aj": (uniform(target__labels={"aj/id": "x"}), "`aj/id`"),
    "label of volcano": (uniform(target__labels={"volcano.sh/x": "x"}), "`volcano.sh/x`"),
    "capability ALL": (uniform(args__capabilities=["cap_all"]), "`cap_all`"),
    "privileged": (uniform(args__privileged=True), "unknown key `privileged`"),
    "scratch root": (uniform(args__scratch_mount_path="/"), "`/`"),
    "scratch in shm": (uniform(args__scratch_mount_path="/dev/shm/x"), "cannot be mounted"),
    "scratch over volume": (uniform(args__scratch_mount_path="/v/../v"), "cannot be mounted"),
    "scratch in volume": (uniform(args__scratch_mount_path="/v/x"), "overlaps the volume"),
    "scratch is Volcano's": (uniform(args__scratch_mount_path="/etc/volcano/"), "overlaps Volcano's own folder"),
    "scratch is ours": (uniform(args__scratch_mount_path="/aj/work"), "overlaps aj's own folder"),
    "scratch size alone": (uniform(args__scratch_size="1Gi"), "scratch_mount_path"),
    "shm": (uniform(args__shm_size="64GB"), "`shm_size: 64GB`"),
    "storage over volume": (
        uniform(storage={"a": {"storage_account_name": "acc", "container_name": "con", "mount_dir": "/v/"}}),
        "overlaps the volume",
    ),
    "no volume": (uniform(env={}), "`AMLT_PERSISTENT_VOLUME_NAME` is not set"),
    "half a volume": (uniform(env={"AMLT_PERSISTENT_VOLUME_NAME": "v"}), "`AMLT_PERSISTENT_VOLUME_MOUNT_DIR`"),
    "odd volume": (uniform(env={**VOLUME, "AMLT_PERSISTENT_VOLUME_NAME": "V"}), "is `V`"),
    "volcano's variable": (uniform(env={**VOLUME, "VC_TASK_INDEX": "1"}), "`VC_TASK_INDEX`"),
    "blob without account": (uniform(upload={"strategy": "blob"}), "the key `blob` is missing"),
    "unknown strategy": (uniform(upload={"strategy": "exec"}), "`exec`"),
    "a folder that climbs": (uniform(upload={"strategy": "blob", "blob": {**STORE, "upload_dir": "a/../b"}}), "`a/../b`"),
    "no folder at all": (uniform(upload={"strategy": "blob", "blob": {**STORE, "upload_dir": "/a"}}), "`/a`"),
    "an account elsewhere": (
        uniform(upload={"strategy": "blob", "blob": {**STORE, "storage_account": "evil.example.com/x"}}),
        "a storage account's name",
    ),
    "unknown key of volcano": (uniform(_extra__volcano={"task": {}}), "unknown key `task`"),
    "long sas": (
        uniform(upload={"strategy": "blob", "blob": {"storage_account": "acc", "container": "con", "sas_expiry_days": 8}}),
        "`8`",
    ),
    "no master": (declared(_extra__volcano__tasks__master=...), "the key `master` is missing"),
    "two masters": (declared({"master": {"replicas": 2}}), "`2`"),
    "task name": (declared({"1st": {"replicas": 1}}), "`1st`"),
    "task without memory": (declared(_extra__volcano__tasks__master__memory=...), "the key `memory` is missing"),
    "task of nobody": (declared({"a": {"replicas": 0}}), "`0`"),
    "task with host path": (declared({"a": {"replicas": 1, "hostPath": "/"}}), "unknown key `hostPath`"),
    "task's security": (declared({"a": {"replicas": 1, "container_args": {"privileged": True}}}), "unknown key `privileged`"),
    "task's AJ_": (declared({"a": {"replicas": 1, "env": {"AJ_X": "1"}}}), "`AJ_X` is reserved"),
    "task's memory": (declared({"a": {"replicas": 1, "memory": "512m"}}), "`memory: 512m`"),
    "task's cpus": (declared({"a": {"replicas": 1, "cpus_per_node": 0}}), "`cpus_per_node: 0`"),
    "gpus twice": (declared(target__gpus_per_node=1), "`gpus_per_node`"),
    "rdma twice": (declared(target__rdma=False), "`rdma`"),
    "nodes twice": (declared(jobs__0__instance_count=1), "`instance_count`"),
    "SKU with placeholders": (declared(jobs__0__sku="{nodes}xG8"), "`{nodes}xG8`"),
}  # fmt: skip


@pytest.mark.parametrize("config,message", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused_at_its_line(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    error = refusal(tmp_path, config)
    assert isinstance(error, TemplateError | CommandError | ShapeError)
    assert message in error.message + (error.hint or ""), error.message
    assert re.search(r"t\.yaml:\d+:\d+\Z", error.where or ""), error.where


@pytest.mark.parametrize("flags", [(2, None, None), (None, 2, None), (None, None, 2)])
def test_declared_tasks_leave_nothing_for_flags(
    tmp_path: Path, flags: tuple[int | None, int | None, int | None]
) -> None:
    config = declared()
    home = Home(tmp_path / ".azure_jobs")
    home.templates.mkdir(parents=True)
    (home.templates / "t.yaml").write_text(dump({"base": None, "config": config}))
    identity = Identity("0badcafe", "x", "2026-01-31T08:00:00+00:00")
    with pytest.raises(ShapeError, match="the template itself fixes the shape"):
        build_spec(load_template(home, "t"), Invocation(("echo",), tmp_path, *flags), identity)


def test_what_a_task_inherits_and_what_it_replaces(tmp_path: Path) -> None:
    own = {"image": "own:1", "setup": []}
    tasks = {
        "a": {
            "replicas": 1,
            "env": {"X": "a", "N": 1.10},
            "container_args": {"capabilities": ["x"]},
            "environment": own,
        },
        "b": {"replicas": 1, "command": ["one", "two"]},
        "c": {"replicas": 1, "command": []},
    }
    config = declared(
        tasks, environment__setup=["s"], jobs__0__command=["pre"], args__shm_size="1Gi", args__capabilities=["Y"]
    )
    config["jobs"][0]["submit_args"]["env"] |= {"X": "all", "Z": "all"}
    job = payload(build(tmp_path, config, env={"Z": "flag"}))
    seen = {task["name"]: task["template"]["spec"]["containers"][0] for task in job["spec"]["tasks"]}
    env = {name: {item["name"]: item["value"] for item in each["env"]} for name, each in seen.items()}
    assert (env["a"]["X"], env["a"]["N"], env["a"]["Z"], env["b"]["X"]) == ("a", "1.1", "flag", "all")
    assert (seen["a"]["image"], seen["b"]["image"]) == ("own:1", "i:1")
    assert (env["a"]["AJ_SETUP"], env["b"]["AJ_SETUP"]) == ("", "s")
    assert [env[name]["AJ_COMMAND"] for name in ("a", "b", "c")] == ["pre\necho", "one\ntwo", "echo"]
    assert [seen[name]["securityContext"]["capabilities"]["add"] for name in ("a", "b")] == [["X"], ["Y"]]
    assert all("shm" in [mount["name"] for mount in each["volumeMounts"]] for each in seen.values())


def test_E01_every_dollar_of_args_and_environment_is_doubled(tmp_path: Path) -> None:
    """Payload text: `pa$$$$w0rd`, `$$(HOSTNAME)`, `echo $$$$ $$(date)`."""
    config = uniform(env={**VOLUME, "PW": "pa$$w0rd", "T": "$(HOSTNAME)"}, jobs__0__command=["echo $$ $(date)"])
    container = payload(build(tmp_path, config))["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    env = {item["name"]: item["value"] for item in container["env"]}
    assert (env["PW"], env["T"]) == ("pa$$$$w0rd", "$$(HOSTNAME)")
    assert env["AJ_COMMAND"] == "echo $$$$ $$(date)\necho"
    for text in (*container["command"], *container["args"], *env.values()):
        assert "$" not in text.replace("$$", "")


def test_only_pods_that_mount_are_privileged(tmp_path: Path) -> None:
    storage = {"a": {"storage_account_name": "acc", "container_name": "con", "mount_dir": "/a"}}
    pods = [
        payload(build(tmp_path, uniform(**parts)))["spec"]["tasks"][0]["template"]["spec"]
        for parts in ({}, {"storage": storage})
    ]
    assert "securityContext" not in pods[0]["containers"][0]
    assert pods[1]["containers"][0]["securityContext"] == {"privileged": True}


def test_a_tasks_own_variables_are_hidden_like_the_jobs(tmp_path: Path) -> None:
    from aj.shared.redact import env_names, secret_names

    spec = build(tmp_path, declared({"a": {"replicas": 1, "env": {"HF_TOKEN": "x", "PLAIN": "y"}}}))
    assert {"HF_TOKEN", "PLAIN"} <= env_names(spec) and secret_names(spec) == {"HF_TOKEN"}
