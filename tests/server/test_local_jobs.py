"""The `local` backend end to end: real supervisors, real processes, files in and logs out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from aj.build.effects import Sealed, Upload
from aj.server.submit.local import LocalEffects
from aj.server.submit.local_jobs import PAGE_BYTES, LocalJobs
from aj.server.submit.process import send, start_of
from aj.shared.errors import NotFoundError, StoreError, SubmissionError
from aj.shared.model import Caller, Event, Identity, JobSpec, MergedTemplate, Shape, nowhere
from aj.shared.opts.local import LocalOpts
from aj.shared.paths import Home, shipped

SCRIPTS = shipped("backends") / "archive"
SECRET = "hunter2-in-the-environment"


class Machine:
    """This machine as a backend, with one project and one archive."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "home")
        self.jobs = LocalJobs(self.home)
        self.archive = folder / "store" / "code.tar.gz"
        self.archive.parent.mkdir()
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), "AZURE_CLIENT_SECRET": "a login", "LANG": "C.UTF-8"}
        self.effects = LocalEffects(self.home, Caller(str(folder), env), SCRIPTS / "bootstrap.sh", term_grace_seconds=2)
        self.pack({"train.py": b"print('trained')\n"})

    def pack(self, files: Mapping[str, bytes]) -> None:
        with tarfile.open(self.archive, "w:gz") as tar:
            for name, content in {"aj_runner.sh": (SCRIPTS / "aj_runner.sh").read_bytes(), **files}.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(content), 0o755
                tar.addfile(member, io.BytesIO(content))

    def sealed(
        self,
        command: str,
        *,
        id: str = "0a1b2c3d",
        shape: tuple[int, int] = (1, 1),
        setup: str = "",
        env: Mapping[str, str] | None = None,
        timeout: int | None = None,
    ) -> Sealed:
        (nodes, per_node), name = shape, f"job_{id}"
        digest = hashlib.sha256(self.archive.read_bytes()).hexdigest()
        stable = {"AJ_ID": id, "AJ_NAME": name, "AJ_NODES": str(nodes), "AJ_PROCESSES_PER_NODE": str(per_node)}
        own = {"AJ_CODE_ARCHIVE_SHA256": digest, "AJ_COMMAND": command, "AJ_SETUP": setup}
        payload = {
            "kind": "local_job",
            "name": name,
            "nodes": nodes,
            "processes_per_node": per_node,
            "archive": {"sha256": digest},
            "env": {**(env or {}), **stable, **own},
            **({} if timeout is None else {"timeout_seconds": timeout}),
        }
        spec = JobSpec(
            service="local",
            identity=Identity(id, "job", "2026-01-31T08:00:00+00:00"),
            name=name,
            shape=Shape(nodes, 1, per_node),
            sku=None,
            image=None,
            registry=None,
            setup=(),
            command=command,
            argv=(),
            env=stable,
            secret_env=(),
            storage=(),
            ignore=(),
            timeout_seconds=timeout,
            description=None,
            backend_spec=LocalOpts(),
            extra={},
            template=MergedTemplate("gpu", {}, ()),
        )
        return Sealed(spec, payload, (), self.archive)

    def submit(self, command: str, **how: object) -> str:
        return self.effects.submit(self.sealed(command, **how), {}, nowhere).remote_name  # type: ignore[arg-type]

    def folder(self, name: str) -> Path:
        return self.home.logs / name

    def ended(self, name: str) -> dict[str, object]:
        assert eventually(lambda: self.jobs.show(name)["status"] != "Running"), self.output(name)
        return self.jobs.show(name)

    def output(self, name: str) -> dict[str, str]:
        return {chunk.stream: chunk.text for chunk in self.jobs.logs(name, {}).chunks}

    def pids(self, name: str) -> list[int]:
        state = self.jobs.show(name)
        return [state["supervisor"]["pid"], *(member["pid"] for member in state["members"])]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    for job in machine.jobs.list_jobs():
        machine.jobs.cancel(str(job["name"]))


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(800):
        if condition():
            return True
        time.sleep(0.05)
    return False


def alive(pid: int) -> bool:
    return start_of(pid) is not None


# -- running ----------------------------------------------------------------------------------------------------------

