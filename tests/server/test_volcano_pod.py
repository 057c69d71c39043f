"""The script that every Volcano pod runs, run: the container's own words, by GNU tools and by busybox's."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aj.build.effects import Upload
from aj.build.engine import bring_up_to_date
from aj.build.render import render_payload, symbolic_facts
from aj.build.steps import archive_record
from aj.build.store import Store
from aj.shared.model import nowhere
from fixtures.cases import Case, cases, spec_of, steps_of
from tests.cluster.pod import GNU, Cluster, getent, tools

BUSYBOX = shutil.which("busybox")
ASKS = "import json, os; print(json.dumps(dict(os.environ)))"
needs_busybox = pytest.mark.skipif(BUSYBOX is None, reason="no busybox here: `apt-get install busybox`")


def case(name: str) -> Case:
    return next(each for each in cases() if each.name == name)


@pytest.fixture(params=["gnu", pytest.param("busybox", marks=needs_busybox)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Cluster]:
    """Makes the cluster of a fixture's Job, whose command may be another."""

    def make(name: str, command: str | None = None, setup: str | None = None) -> Cluster:
        path = tmp_path / "image"
        if request.param == "gnu":
            tools(path, GNU)
        else:
            tools(path, ("bash", "python3"), BUSYBOX)
        getent(path, tmp_path / "dns")
        return job(case(name), tmp_path, path, command, setup)

    return make


def job(chosen: Case, folder: Path, path: Path, command: str | None = None, setup: str | None = None) -> Cluster:
    """The cluster into which the fixture's Job was submitted, its code on the volume."""
    outcomes = bring_up_to_date(steps_of(chosen, folder / "build" / "line"), folder / "build" / "memo.db", nowhere)
    record = archive_record(outcomes["archive"].target)
    spec = spec_of(chosen).spec
    if command is not None:
        spec = dataclasses.replace(spec, command=command)
    options: Any = spec.backend_spec
    tasks = tuple(
        dataclasses.replace(task, setup="" if setup is None else setup, command=command and task.command and command)
        for task in options.tasks
    )
    spec = dataclasses.replace(spec, backend_spec=dataclasses.replace(options, tasks=tasks))
    payload = render_payload(spec, symbolic_facts("volcano"), record)
    made = Cluster("train-00000000-abcde", payload, folder, path)
    archive = Store(folder / "build" / "cache").path(record.sha256)
    made.put_code(Upload("code", record.sha256, record.size, archive))
    return made


def with_processes(made: Cluster, number: int) -> Cluster:
    for task in made.payload["spec"]["tasks"]:
        task["template"]["spec"]["containers"][0]["args"][0] = str(number)
    return made


def told(output: str) -> dict[str, str]:
    return dict(json.loads(output.splitlines()[-1]))


def test_ranks_of_four_nodes_with_eight_processes_each(cluster: Callable[..., Cluster]) -> None:
    """Rank from the task's index alone; one tree and one setup on a node; the master's address from the cluster."""
    made = cluster(
        "volcano-four-nodes",
        f"python3 -c '{ASKS}' > out.$LOCAL_RANK; cat out.$LOCAL_RANK",
        "echo once >> $OLDPWD/setup || true",
    )
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    for task, index, node in (("master", 0, 0), ("worker", 2, 3)):
        done = made.run(task, index)
        assert done.returncode == 0, done.stderr
        seen = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert {int(each["RANK"]) for each in seen} == set(range(node * 8, node * 8 + 8))
        for each in seen:
            assert (each["WORLD_SIZE"], each["NODE_RANK"], each["LOCAL_WORLD_SIZE"]) == ("32", str(node), "8")
            assert int(each["RANK"]) == node * 8 + int(each["LOCAL_RANK"])
            assert each["MASTER_ADDR"] == "train-00000000-abcde-master-0.train-00000000-abcde"
            assert (each["AJ_TASK_NAME"], each["AJ_TASK_INDEX"], each["AJ_NODE_RANK"]) == (task, str(index), str(node))
            assert "AJ_EXPORTS" not in each and "AJ_COMMAND" not in each


