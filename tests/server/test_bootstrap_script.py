"""`bootstrap.sh` in real bash: one verified tree on a node, whoever starts, dies or waits."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from aj.shared.paths import shipped

FOLDER = shipped("backends") / "archive"
BOOTSTRAP = FOLDER / "bootstrap.sh"
TOOLS = ("tar", "gzip", "sha256sum", "mkdir", "mv", "rm", "ln", "readlink", "chmod", "sleep", "tail", "ps", "stat")
SHOW_TREE = b'#!/usr/bin/env bash\nstat -c "%i" .\n'

Start = Callable[..., "subprocess.Popen[bytes]"]


def packed(files: Mapping[str, tuple[bytes, int]], members: int = 1) -> bytes:
    """A tar.gz as aj packs it, the gzip stream cut into `members` members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (content, mode) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    raw, step = out.getvalue(), -(-len(out.getvalue()) // members)
    return b"".join(gzip.compress(raw[at : at + step], mtime=0) for at in range(0, len(raw), step))


class Node:
    """A folder that stands for one node, and an archive to start there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "work root"
        self.archive = folder / "code $HOME.tar.gz"
        self.started: list[subprocess.Popen[bytes]] = []
        self.put(packed({"aj_runner.sh": (SHOW_TREE, 0o755)}))

    def put(self, content: bytes) -> None:
        self.archive.write_bytes(content)
        self.sha256 = hashlib.sha256(content).hexdigest()

    def start(
        self,
        env: Mapping[str, str] | None = None,
        *,
        by: str = "bash",
        unset: tuple[str, ...] = (),
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        own = {
            "PATH": os.environ["PATH"],
            "AJ_ID": "0a1b2c3d",
            "AJ_CODE_ARCHIVE_SHA256": self.sha256,
            "AJ_WORK_ROOT": str(self.root),
            **(env or {}),
        }
        child = subprocess.Popen(
            [shutil.which(by) or by, str(BOOTSTRAP), str(self.archive)],
            env={name: value for name, value in own.items() if name not in unset},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=cwd,
        )
        self.started.append(child)
        return child

    def run(self, env: Mapping[str, str] | None = None, **how: object) -> tuple[int | None, str, str]:
        return finish(self.start(env, **how))  # type: ignore[arg-type]

    @property
    def place(self) -> Path:
        """The one folder that the job has on this node."""
        (found,) = self.root.glob("aj-*/*")
        return found


def finish(child: subprocess.Popen[bytes]) -> tuple[int | None, str, str]:
    out, err = child.communicate(timeout=60)
    return child.returncode, out.decode(), err.decode()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    for child in node.started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.communicate()


def tools(folder: Path, *, source: Callable[[str], str | None] = shutil.which, without: tuple[str, ...] = ()) -> str:
    """A PATH with the needed tools and bash only."""
    folder.mkdir()
    for name in (*TOOLS, "bash"):
        target = shutil.which("bash") if name == "bash" else source(name)
        if name not in without and target is not None:
            (folder / name).symlink_to(target)
    return str(folder)


def eventually(condition: Callable[[], bool]) -> bool:
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False


# -- one process ------------------------------------------------------------------------------------------------------


def test_it_enters_the_verified_tree_and_ends_with_the_runners_status(node: Node) -> None:
    runner = b'pwd\ncat "a b.txt"\numask\nexit 7\n'
    node.put(packed({"aj_runner.sh": (runner, 0o755), "a b.txt": (b"text\n", 0o644)}))
    status, out, err = node.run()
    assert (status, err) == (7, "")
    assert out.splitlines()[0] == str(node.place / "code")
    assert out.splitlines()[1] == "text"


def test_modes_are_the_archives_and_the_umask_stays_the_jobs(node: Node, tmp_path: Path) -> None:
    files = {
        "aj_runner.sh": (b"umask\n", 0o755),
        "plain": (b"", 0o644),
        ".ssh/id_rsa": (b"", 0o600),
        "run": (b"", 0o755),
    }
    node.put(packed(files))
    before = os.umask(0o077)
    try:
        assert node.run()[1] == "0077\n"
    finally:
        os.umask(before)
    for name, (_, mode) in files.items():
        assert (node.place / "code" / name).stat().st_mode & 0o7777 == mode
    assert node.place.stat().st_mode & 0o077 == 0
    assert (node.place / "code" / "plain").stat().st_mtime > 1_000_000_000
    assert (node.place / "code" / "plain").stat().st_uid == os.getuid()


def test_the_digest_is_checked_before_anything_is_unpacked(node: Node) -> None:
    status, out, err = node.run({"AJ_CODE_ARCHIVE_SHA256": "0" * 64})
    assert (status, out) == (1, "")
    assert err == f"aj: the code archive has SHA-256 {node.sha256}, not {'0' * 64}: it is damaged or another one\n"
    assert not list(node.place.glob("code*[!d]/"))


@pytest.mark.parametrize(
    ("unset", "env", "says"),
    [
        (("AJ_ID",), {}, "AJ_ID must be"),
        ((), {"AJ_ID": "../../etc"}, "AJ_ID must be"),
        (("AJ_CODE_ARCHIVE_SHA256",), {}, "AJ_CODE_ARCHIVE_SHA256 must be"),
        ((), {"AJ_CODE_ARCHIVE_SHA256": "x"}, "AJ_CODE_ARCHIVE_SHA256 must be"),
    ],
)
def test_missing_or_wild_identity_is_refused(
    node: Node, unset: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    status, out, err = node.run(env, unset=unset)
    assert (status, out) == (1, "")
    assert err.startswith(f"aj: {says}")


def test_a_missing_archive_is_named(node: Node) -> None:
    node.archive.unlink()
    status, _, err = node.run()
    assert status == 1
    assert err == f"aj: there is no code archive at `{node.archive}`\n"


def test_the_archive_may_be_in_a_folder_or_named_by_singularity(node: Node, tmp_path: Path) -> None:
    content = node.archive.read_bytes()
    node.archive.unlink()
    node.archive.mkdir()
    (node.archive / "code.tar.gz").write_bytes(content)
    assert node.run({"AJ_ID": "00000001"})[0] == 0
    shutil.rmtree(node.archive)
    (tmp_path / "elsewhere").write_bytes(content)
    assert node.run({"AJ_ID": "00000002", "AZUREML_DATAREFERENCE_aj_code_archive": str(tmp_path / "elsewhere")})[0] == 0


def test_an_archive_that_tar_cannot_read_fails_with_its_words_and_leaves_nothing(node: Node) -> None:
    node.put(packed({"aj_runner.sh": (b"x" * 100_000, 0o755)})[:-40])
    status, _, err = node.run()
    assert status == 1
    assert "cannot unpack the code archive" in err
    assert "tar: " in err
    assert not list(node.place.glob("code.partial.*"))
    assert not (node.place / "code").exists()


def test_an_archive_without_the_runner_is_refused(node: Node) -> None:
    node.put(packed({"train.py": (b"", 0o644)}))
    status, _, err = node.run()
    assert status == 1
    assert "it holds no aj_runner.sh" in err


def test_it_works_without_home_and_work_root_and_in_a_folder_that_is_gone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    gate = f"rmdir {tmp_path}/gone; exec bash '{BOOTSTRAP}' '{node.archive}'"
    env = {
        "PATH": os.environ["PATH"],
        "AJ_ID": "0a1b2c3d",
        "AJ_CODE_ARCHIVE_SHA256": node.sha256,
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(["bash", "-c", gate], cwd=tmp_path / "gone", env=env, capture_output=True, check=False)
    assert done.returncode == 0
    assert list(tmp_path.glob("aj-*/0a1b2c3d-*/code.done"))


def test_E09_hostile_variables_pass_through_and_change_nothing(node: Node) -> None:
    node.put(
        packed({"aj_runner.sh": (b"python3 -c 'import os,sys; sys.stdout.buffer.write(os.environb[b\"V\"])'\n", 0o755)})
    )
    env = {"V": "() { :; }; echo pwned\n`id` $HOME 'q' \"", "CDPATH": "/", "TAR_OPTIONS": "--bad", "GZIP": "--bad"}
    more = {"GLOBIGNORE": "*", "SHELLOPTS": "braceexpand:errexit:nounset:noglob", "POSIXLY_CORRECT": "1", "REPLY": "x"}
    status, out, err = node.run({**env, **more})
    assert (status, out, err) == (0, env["V"], "")


# -- tools and shells -------------------------------------------------------------------------------------------------


def test_missing_tools_are_all_named(node: Node, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", without=("gzip", "sha256sum"))
    status, _, err = node.run({"PATH": path}, by=f"{path}/bash")
    assert status == 127
    assert err.startswith("aj: missing on this node: `gzip` `sha256sum`; ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("script", ["bootstrap.sh", "aj_runner.sh"])
@pytest.mark.parametrize("shell", ["dash", "busybox"])
def test_E08_another_shell_calls_bash_or_says_that_there_is_none(tmp_path: Path, shell: str, script: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} on this machine")
    arguments = [found, *(["sh"] if shell == "busybox" else []), str(FOLDER / script)]
    done = subprocess.run(arguments, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == "aj: `bash` is missing: take an image that has it, or install it there\n"
    with_bash = subprocess.run(arguments, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert with_bash.returncode == 2
    assert "usage" in with_bash.stderr or "AJ_COMMAND is empty" in with_bash.stderr


@pytest.mark.parametrize("members", [1, 5])
@pytest.mark.parametrize("kind", ["gnu", "busybox"])
def test_both_families_of_tools_read_an_archive_of_many_gzip_members(
    node: Node, tmp_path: Path, kind: str, members: int
) -> None:
    busybox = shutil.which("busybox")
    if kind == "busybox" and busybox is None:
        pytest.skip("no busybox on this machine")
    path = tools(tmp_path / "bin", source=shutil.which if kind == "gnu" else lambda name: busybox)
    long = "d/" + "n" * 150
    files = {"aj_runner.sh": (b"exit 5\n", 0o755), long: (os.urandom(300_000), 0o644), "é": (b"e", 0o644)}
    node.put(packed(files, members))
    status, _, err = node.run({"PATH": path}, by=f"{path}/bash")
    assert (status, err) == (5, "")
    for name, (content, mode) in files.items():
        assert (node.place / "code" / name).read_bytes() == content
        assert (node.place / "code" / name).stat().st_mode & 0o777 == mode


def test_both_scripts_say_the_same_of_a_node() -> None:
    texts = [(FOLDER / name).read_text() for name in ("bootstrap.sh", "aj_runner.sh")]
    first, second = (text.partition("# --- node: ")[2].partition("# --- end of node ---")[0] for text in texts)
    assert first == second != ""


def test_every_shipped_script_passes_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert shellcheck is not None, "install the `dev` dependency group"
    scripts = sorted(shipped("backends").rglob("*.sh"))
    assert BOOTSTRAP in scripts
    done = subprocess.run([shellcheck, "--shell=bash", *scripts], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


# -- several processes ------------------------------------------------------------------------------------------------


def test_many_processes_of_a_node_share_one_tree_unpacked_once(node: Node) -> None:
    results = [finish(child) for child in [node.start() for _ in range(8)]]
    assert {(status, err) for status, _, err in results} == {(0, "")}
    assert len({out for _, out, _ in results}) == 1
    assert len(list(node.place.glob("code.errors.*"))) == 1, "unpacked more than once"


def test_a_damaged_archive_stops_every_process_at_once(node: Node) -> None:
    results = [finish(child) for child in [node.start({"AJ_CODE_ARCHIVE_SHA256": "1" * 64}) for _ in range(6)]]
    assert {status for status, _, _ in results} == {1}
    assert all("it is damaged or another one" in err for _, _, err in results)
    status, _, err = node.run()
    assert status == 1
    assert f"remove `{node.place}` to try again" in err
    shutil.rmtree(node.place)
    assert node.run()[0] == 0


def test_two_jobs_on_a_node_do_not_share(node: Node) -> None:
    first, second = node.run({"AJ_ID": "00000001"}), node.run({"AJ_ID": "00000002"})
    assert first[0] == second[0] == 0
    assert first[1] != second[1]


def test_a_restart_on_the_same_node_takes_the_tree_that_is_there(node: Node) -> None:
    first = node.run()
    (node.place / "code" / "checkpoint").write_text("kept")
    assert node.run() == first
    assert (node.place / "code" / "checkpoint").exists()


def _leave_dead_owner(node: Node, owner: str) -> None:
    """A node as a kill in the middle of unpacking leaves it."""
    node.run()
    place = node.place
    shutil.rmtree(place)
    place.mkdir(mode=0o700)
    (place / "code.lock.1").symlink_to(owner)
    (place / "code.partial.1").mkdir()
    (place / "code").mkdir()
    (place / "code" / "half").write_text("")


@pytest.mark.parametrize("reused", [False, True], ids=["pid gone", "pid reused"])
def test_a_dead_owner_is_succeeded_by_exactly_one_of_many_waiters(node: Node, reused: bool) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    _leave_dead_owner(node, f"{os.getpid() if reused else gone.pid}:1")
    results = [finish(child) for child in [node.start() for _ in range(8)]]
    assert {(status, err) for status, _, err in results} == {(0, "")}
    assert len({out for _, out, _ in results}) == 1
    assert len(list(node.place.glob("code.errors.*"))) == 1, "unpacked more than once"
    assert not list(node.place.glob("code.partial.*"))
    assert sorted(path.name for path in (node.place / "code").iterdir()) == ["aj_runner.sh"]


def test_waiters_go_on_when_the_unpacking_process_is_killed(node: Node, tmp_path: Path) -> None:
    path = tools(tmp_path / "bin", without=("tar",))
    tar = tmp_path / "bin" / "tar"
    tar.write_text(f"#!{shutil.which('bash')}\necho > '{tmp_path}/unpacking'\nsleep 600\n")
    tar.chmod(0o755)
    first = node.start({"PATH": path})
    assert eventually((tmp_path / "unpacking").exists)
    others = [node.start() for _ in range(5)]
    assert all(other.poll() is None for other in others)
    os.killpg(first.pid, signal.SIGKILL)
    results = [finish(other) for other in others]
    assert {(status, err) for status, _, err in results} == {(0, "")}
    assert len({out for _, out, _ in results}) == 1


def test_who_takes_the_lock_of_an_owner_that_finished_meanwhile_does_not_unpack_again(
    node: Node, tmp_path: Path
) -> None:
    path = tools(tmp_path / "bin", without=("ln",))
    ln = tmp_path / "bin" / "ln"
    other = f"PATH={os.environ['PATH']} bash '{BOOTSTRAP}' '{node.archive}'"
    lines = (
        f"#!{shutil.which('bash')}",
        f"mkdir '{tmp_path}/once' 2>/dev/null && {other}",
        f'exec {shutil.which("ln")} "$@"',
    )
    ln.write_text("\n".join(lines) + "\n")
    ln.chmod(0o755)
    status, out, err = node.run({"PATH": path})
    assert (status, err) == (0, "")
    assert len(set(out.split())) == 1
    assert len(list(node.place.glob("code.errors.*"))) == 1, "unpacked more than once"


def test_TERM_ends_a_process_that_waits(node: Node) -> None:
    start = Path(f"/proc/{os.getpid()}/stat").read_text().rpartition(")")[2].split()[19]
    _leave_dead_owner(node, f"{os.getpid()}:{start}")
    waiter = node.start()
    assert eventually(
        lambda: b"sleep" in subprocess.run(["ps", "-o", "comm=", "--ppid", str(waiter.pid)], capture_output=True).stdout
    )
    waiter.terminate()
    assert finish(waiter)[0] == 143


def test_a_folder_of_somebody_else_is_not_used(node: Node, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    node.root.mkdir()
    (node.root / f"aj-{os.getuid()}").symlink_to(theirs)
    other = tmp_path / "other"
    status, _, _ = node.run({"TMPDIR": str(other)})
    assert status == 0
    assert not list(theirs.iterdir())
    assert list(other.glob("aj-*/0a1b2c3d-*/code"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_another_user_made_is_not_used(node: Node, tmp_path: Path) -> None:
    node.root.mkdir()
    theirs = node.root / f"aj-{os.getuid()}"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, 65534, 65534)
    assert node.run({"TMPDIR": str(tmp_path / "other")})[0] == 0
    assert not list(theirs.iterdir())