RENDEZVOUS = b"""
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(address) as server:
        peers = [server.accept()[0] for _ in range(world - 1)]
        total = sum(int(peer.recv(16)) for peer in peers)
        for peer in peers:
            peer.sendall(str(total).encode())
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    peer.sendall(str(rank).encode())
    total = int(peer.recv(16))
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR")
print(total, *(os.environ[name] for name in names))
"""


def test_S05_two_nodes_of_two_are_four_processes_that_find_each_other(machine: Machine) -> None:
    machine.pack({"train.py": RENDEZVOUS})
    name = machine.submit(f"{shlex.quote(sys.executable)} train.py", shape=(2, 2))
    state = machine.ended(name)
    assert (state["status"], state["exit_code"], state["reason"]) == ("Completed", 0, None), machine.output(name)
    assert machine.output(name) == {
        "0": "6 0 4 0 2 0 127.0.0.1\n",
        "1": "6 1 4 1 2 0 127.0.0.1\n",
        "2": "6 2 4 0 2 1 127.0.0.1\n",
        "3": "6 3 4 1 2 1 127.0.0.1\n",
    }


def test_setup_runs_once_on_each_node_and_nodes_do_not_share_a_tree(machine: Machine) -> None:
    name = machine.submit("cat setup.log; pwd", shape=(2, 2), setup="echo set up >> setup.log")
    machine.ended(name)
    output = machine.output(name)
    assert [text.count("set up") for text in output.values()] == [1, 1, 1, 1]
    assert len({text.splitlines()[-1] for text in output.values()}) == 2


def test_a_job_sees_the_machine_and_its_payload_but_no_login_and_nothing_of_the_daemon(machine: Machine) -> None:
    name = machine.submit("compgen -e; echo $LANG; umask", env={"LANG": "mine", "MASTER_PORT": "1234", "HOME": "/h"})
    machine.ended(name)
    words = machine.output(name)["0"].split()
    assert {"PATH", "HOME", "AJ_ID", "RANK"} <= set(words)
    assert words[-2:] == ["mine", "0022"]
    assert not {"AZURE_CLIENT_SECRET", "AJ_COMMAND", "PYTEST_CURRENT_TEST", "LC_CTYPE", "AJ_WORK_ROOT"} & set(words)


def test_what_is_installed_beside_aj_is_found_last(machine: Machine) -> None:
    name = machine.submit('echo "${PATH##*:}"')
    machine.ended(name)
    assert machine.output(name)["0"].strip() == str(Path(sys.executable).parent)


def test_the_tree_keeps_what_the_job_wrote_and_nothing_else(machine: Machine) -> None:
    machine.pack({"train.py": b"", "sub/old.txt": b"old"})
    name = machine.submit("mkdir out; cp -p sub/old.txt out/copy.txt; echo new > out/new.txt; rm aj_runner.sh")
    machine.ended(name)
    node = machine.folder(name) / "nodes" / "node-0"
    assert eventually(lambda: not (machine.folder(name) / "code.tar.gz").exists() and not list(node.rglob("train.py")))
    assert eventually(
        lambda: sorted(path.name for path in node.rglob("*") if path.is_file()) == ["copy.txt", "new.txt"]
    )


def test_the_code_lies_outside_the_project_and_leaves_nothing_when_the_job_wrote_nothing(machine: Machine) -> None:
    name = machine.submit("pwd -P")
    machine.ended(name)
    assert not Path(machine.output(name)["0"].strip()).is_relative_to(machine.home.root.resolve())
    assert eventually(lambda: not (machine.folder(name) / "nodes").is_symlink())
    assert not list((Path(machine.effects.caller.env["HOME"]) / ".cache" / "aj" / "nodes").iterdir())


def test_the_job_does_not_need_the_store_once_it_runs(machine: Machine) -> None:
    before = machine.archive.stat()
    name = machine.submit("cat train.py")
    after = machine.archive.stat()
    machine.archive.unlink()
    assert (after.st_ctime_ns, after.st_nlink) == (before.st_ctime_ns, before.st_nlink)
    assert machine.ended(name)["status"] == "Completed"