def test_ranks_of_declared_tasks(cluster: Callable[..., Cluster]) -> None:
    """One process a pod; bases are the sums of earlier replicas, master first, then by name."""
    made = cluster("volcano-tasks", f"python3 -c '{ASKS}'")
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    for task, index, rank, gpus in (("master", 0, 0, "0"), ("a100-worker", 1, 2, "8"), ("h100-worker", 3, 6, "8")):
        done = made.run(task, index)
        assert done.returncode == 0, done.stderr
        seen = told(done.stdout)
        assert (seen["RANK"], seen["NODE_RANK"], seen["AJ_NODE_RANK"], seen["WORLD_SIZE"]) == (*[str(rank)] * 3, "7")
        assert (seen["AJ_TASK_NAME"], seen["AJ_TASK_INDEX"], seen["AJ_GPUS_PER_NODE"]) == (task, str(index), gpus)
        assert (seen["AJ_GPU_NODES"], seen["AJ_TOTAL_GPUS"], seen["AJ_NODES"], seen["LOCAL_RANK"]) == (
            "6",
            "48",
            "7",
            "0",
        )
    assert told(made.run("master").stdout)["LOG_LEVEL"] == "DEBUG"


def test_E01_dollars_arrive_as_they_were_written(cluster: Callable[..., Cluster]) -> None:
    made = cluster("volcano-hostile-env", f"echo $((1 + 1)) '$$ $(date)'\npython3 -c '{ASKS}'")
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    done = made.run("worker")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "2 $$ $(date)"
    seen = told(done.stdout)
    assert seen["PW"] == "pa$$w0rd" and seen["T"] == "$(HOSTNAME)" and seen["GIVEN"] == "$(GIVEN)$$"
    assert seen["LINES"] == "one $(A)\ntwo \"quoted\" 'and' `id`\n"
    assert seen["ODD"] == "\u2028\U0001f600 é \\ # - : {{ }} {% %}"
    assert (seen["EMPTY"], seen["SPACES"]) == ("", "  x  ")


def test_E01_the_users_own_command_sees_its_own_dollars(cluster: Callable[..., Cluster]) -> None:
    made = cluster("volcano-hostile-env")
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    done = made.run("worker")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.split()[0].isdigit() and "$" not in first
    assert second.split()[0].isdigit() and second.endswith(" $(HOSTNAME) pa$$w0rd")


def test_a_worker_waits_for_the_masters_name(cluster: Callable[..., Cluster]) -> None:
    made = with_processes(cluster("volcano-four-nodes", "echo begun"), 3)
    child = made.start("worker")
    assert child.stderr
    assert "waiting for the address of train-00000000-abcde-master-0" in child.stderr.readline()
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0 and out.count("begun") == 3


def test_the_wait_for_the_master_is_bounded(cluster: Callable[..., Cluster]) -> None:
    made = cluster("volcano-four-nodes")
    arguments = made.payload["spec"]["tasks"][1]["template"]["spec"]["containers"][0]["args"]
    arguments[arguments.index("1800")] = "1"
    done = made.run("worker")
    assert done.returncode == 1
    assert "the master, has had no address for 1 s" in done.stderr


def test_the_first_process_that_fails_ends_the_others(cluster: Callable[..., Cluster]) -> None:
    made = with_processes(
        cluster("volcano-four-nodes", 'if [ "$LOCAL_RANK" = 2 ]; then exit 7; fi; sleep 60 & wait'), 3
    )
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    assert made.run("master").returncode == 7


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("status", [0, 9])
def test_a_signal_reaches_every_process_and_the_pod_ends_with_143(
    cluster: Callable[..., Cluster], processes: int, status: int
) -> None:
    """Whatever its processes make of it: a launcher's traceback and a saved checkpoint are both no end of the work."""
    command = f'trap "echo told; exit {status}" TERM; echo up; sleep 60 & wait'
    made = with_processes(cluster("volcano-four-nodes", command), processes)
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    child = made.start("master")
    assert child.stdout
    for _ in range(processes):
        assert child.stdout.readline() == "up\n"
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert out.count("told") == processes, err
    assert child.returncode == 143 and "aj: this pod was told to end (SIGTERM)" in err


def test_code_that_is_missing_or_damaged_is_named(cluster: Callable[..., Cluster]) -> None:
    made = cluster("volcano-eight-gpus", "echo never")
    code = next((made.folder / "volume" / ".aj").glob("*/code.tar.gz"))
    content = code.read_bytes()
    code.write_bytes(content[:-1])
    damaged = made.run("master")
    assert damaged.returncode == 1 and "it is damaged or another one" in damaged.stderr
    code.unlink()
    missing = made.run("master", AJ_ID="00000001")
    assert missing.returncode == 1 and "the code is not on the volume" in missing.stderr
    code.write_bytes(content)
    script = next((made.folder / "volume" / ".aj").glob("*/bootstrap.sh"))
    script.write_text("echo evil")
    assert "missing or damaged" in made.run("master", AJ_ID="00000002").stderr


