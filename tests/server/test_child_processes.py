"""Children: exact arguments, bounded output, and nothing left running."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from aj.server.child import KEPT, Child, run
from aj.shared.errors import ChildError

ENV = {"PATH": os.environ["PATH"]}


def child(*argv: str, seconds: float = 30, **more: object) -> Child:
    return Child(argv, ENV, Path("/"), seconds, **more)  # type: ignore[arg-type]


def python(script: str, *words: str, **more: object) -> Child:
    return child(sys.executable, "-c", script, *words, **more)  # type: ignore[arg-type]


def test_words_environment_folder_and_input_arrive_exactly(tmp_path: Path) -> None:
    words = ("a b", "$HOME", "", "'\"\n", "ü")
    script = "import sys, os; print(sys.argv[1:], dict(os.environ).get('X'), os.getcwd(), sys.stdin.read())"
    made = Child((sys.executable, "-c", script, *words), {"X": "1", "LC_ALL": "C.UTF-8"}, tmp_path, 30, stdin=b"given")
    assert run(made).stdout == f"{list(words)!r} 1 {tmp_path} given\n"


def test_a_failure_carries_command_status_and_both_streams() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ChildError) as failed:
        run(python(script))
    message = failed.value.message
    assert "failed with status 3" in message and "stdout: out" in message and "stderr: err" in message
    assert sys.executable in message


def test_a_missing_program_says_so() -> None:
    with pytest.raises(ChildError, match="no-such-program") as failed:
        run(child("no-such-program"))
    assert failed.value.hint and "PATH" in failed.value.hint


def test_secrets_are_hidden_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    script = "import sys; print(sys.argv[1] * 300); print(sys.argv[1], file=sys.stderr); sys.exit(1)"
    with caplog.at_level(logging.DEBUG), pytest.raises(ChildError) as failed:
        run(python(script, "hunter22", secrets=frozenset({"hunter22"})), lines.append)
    assert "hunter22" not in failed.value.message + "".join(lines) + caplog.text
    assert "<hidden>" in failed.value.message


def test_long_output_is_cut_in_the_middle_and_the_log_has_more(caplog: pytest.LogCaptureFixture) -> None:
    script = "import sys; print('first' + 'x' * 9000 + 'MID' + 'DLE' + 'x' * 9000 + 'last'); sys.exit(1)"
    with caplog.at_level(logging.DEBUG), pytest.raises(ChildError) as failed:
        run(python(script))
    assert "first" in failed.value.message and "last" in failed.value.message
    assert "MIDDLE" not in failed.value.message and "MIDDLE" in caplog.text


def test_output_without_end_is_kept_in_bounded_memory() -> None:
    lines: list[int] = []
    output = run(python("import sys; sys.stdout.write('y' * 5_000_000)"), lambda line: lines.append(len(line)))
    assert len(output.stdout) < 2 * KEPT + 100
    assert sum(lines) == 5_000_000 and max(lines) <= 3 * KEPT


def test_lines_come_while_the_child_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = "import os, sys, time\nprint('one', flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)"
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        gate.touch()

    run(python(script, str(gate)), take)
    assert lines == ["one"]


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_the_whole_group_ends(tmp_path: Path, how: str) -> None:
    script = (
        "import subprocess, sys, time, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN) if sys.argv[2] == 'stubborn' else None\n"
        "child = subprocess.Popen(['sleep', '1000'])\n"
        "open(sys.argv[1], 'w').write(str(child.pid))\n"
        "time.sleep(1000)\n"
    )
    cancel = threading.Event()
    note = tmp_path / "pid"
    if how == "cancel":

        def end_it() -> None:
            _wait_for(note)
            cancel.set()

        threading.Thread(target=end_it).start()
    seconds = 1.5 if how == "timeout" else 60.0
    with pytest.raises(ChildError, match=r"was canceled|was ended after 1\.5 s"):
        run(python(script, str(note), "meek", seconds=seconds, cancel=cancel))
    _gone(int(note.read_text()))


def test_a_grandchild_that_keeps_the_pipes_does_not_keep_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aj.server.child.GRACE_SECONDS", 0.2)
    output = run(child("bash", "-c", "sleep 30 & echo $!"))
    os.kill(int(output.stdout), 9)


def _wait_for(path: Path) -> None:
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)


def _gone(pid: int) -> None:
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"{pid} still runs")