def test_nothing_secret_is_on_the_disk_or_in_a_list_of_processes(machine: Machine) -> None:
    name = machine.submit("until [[ -e /proc/$PPID/stop || -e stop ]]; do sleep 0.1; done", env={"TOKEN": SECRET})
    assert eventually(lambda: bool(list(machine.folder(name).glob("nodes/node-0/aj-*/*/script.*"))))
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in machine.pids(name)]
    assert not [command for command in commands if SECRET.encode() in command or b"until" in command]
    assert SECRET.encode() not in Path(f"/proc/{machine.pids(name)[0]}/environ").read_bytes()
    files = [path for path in (machine.folder(name) / "nodes").resolve().rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert machine.folder(name).stat().st_mode & 0o077 == 0
    machine.jobs.cancel(name)


# -- failing ----------------------------------------------------------------------------------------------------------


def test_the_first_failure_ends_the_gang_and_gives_its_status(machine: Machine) -> None:
    name = machine.submit("[[ $RANK != 2 ]] || exit 9; sleep 600", shape=(2, 2))
    state = machine.ended(name)
    assert (state["status"], state["exit_code"], state["reason"]) == ("Failed", 9, "rank 2 ended with status 9")
    assert not [pid for pid in machine.pids(name)[1:] if alive(pid)]


def test_a_damaged_archive_fails_the_job_with_the_reason_in_every_log(machine: Machine) -> None:
    sealed = machine.sealed("true", shape=(1, 3))
    payload = {**sealed.payload, "env": {**sealed.payload["env"], "AJ_CODE_ARCHIVE_SHA256": "0" * 64}}
    name = machine.effects.submit(replace(sealed, payload=payload), {}, nowhere).remote_name
    assert machine.ended(name)["status"] == "Failed"
    assert all("it is damaged or another one" in text for text in machine.output(name).values())
    assert machine.output(name).keys() == {"0", "1", "2"}


def test_a_job_that_is_out_of_time_has_failed_and_says_so(machine: Machine) -> None:
    name = machine.submit("sleep 600", timeout=1)
    state = machine.ended(name)
    assert (state["status"], state["reason"]) == ("Failed", "it ran longer than 1 seconds")
    assert not [pid for pid in machine.pids(name)[1:] if alive(pid)]


def test_a_supervisor_that_cannot_start_the_job_leaves_nothing(machine: Machine) -> None:
    with pytest.raises(SubmissionError, match="Argument list too long"):
        machine.submit("true", env={"V": "x" * 131_072})
    assert list(machine.home.logs.iterdir()) == []
    assert machine.effects.find(machine.sealed("true").spec, {}) is None


def test_a_supervisor_that_says_nothing_leaves_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SubmissionError, match="no word from it"):
        machine.submit("true")
    assert list(machine.home.logs.iterdir()) == []


def test_without_bash_or_archive_nothing_is_started(machine: Machine, tmp_path: Path) -> None:
    poor = replace(machine.effects, caller=Caller("/", {"PATH": str(tmp_path)}))
    with pytest.raises(SubmissionError, match="`bash` is not on PATH"):
        poor.submit(machine.sealed("true"), {}, nowhere)
    sealed = machine.sealed("true")
    machine.archive.unlink()
    with pytest.raises(SubmissionError, match="cannot start `job_0a1b2c3d`"):
        machine.effects.submit(sealed, {}, nowhere)
    assert list(machine.home.logs.iterdir()) == []


def test_one_job_a_name(machine: Machine) -> None:
    machine.submit("true")
    with pytest.raises(SubmissionError, match="exists already"):
        machine.submit("true")


def test_uploads_are_refused(machine: Machine) -> None:
    upload = Upload("code", "0" * 64, 1, machine.archive)
    assert machine.effects.facts(machine.sealed("true").spec, nowhere) == {}
    with pytest.raises(SubmissionError):
        machine.effects.present(upload, {})
    with pytest.raises(SubmissionError):
        machine.effects.upload(upload, {}, nowhere)


# -- ends from outside ------------------------------------------------------------------------------------------------

TREE = """
trap '' TERM
setsid bash -c 'trap "" TERM; echo $$ > escaped; while :; do sleep 1; done' &
(setsid bash -c 'echo $$ > orphan; exec sleep 600' &)
(sleep 600 & echo $! > grandchild; wait) &
while :; do sleep 0.2; done
"""


def _tree_pids(machine: Machine, name: str) -> list[int]:
    def found() -> list[Path]:
        names = {"escaped", "orphan", "grandchild"}
        return [
            path
            for path in (machine.folder(name) / "nodes").resolve().rglob("*")
            if path.name in names and path.stat().st_size
        ]

    assert eventually(lambda: len(found()) == 3)
    return [int(path.read_text()) for path in found()]