def test_a_missing_tool_is_named(tmp_path: Path) -> None:
    """E08: an image without bash says so in one line, and one without tar or gzip too."""
    for number, (lacks, words) in enumerate(
        {"bash": "bash is missing", "gzip": "missing in this image: `gzip`"}.items()
    ):
        folder = tmp_path / str(number)
        path = tools(folder / "image", [name for name in GNU if name != lacks])
        done = job(case("volcano-cpu"), folder, path, "echo never").run("master")
        assert done.returncode == 127 and words in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("fetcher", ["curl", "wget", "python3"])
def test_code_by_https_is_fetched_verified_and_tried_again(tmp_path: Path, fetcher: str) -> None:
    """The address with its secret is in no process's words; the first two answers are an error and a torn file."""
    from tests.cluster.web import serving

    if shutil.which(fetcher) is None:
        pytest.skip(f"no {fetcher} here")
    path = tools(tmp_path / "image", [name for name in GNU if name not in {"curl", "wget", "python3"} - {fetcher}])
    getent(path, tmp_path / "dns")
    made = job(case("volcano-blob"), tmp_path, path, "echo begun")
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    with serving(made.folder / "volume" / ".aj") as (url, asked):
        words, env = made.command("worker")
        credentials = tmp_path / "worker-0" / "aj" / "credentials"
        for name, file in (("code", "code.tar.gz"), ("bootstrap", "bootstrap.sh")):
            found = next((made.folder / "volume" / ".aj").glob(f"*/{file}"))
            (credentials / f"{name}.url").write_text(f"{url}/{found.parent.name}/{file}?sig=hush-hush%2F")
        asked.faults.extend([503, "torn"])
        done = made.run("worker")
    assert done.returncode == 0 and "begun" in done.stdout, done.stderr
    assert "try 1 of 4 to fetch bootstrap failed" in done.stderr and "hush-hush" not in done.stderr + done.stdout
    assert all("hush-hush" not in word for word in [*words, *env.values()])
    assert all(path.endswith("?sig=hush-hush%2F") for path in asked.paths)


def test_storages_are_mounted_from_their_configuration(tmp_path: Path) -> None:
    path = tools(tmp_path / "image", GNU)
    getent(path, tmp_path / "dns")
    log = tmp_path / "mounted"
    (path / "blobfuse2").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {log}\n')
    (path / "blobfuse2").chmod(0o755)
    made = job(case("volcano-mounts"), tmp_path, path, "echo begun")
    made.answer("train-00000000-abcde-master-0.train-00000000-abcde")
    for task in made.payload["spec"]["tasks"]:
        arguments = task["template"]["spec"]["containers"][0]["args"]
        arguments[5:] = [word.replace("=/mnt/", f"={tmp_path}/mnt/") for word in arguments[5:]]
    done = made.run("worker")
    assert done.returncode == 0 and "begun" in done.stdout, done.stderr
    credentials = tmp_path / "worker-0" / "aj" / "credentials"
    expected = []
    for name in ("data", "outputs"):
        expected += ["mount", f"{tmp_path}/mnt/{name}", f"--config-file={credentials}/{name}.yaml"]
    assert log.read_text().split() == expected
    (path / "blobfuse2").write_text("#!/bin/sh\nexit 1\n")
    failed = made.run("worker", AJ_ID="00000001")
    assert failed.returncode == 1 and "cannot mount storage `data`" in failed.stderr
    (path / "blobfuse2").unlink()
    lacking = made.run("worker", AJ_ID="00000002")
    assert lacking.returncode == 127 and "`blobfuse2`" in lacking.stderr


def test_a_pod_that_waits_ends_when_it_is_told_to(cluster: Callable[..., Cluster]) -> None:
    made = cluster("volcano-four-nodes")
    child = made.start("worker")
    assert child.stderr
    child.stderr.readline()
    started = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    child.communicate(timeout=30)
    assert child.returncode == 143 and time.monotonic() - started < 25
