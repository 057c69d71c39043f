"""`aj_runner.sh` in real bash: what the command sees, which ranks it gets, how it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from aj.shared.paths import shipped

RUNNER = shipped("backends") / "archive" / "aj_runner.sh"
SHOW_ENV = (
    f"{shlex.quote(sys.executable)} -c 'import os,sys; sys.stdout.buffer.write(os.environb[sys.argv[1].encode()])'"
)

Start = Callable[..., "subprocess.Popen[bytes]"]
Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the runner in a tree of its own, as the bootstrap does; whatever is left of it is killed at the end."""
    tree, node = tmp_path / "code", tmp_path / "node"
    tree.mkdir()
    node.mkdir()
    (tree / "aj_runner.sh").write_bytes(RUNNER.read_bytes())
    started: list[subprocess.Popen[bytes]] = []

    def start_runner(command: str, env: Mapping[str, str] | None = None, by: str = "bash") -> subprocess.Popen[bytes]:
        own = {"PATH": os.environ["PATH"], "AJ_ID": "0a1b2c3d", "AJ_NODE_FOLDER": str(node), "AJ_COMMAND": command}
        own["MARK"] = str(tmp_path)
        child = subprocess.Popen(
            [by, "aj_runner.sh"],
            cwd=tree,
            env={**own, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(child)
        return child

    yield start_runner
    for pid in _marked(tmp_path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for child in started:
        child.communicate()


def _marked(folder: Path) -> list[int]:
    """Whatever was started by the runners of one test, wherever it has gone since."""
    mark = b"MARK=" + os.fsencode(folder) + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.fixture
def run(start: Start) -> Run:
    def run_runner(command: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        child = start(command, env)
        out, err = child.communicate(timeout=60)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    return run_runner


def _children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in listed.stdout.split()]


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


# -- the command ------------------------------------------------------------------------------------------------------


def test_E01_dollars_are_expanded_once_by_the_shell_and_never_in_the_environment(run: Run) -> None:
    env = {"PW": "pa$$w0rd", "T": "$(HOSTNAME)"}
    assert run(f"{SHOW_ENV} PW; {SHOW_ENV} T", env).stdout == b"pa$$w0rd$(HOSTNAME)"
    assert run("""x=$(echo inner); echo '$$ $(date)' "$x" """).stdout == b"$$ $(date) inner\n"


def test_E05_a_comment_ends_with_its_line_and_what_is_exported_stays(run: Run) -> None:
    done = run('export A=1\npython3 -c "print(1)"\n# note\necho done $A')
    assert (done.stdout, done.returncode) == (b"1\ndone 1\n", 0)


def test_E06_a_folded_command_runs_as_the_lines_it_became(run: Run) -> None:
    done = run("echo train.py\n  echo --lr 1\n  echo --bs 2\n")
    assert done.stdout == b"train.py\n--lr 1\n--bs 2\n"


@pytest.mark.parametrize("command", ["false | tee log", "false\necho after"])
def test_E07_a_failing_stage_or_line_ends_the_command_with_its_status(run: Run, command: str) -> None:
    done = run(command)
    assert (done.returncode, done.stdout) == (1, b"")


HOSTILE = {
    "dollars": "pa$$w0rd$HOME",
    "backticks": "`id`",
    "double": 'say "hi"',
    "single": "it's",
    "newline": "a\nb",
    "bang": "!x",
    "backslash": "\\",
    "lead": " lead",
    "empty": "",
    "dash": "-n",
    "star": "*",
    "accent": "é",
    "function": "() { :; }; echo pwned",
    "final_newlines": "x\n\n",
    "carriage": "a\r\nb",
    "CDPATH": "/tmp",
    "GLOBIGNORE": "*",
    "REPLY": "mine",
    "status": "mine",
    "my.dotted-name": "kept",
    "1digit": "kept",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_E09_every_variable_reaches_the_command_byte_for_byte(run: Run, name: str) -> None:
    assert run(f"{SHOW_ENV} {name}", HOSTILE).stdout == HOSTILE[name].encode()


def test_E09_arguments_reach_the_command_byte_for_byte(run: Run) -> None:
    words = [*HOSTILE.values(), "\U0001f600"]
    show = [sys.executable, "-c", "import sys; print(ascii(sys.argv[1:]))"]
    assert run(shlex.join([*show, *words])).stdout.decode() == ascii(words) + "\n"


def test_E10_the_longest_command_that_fits_one_variable_runs(run: Run) -> None:
    limit = 131_071 - len("AJ_COMMAND=")
    ending = "\necho the end"
    command = "echo start\n#" + "x" * (limit - len("echo start\n#") - len(ending)) + ending
    assert run(command).stdout == b"start\nthe end\n"
    with pytest.raises(OSError, match="Argument list too long"):
        run(command + "x")


def test_the_command_is_in_no_list_of_processes_and_in_no_file_afterwards(run: Run, tmp_path: Path) -> None:
    done = run("tr '\\0' ' ' < /proc/$$/cmdline; secret=in-the-$((40 + 2))-command")
    assert done.returncode == 0
    assert b"secret" not in done.stdout
    assert not [path for path in (tmp_path / "node").iterdir() if b"secret" in path.read_bytes()]


def test_the_command_sees_stable_variables_and_none_of_the_runner(run: Run) -> None:
    done = run(
        "compgen -e; compgen -v | grep __aj || true; read -r line || echo no input",
        {"AJ_SETUP": "true", "AJ_NAME": "n"},
    )
    seen = done.stdout.decode().split("\n")
    assert {"AJ_ID", "AJ_NAME", "RANK"} <= set(seen)
    assert not {"AJ_COMMAND", "AJ_SETUP", "AJ_EXPORTS", "AJ_NODE_FOLDER", "AJ_WORK_ROOT"} & set(seen)
    assert not [name for name in seen if name.startswith("__aj")]
    assert "no input" in seen


def test_the_template_lines_and_the_words_share_one_shell(run: Run) -> None:
    assert run("greet() { echo hello $1; }\ncd /\ngreet world\npwd").stdout == b"hello world\n/\n"


@pytest.mark.parametrize(
    ("command", "status"), [("exit 0", 0), ("exit 3", 3), ("no-such-tool", 127), ("kill -KILL $$", 137)]
)
def test_the_status_is_the_commands(run: Run, command: str, status: int) -> None:
    assert run(command).returncode == status


def test_nothing_to_run_is_an_error(run: Run) -> None:
    done = run("")
    assert done.returncode == 2
    assert b"AJ_COMMAND is empty" in done.stderr


def test_it_works_without_home_and_temporary_folder_and_started_by_sh(start: Start, tmp_path: Path) -> None:
    child = start("echo ${HOME-none} ${BASH_VERSION:+bash}", by="sh")
    out, _ = child.communicate(timeout=60)
    assert out == b"none bash\n"


def test_without_a_folder_of_the_bootstrap_it_finds_its_own(run: Run, tmp_path: Path) -> None:
    done = run("echo ran", {"AJ_NODE_FOLDER": "", "AJ_WORK_ROOT": str(tmp_path / "work"), "AJ_SETUP": "echo set up"})
    assert done.stdout == b"set up\nran\n"
    assert list((tmp_path / "work").glob("aj-*/0a1b2c3d-*/setup.done"))


# -- ranks ------------------------------------------------------------------------------------------------------------

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def _ompi(rank: int, size: int, local: int, local_size: int) -> dict[str, str]:
    names = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        pytest.param({}, "0 1 0 1 0 127.0.0.1 29500", id="nothing said"),
        pytest.param({"AJ_NODES": "1", "AJ_PROCESSES_PER_NODE": "1"}, "0 1 0 1 0 127.0.0.1 29500", id="one process"),
        pytest.param(
            {"AJ_NODES": "2", "AJ_PROCESSES_PER_NODE": "1", "AJ_NODE_RANK": "1"}, "1 2 0 1 1 - 29500", id="a pod of two"
        ),
        pytest.param(
            {"AJ_NODES": "2", "AJ_PROCESSES_PER_NODE": "4", "NODE_RANK": "1", "LOCAL_RANK": "3"},
            "7 8 3 4 1 - 29500",
            id="place on a known node",
        ),
        pytest.param(
            {**_ompi(5, 8, 1, 4), "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"},
            "5 8 1 4 1 10.0.0.4 29500",
            id="OpenMPI on Azure",
        ),
        pytest.param(
            {**_ompi(3, 6, 1, 3), "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000"},
            "3 6 1 3 1 10.0.0.4 29500",
            id="OpenMPI dealing out ranks in turn",
        ),
        pytest.param(
            {
                **_ompi(5, 8, 1, 4),
                "RANK": "6",
                "WORLD_SIZE": "16",
                "MASTER_ADDR": "here",
                "MASTER_PORT": "1",
                "NODE_RANK": "9",
            },
            "6 16 1 4 9 here 1",
            id="set values win",
        ),
        pytest.param({"AJ_NODES": "3", "AJ_PROCESSES_PER_NODE": "1"}, "- 3 0 1 - - 29500", id="unknown stays unset"),
        pytest.param({"AJ_NODES": "08", "RANK": "09"}, "09 8 0 1 9 - 29500", id="leading zeros are decimal"),
    ],
)
def test_S05_ranks_come_from_the_best_source(run: Run, env: dict[str, str], expected: str) -> None:
    done = run("echo " + " ".join(f"${{{name}:--}}" for name in NAMES), env)
    assert done.stdout.decode() == expected + "\n"
    assert (b"nothing on this node tells RANK" in done.stderr) == expected.startswith("-")


def test_S05_two_nodes_of_two_number_their_nodes_by_rank(run: Run) -> None:
    env = {"AJ_NODES": "2", "AJ_PROCESSES_PER_NODE": "2"}
    seen = [run("echo $NODE_RANK $LOCAL_RANK $WORLD_SIZE", {**env, "RANK": str(rank)}).stdout for rank in range(4)]
    assert seen == [b"0 0 4\n", b"0 1 4\n", b"1 0 4\n", b"1 1 4\n"]


def test_a_rank_that_is_no_number_is_refused_and_never_run(run: Run, tmp_path: Path) -> None:
    done = run("echo ran", {"RANK": f"a[$(touch {tmp_path}/pwned)]"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"RANK must be a number" in done.stderr
    assert not (tmp_path / "pwned").exists()


def test_exports_give_names_that_only_the_cluster_knows(run: Run) -> None:
    exports = (
        "AJ_NODE_RANK=VC_TASK_INDEX+3\nAJ_TASK_INDEX=VC_TASK_INDEX\nMASTER_ADDR=VC_MASTER_HOSTS\nKEPT=VC_TASK_INDEX"
    )
    env = {
        "AJ_EXPORTS": exports,
        "VC_TASK_INDEX": "08",
        "VC_MASTER_HOSTS": "j-master-0.j",
        "KEPT": "mine",
        "AJ_NODES": "20",
    }
    done = run("echo $AJ_NODE_RANK $AJ_TASK_INDEX $MASTER_ADDR $KEPT $RANK", env)
    assert done.stdout == b"11 08 j-master-0.j mine 11\n"


@pytest.mark.parametrize("exports", ["A=NOT_SET", "A=$(id)", "A B=C", "A=PATH+1", "A=B+x"])
def test_an_export_that_cannot_be_carried_out_ends_the_job(run: Run, exports: str) -> None:
    done = run("echo ran", {"AJ_EXPORTS": exports})
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"aj: ")


# -- setup ------------------------------------------------------------------------------------------------------------


def test_setup_runs_once_on_a_node_and_before_every_command(start: Start, tmp_path: Path) -> None:
    setup = "sleep 0.3\necho once >> setup.log\nexport LOST=1"
    children = [
        start("cat setup.log; echo ${LOST-gone} $RANK", {"AJ_SETUP": setup, "RANK": str(rank)}) for rank in range(4)
    ]
    seen = sorted(child.communicate(timeout=60)[0] for child in children)
    assert seen == [f"once\ngone {rank}\n".encode() for rank in range(4)]


def test_a_failing_setup_ends_every_process_of_the_node_with_its_status(start: Start) -> None:
    children = [start("echo ran", {"AJ_SETUP": "sleep 0.3\n(exit 9) | cat\necho never"}) for _ in range(4)]
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out) == (9, b"")
        assert b"the setup failed with status 9" in err
    late = start("echo ran", {"AJ_SETUP": "true"})
    assert late.communicate(timeout=60)[0] == b""
    assert late.returncode == 9


def test_a_setup_whose_process_died_is_taken_over_by_one_other(start: Start, tmp_path: Path) -> None:
    setup = f"echo $RANK >> tries\n[[ $(wc -l < tries) -gt 1 ]] || sleep 600\ntouch {tmp_path}/made"
    first = start("true", {"AJ_SETUP": setup, "RANK": "0"})
    assert _eventually(lambda: (tmp_path / "code" / "tries").exists())
    others = [start("cat tries", {"AJ_SETUP": setup, "RANK": str(rank)}) for rank in (1, 2, 3)]
    for leader in (*_children(first.pid), first.pid):
        os.killpg(leader, signal.SIGKILL)
    first.wait()
    results = [other.communicate(timeout=60) for other in others]
    assert [other.returncode for other in others] == [0, 0, 0]
    assert len({out for out, _ in results}) == 1
    assert results[0][0].count(b"\n") == 2


# -- the end ----------------------------------------------------------------------------------------------------------

TREE = """
setsid bash -c 'echo $$ > escaped; exec sleep 600' &
(sleep 600 & echo $! > grandchild; wait) &
trap 'echo told >> told; exit 5' TERM
while [[ ! -s escaped || ! -s grandchild ]]; do sleep 0.05; done
touch ready
wait
"""


def test_TERM_reaches_grandchildren_and_a_child_in_a_session_of_its_own(start: Start, tmp_path: Path) -> None:
    child = start(TREE)
    tree = tmp_path / "code"
    assert _eventually(lambda: (tree / "ready").exists())
    pids = [int((tree / name).read_text()) for name in ("escaped", "grandchild")]
    assert all(_alive(pid) for pid in pids)
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 5
    assert (tree / "told").read_text() == "told\n"
    assert _eventually(lambda: not any(_alive(pid) for pid in pids))


def test_what_ignores_TERM_is_killed_after_the_grace(start: Start, tmp_path: Path) -> None:
    loop = "while :; do sleep 1; done"
    stubborn = f"trap '' TERM\nsetsid bash -c 'echo $$ > escaped; {loop}' &\ntouch ready\n{loop}"
    child = start(stubborn, {"AJ_TERM_GRACE_SECONDS": "1"})
    escaped = tmp_path / "code" / "escaped"
    assert _eventually(lambda: escaped.exists() and escaped.read_text() != "")
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 137
    assert _eventually(lambda: not _alive(int(escaped.read_text())))


def test_what_lost_its_parent_to_TERM_is_still_killed(start: Start, tmp_path: Path) -> None:
    loop = "while :; do sleep 1; done"
    child = start(
        f"setsid bash -c \"trap '' TERM; echo \\$\\$ > escaped; {loop}\" &\nwhile :; do sleep 0.1; done",
        {"AJ_TERM_GRACE_SECONDS": "1"},
    )
    escaped = tmp_path / "code" / "escaped"
    assert _eventually(lambda: escaped.exists() and escaped.read_text() != "")
    child.terminate()
    child.communicate(timeout=60)
    assert child.returncode == 143
    assert _eventually(lambda: not _alive(int(escaped.read_text())))


def test_INT_is_a_keyboard_interrupt_in_python(start: Start, tmp_path: Path) -> None:
    wait = "pathlib.Path('ready').touch(); time.sleep(600)"
    program = f"import pathlib,sys,time\ntry:\n {wait}\nexcept KeyboardInterrupt:\n sys.exit(7)"
    child = start(shlex.join([sys.executable, "-c", program]))
    assert _eventually(lambda: (tmp_path / "code" / "ready").exists())
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 7


def test_TERM_during_the_setup_never_starts_the_command(start: Start, tmp_path: Path) -> None:
    child = start("touch ran", {"AJ_SETUP": "trap 'exit 0' TERM\ntouch ready\nwhile :; do sleep 0.1; done"})
    assert _eventually(lambda: (tmp_path / "code" / "ready").exists())
    child.terminate()
    assert child.communicate(timeout=60)[0] == b""
    assert child.returncode != 0
    assert not (tmp_path / "code" / "ran").exists()


def test_the_last_lines_through_tee_are_not_lost(run: Run, tmp_path: Path) -> None:
    done = run("exec > >(sleep 0.5; tee log) 2>&1\nfor i in {1..2000}; do echo line $i; done")
    assert done.stdout.endswith(b"line 2000\n")
    assert done.returncode == 0


def test_a_server_left_in_the_background_ends_with_the_command(run: Run) -> None:
    done = run("sleep 600 & echo $!; exit 4")
    assert done.returncode == 4
    assert not _alive(int(done.stdout))


def test_a_stopped_command_is_still_waited_for(start: Start, tmp_path: Path) -> None:
    child = start("echo $$ > pid; sleep 0.5; exit 6")
    assert _eventually(lambda: (tmp_path / "code" / "pid").exists() and (tmp_path / "code" / "pid").read_text() != "")
    leader = int((tmp_path / "code" / "pid").read_text())
    os.killpg(leader, signal.SIGSTOP)
    assert child.poll() is None
    os.killpg(leader, signal.SIGCONT)
    child.communicate(timeout=60)
    assert child.returncode == 6