def test_cancel_ends_grandchildren_sessions_of_their_own_and_orphans(machine: Machine) -> None:
    name = machine.submit(TREE)
    pids = [*_tree_pids(machine, name), *machine.pids(name)]
    assert all(alive(pid) for pid in pids)
    assert machine.jobs.cancel(name) == "Canceled"
    assert eventually(lambda: not [pid for pid in pids if alive(pid)])
    assert machine.jobs.cancel(name) == "Canceled"
    assert machine.jobs.show(name)["reason"] == "it was canceled"


def test_a_daemon_left_behind_ends_with_the_job(machine: Machine) -> None:
    name = machine.submit(
        "(setsid bash -c 'echo $$ > orphan; exec sleep 600' &)\nuntil [[ -s orphan ]]; do sleep 0.05; done; cat orphan"
    )
    assert machine.ended(name)["status"] == "Completed"
    assert not alive(int(machine.output(name)["0"]))


def test_a_killed_supervisor_is_read_as_a_failure_and_takes_its_processes_along(machine: Machine) -> None:
    name = machine.submit("sleep 600", shape=(2, 1))
    supervisor, *members = machine.pids(name)
    os.kill(supervisor, signal.SIGKILL)
    assert eventually(lambda: not [pid for pid in members if alive(pid)])
    state = machine.jobs.show(name)
    assert (state["status"], machine.jobs.list_jobs()[0]["status"]) == ("Failed", "Failed")
    assert "it was killed" in str(state["reason"])
    assert machine.jobs.cancel(name) == "Failed"
    assert machine.jobs.logs(name, {}).finished


def test_cancel_ends_what_a_killed_supervisor_left(machine: Machine) -> None:
    name = machine.submit("trap '' TERM; while :; do sleep 0.2; done")
    supervisor, member = machine.pids(name)
    assert eventually(lambda: bool(list(machine.folder(name).glob("nodes/node-0/aj-*/*/script.*"))))
    os.kill(supervisor, signal.SIGKILL)
    machine.jobs.cancel(name)
    assert eventually(lambda: not alive(member))


@pytest.mark.parametrize("part", ["supervisor", "boot"])
def test_D02_a_reused_pid_is_neither_believed_nor_signalled(machine: Machine, part: str) -> None:
    name = machine.submit("true")
    machine.ended(name)
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        path = machine.folder(name) / "job.json"
        state = json.loads(path.read_text())
        start = start_of(stranger.pid)
        assert start is not None
        other = f"another-boot:{start.partition(':')[2]}" if part == "boot" else f"{start.partition(':')[0]}:1"
        state["status"] = "Running"
        for process in (state["supervisor"], *state["members"]):
            process.update(pid=stranger.pid, start=other, exit_code=None)
        path.write_text(json.dumps(state))
        assert machine.jobs.show(name)["status"] == "Failed"
        assert machine.jobs.cancel(name) == "Failed"
        assert stranger.poll() is None
        assert not send(stranger.pid, other, signal.SIGTERM)
        assert send(stranger.pid, start, signal.SIGTERM)
        assert stranger.wait() == -signal.SIGTERM
    finally:
        stranger.kill()
        stranger.wait()


def test_D09_a_job_is_found_after_its_submitter_died(machine: Machine) -> None:
    assert machine.effects.find(machine.sealed("true").spec, {}) is None
    name = machine.submit("exit 3")
    machine.ended(name)
    found = machine.effects.find(machine.sealed("true").spec, {})
    assert found is not None
    assert (found.remote_name, found.status) == (name, "Failed")


def test_D09_find_waits_for_a_job_that_is_just_being_started(machine: Machine) -> None:
    seen: list[object] = []
    looking = threading.Event()

    def emit(event: Event) -> None:
        del event
        looking.set()

    thread = threading.Thread(target=lambda: seen.append(machine.effects.submit(machine.sealed("true"), {}, emit)))
    thread.start()
    assert looking.wait(30)
    found = machine.effects.find(machine.sealed("true").spec, {})
    thread.join()
    assert len(seen) == 1
    # Looked before the folder was made: nothing. Looked after: the job, never a claim that it is surely absent.
    assert found is None or found.remote_name == "job_0a1b2c3d"


# -- reading ----------------------------------------------------------------------------------------------------------


def test_logs_come_in_bounded_pages_and_never_cut_a_character(machine: Machine) -> None:
    text = "añ😀\n" * 60_000
    machine.pack({"out.txt": text.encode()})
    name = machine.submit("cat out.txt; printf 'end \\xff'", shape=(1, 2))
    machine.ended(name)
    cursor: Mapping[str, int] = {}
    read = {"0": "", "1": ""}
    pages = 0
    while True:
        page = machine.jobs.logs(name, cursor)
        assert sum(len(chunk.text.encode()) for chunk in page.chunks) <= PAGE_BYTES
        for chunk in page.chunks:
            read[chunk.stream] += chunk.text
        cursor, pages = page.cursor, pages + 1
        if page.finished:
            break
    assert read == {"0": text + "end �", "1": text + "end �"}
    assert pages > 2
    assert machine.jobs.logs(name, cursor).chunks == ()


def test_logs_of_a_running_job_follow_its_output(machine: Machine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    half = "printf '\\xf0\\x9f'"
    rest = "printf '\\x98\\x80\\n'"
    name = machine.submit(f"echo first; {half}; until [[ -e {gate} ]]; do sleep 0.05; done; {rest}")
    log = machine.folder(name) / "0.log"
    assert eventually(lambda: log.exists() and log.stat().st_size == 8)
    first = machine.jobs.logs(name, {})
    assert [chunk.text for chunk in first.chunks] == ["first\n"]
    assert not first.finished
    gate.touch()
    machine.ended(name)
    second = machine.jobs.logs(name, first.cursor)
    assert [chunk.text for chunk in second.chunks] == ["😀\n"]
    assert second.finished


@pytest.mark.parametrize("cursor", [{"0": -5}, {"0": 10**12}, {"../../etc/passwd": 0}, {"7": 1}])
def test_a_wild_cursor_reads_nothing_foreign(machine: Machine, cursor: dict[str, int]) -> None:
    name = machine.submit("echo out")
    machine.ended(name)
    page = machine.jobs.logs(name, cursor)
    assert {chunk.stream for chunk in page.chunks} <= {"0"}
    assert page.finished


def test_jobs_are_listed_newest_first_and_found_by_name_id_and_start_of_id(machine: Machine) -> None:
    for id in ("aa000002", "bb000003", "aa000001"):
        machine.ended(machine.submit("true", id=id))
    listed = machine.jobs.list_jobs()
    assert [job["id"] for job in listed] == ["aa000001", "bb000003", "aa000002"]
    assert {"id", "name", "azure_name", "status", "backend", "created_at", "ended_at", "nodes"} <= listed[0].keys()
    assert [machine.jobs.resolve(ref) for ref in ("job_bb000003", "bb000003", "b", "aa000001")] == [
        "job_bb000003",
        "job_bb000003",
        "job_bb000003",
        "job_aa000001",
    ]
    with pytest.raises(NotFoundError, match="start of several jobs") as ambiguous:
        machine.jobs.show("aa")
    assert "`job_aa000001`, `job_aa000002`" in str(ambiguous.value.hint)
    with pytest.raises(NotFoundError) as misspelt:
        machine.jobs.show("job_bb00003")
    assert "did you mean `job_bb000003`" in str(misspelt.value.hint)


@pytest.mark.parametrize("ref", ["", "..", "../logs", "/etc", "a/b", "a\0b", "job\n", "-x", "x" * 300])
def test_a_path_is_no_name(machine: Machine, ref: str) -> None:
    for call in (machine.jobs.show, machine.jobs.cancel, lambda ref: machine.jobs.logs(ref, {})):
        with pytest.raises(NotFoundError):
            call(ref)


def test_a_damaged_state_is_named_and_hides_no_other_job(machine: Machine) -> None:
    name = machine.submit("true")
    machine.ended(name)
    for content in ("", "[]", '{"id": "x"}', '{"supervisor": 1}'):
        broken = machine.home.logs / "broken"
        broken.mkdir(exist_ok=True)
        (broken / "job.json").write_text(content)
        assert [job["name"] for job in machine.jobs.list_jobs()] == [name]
        with pytest.raises(StoreError, match="cannot be read"):
            machine.jobs.show("broken")
    (machine.home.logs / "a file").write_text("")


def test_there_are_no_jobs_before_the_first(tmp_path: Path) -> None:
    jobs = LocalJobs(Home(tmp_path))
    assert jobs.list_jobs() == []
    with pytest.raises(NotFoundError):
        jobs.show("x")
