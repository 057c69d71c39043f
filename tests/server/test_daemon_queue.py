"""Submissions through a real daemon: frozen, in order, durable, told truly, never sent twice, and private."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aj.sdk.transport import Transport
from aj.shared.errors import ConflictError, NotFoundError, WaitTimeoutError
from aj.shared.model import Event

World = Any


def test_a_direct_run_is_an_entry_a_record_and_a_job(world: World) -> None:
    spec, events = world.spec(), list[Event]()
    result = world.client().submit(spec, world.caller(), emit=events.append)
    assert (result.status, result.azure_name, result.error) == ("submitted", spec.name, None)
    assert [event.kind for event in events] == ["pack", "submit"]
    entry = world.client().ticket(result.ticket)
    assert (entry["state"], entry["id"], entry["result"]["ticket"]) == ("done", spec.identity.id, result.ticket)
    (record,) = world.client().records()
    assert (record["id"], record["status"], record["payload_sha256"]) == (
        spec.identity.id,
        "submitted",
        result.payload_sha256,
    )


def test_D08_what_was_queued_is_what_runs(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    spec = world.spec()
    queued = client.submit(spec, world.caller(), queue=True)
    assert (queued.status, queued.azure_name) == ("queued", None) and queued.archive is not None
    (world.project / "train.py").write_text("print('two')\n")
    world.until(gate.with_name("gate.reached").exists)
    world.kill()
    gate.touch()
    assert client.wait(queued.ticket, 30)["state"] == "done"
    assert (world.remote / spec.name).read_text().split("\n")[0] == queued.archive["sha256"]


def test_D07_the_callers_world_travels(world: World, tmp_path: Path) -> None:
    client = world.client(KUBECONFIG="a")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text("")
    spec = world.spec()
    client.submit(spec, world.caller(tmp_path / "elsewhere", KUBECONFIG="b", NOT_LISTED="x"))
    assert (world.remote / spec.name).read_text().split("\n")[1:3] == [str(tmp_path / "elsewhere"), "b"]


def test_D11_fifty_tickets_run_one_at_a_time_in_their_order(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    specs = [world.spec(FAKE_GATE=str(gate)), *(world.spec() for _ in range(50))]
    for spec in specs:
        client.submit(spec, world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    assert sorted(entry["state"] for entry in client.queue()) == ["pending"] * 50 + ["submitting"]
    gate.touch()
    client.wait(specs[-1].identity.id, 60)
    assert (world.remote / "order").read_text().split() == [spec.identity.id for spec in specs]


def test_G06_eight_submissions_at_once_all_end_right(world: World) -> None:
    client = world.client()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: client.submit(world.spec(), world.caller()), range(8)))
    assert {result.status for result in results} == {"submitted"}
    assert len(client.queue()) == len(client.records()) == len(list(world.remote.glob("train_*"))) == 8


def test_projects_run_side_by_side_and_do_not_see_each_other(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    other = world.client(root=world.folder / "other" / ".azure_jobs")
    spec = world.spec()
    assert other.submit(spec, world.caller()).status == "submitted"
    assert [entry["id"] for entry in other.queue()] == [spec.identity.id]
    with pytest.raises(NotFoundError):
        client.ticket(spec.identity.id)
    with pytest.raises(NotFoundError):
        client.wait(spec.identity.id, 5)
    assert {context["root"] for context in client.info()["contexts"]} == {str(world.root), str(other.root)}
    gate.touch()


@pytest.mark.parametrize("find", ["ok", "blind"])
def test_D09_killed_after_the_remote_took_it(world: World, find: str) -> None:
    client = world.client()
    spec = world.spec(FAKE_GATE=str(world.folder / "gate"), FAKE_FIND=find)
    client.submit(spec, world.caller(), queue=True)
    world.until((world.folder / "gate.reached").exists)
    world.kill()
    entry = client.wait(spec.identity.id, 30)
    if find == "ok":
        assert (entry["state"], entry["result"]["azure_name"]) == ("done", spec.name)
    else:
        error = entry["result"]["error"]
        assert (entry["state"], entry["result"]["status"]) == ("failed", "unknown")
        assert error["type"] == "OutcomeUnknownError" and error["message"].startswith("outcome unknown")
        assert f"aj job show {spec.identity.id}" in error["hint"] and "aj list" in error["hint"]
    assert len(list(world.remote.glob("train_*"))) == 1
    assert [record["id"] for record in client.records()] == [spec.identity.id]


def test_D09_killed_before_the_remote_took_it(world: World) -> None:
    client = world.client()
    spec = world.spec(FAKE_GATE=str(world.folder / "gate"))
    client.submit(spec, world.caller(), queue=True)
    world.until((world.folder / "gate.reached").exists)
    world.kill()
    (world.remote / spec.name).unlink()  # as if it had never arrived
    entry = client.wait(spec.identity.id, 30)
    assert (entry["state"], entry["result"]["status"]) == ("failed", "failed")
    assert entry["result"]["error"]["type"] == "SubmissionError"
    assert not list(world.remote.glob("train_*"))


def test_killed_while_it_was_being_prepared(world: World) -> None:
    client = world.client()
    spec = world.spec(FAKE_HOLD=str(world.folder / "hold"))
    threading.Thread(target=_ignore(lambda: client.submit(spec, world.caller(), queue=True))).start()
    world.until(lambda: world.root.exists() and client.queue())
    assert client.queue()[0]["detail"] == "being prepared"
    world.kill()
    entry = client.wait(spec.identity.id, 30)
    assert entry["state"] == "failed" and "nothing was sent" in entry["result"]["error"]["hint"]
    assert [record["status"] for record in client.records()] == ["failed"]


@pytest.mark.parametrize(
    ("what", "state", "kind"),
    [
        ("refuse", "failed", "SubmissionError"),
        ("unknown", "unknown", "OutcomeUnknownError"),
        ("lost", "unknown", "OutcomeUnknownError"),
        ("fault", "failed", "InternalError"),
    ],
)
def test_U10_a_failed_submission_is_told_kept_and_recorded(world: World, what: str, state: str, kind: str) -> None:
    client = world.client()
    result = client.submit(world.spec(FAKE_DO=what), world.caller())
    assert result.status == state and result.error is not None and result.error["type"] == kind
    assert client.ticket(result.id)["state"] == state
    (record,) = client.records()
    assert (record["status"], record["error"]["type"]) == (state, kind)


def test_a_submission_that_cannot_be_prepared_fails_before_anything_is_sent(world: World) -> None:
    client = world.client()
    moved = client.submit(world.spec(), world.caller(), expect="0" * 64)
    (world.project / "train.py").unlink()
    broken = client.submit(world.spec(), world.caller(), queue=True)
    assert [moved.status, broken.status] == ["failed", "failed"]
    assert moved.error and moved.error["type"] == "InputError"
    assert not list(world.remote.iterdir())
    assert [record["id"] for record in client.records()] == [broken.id, moved.id]


def test_an_id_is_never_sent_twice(world: World) -> None:
    client, spec = world.client(), world.spec()
    client.submit(spec, world.caller())
    with pytest.raises(ConflictError, match="accepted before"):
        client.submit(spec, world.caller())
    world.kill()
    with pytest.raises(ConflictError, match="accepted before"):
        client.submit(spec, world.caller())


def test_only_pending_tickets_can_be_canceled(world: World) -> None:
    gate = world.folder / "gate"
    client = world.client()
    running = client.submit(world.spec(FAKE_GATE=str(gate)), world.caller(), queue=True)
    waiting = client.submit(world.spec(), world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    assert client.cancel_ticket(waiting.ticket)["state"] == "canceled"
    with pytest.raises(ConflictError) as refused:
        client.cancel_ticket(running.ticket)
    assert refused.value.hint and f"aj job cancel {running.id}" in refused.value.hint
    gate.touch()
    assert client.wait(running.ticket, 30)["state"] == "done"
    assert client.wait(waiting.ticket, 30)["state"] == "canceled"
    assert len(list(world.remote.glob("train_*"))) == 1
    assert [record["id"] for record in client.records()] == [running.id]


def test_a_ticket_canceled_while_it_is_prepared_never_runs(world: World) -> None:
    client, results = world.client(), list[Any]()
    spec = world.spec(FAKE_HOLD=str(world.folder / "hold"))
    direct = threading.Thread(target=lambda: results.append(client.submit(spec, world.caller())))
    direct.start()
    world.until(lambda: world.root.exists() and client.queue())
    client.cancel_ticket(spec.identity.id)
    direct.join(30)
    assert results[0].status == "failed" and "canceled" in results[0].error["message"]
    (world.folder / "hold").touch()
    other = client.submit(world.spec(), world.caller())
    assert other.status == "submitted" and len(list(world.remote.glob("train_*"))) == 1


def test_closing_the_client_does_not_stop_the_work(world: World) -> None:
    client, spec = world.client(), world.spec(FAKE_HOLD=str(world.folder / "hold"))
    lines = _submission(world, spec)
    assert next(lines)["event"]["kind"] == "beat"
    lines.close()
    (world.folder / "hold").touch()
    assert client.wait(spec.identity.id, 30)["state"] == "done"


def test_another_client_can_follow_from_the_start(world: World) -> None:
    gate = world.folder / "gate"
    client, spec = world.client(), world.spec(FAKE_GATE=str(gate))
    client.submit(spec, world.caller(), queue=True)
    world.until(gate.with_name("gate.reached").exists)
    seen: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=lambda kinds=kinds: client.wait(spec.name, 30, lambda event: kinds.append(event.kind)))
        for kinds in seen
    ]
    for thread in threads:
        thread.start()
    gate.touch()
    for thread in threads:
        thread.join(30)
    assert seen == [["pack", "submit"], ["pack", "submit"]]


def test_a_reader_that_never_reads_blocks_nobody(world: World) -> None:
    client, spec = world.client(), world.spec(FAKE_GATE=str(world.folder / "gate"))
    lazy = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    client.submit(spec, world.caller(), queue=True)
    for each in lazy:
        each.connect(str(world.runtime.socket))
        each.sendall(
            f"GET /v1/queue/{spec.identity.id}/events HTTP/1.1\r\nHost: x\r\nX-AJ-Root: {world.root}\r\n\r\n".encode()
        )
    (world.folder / "gate").touch()
    assert client.wait(spec.identity.id, 30)["state"] == "done"
    assert client.submit(world.spec(), world.caller()).status == "submitted"
    for each in lazy:
        each.close()


def test_waiting_ends_in_time_and_says_what_goes_on(world: World) -> None:
    client, spec = world.client(), world.spec(FAKE_GATE=str(world.folder / "gate"))
    client.submit(spec, world.caller(), queue=True)
    with pytest.raises(WaitTimeoutError, match=r"still submitting after 0\.2 s") as over:
        client.wait(spec.identity.id, 0.2)
    assert over.value.hint and f"aj queue wait {spec.identity.id}" in over.value.hint


def test_secrets_of_a_job_are_nowhere_when_it_is_sent(world: World) -> None:
    marker = "correct-horse-battery"
    client, said = world.client(AJ_DEBUG="1"), list[str]()
    for what in ("ok", "fault", "unknown", "refuse"):
        spec = world.spec(FAKE_DO=what, FAKE_SECRET=marker, ORDINARY=marker + "-too")
        result = client.submit(
            spec, world.caller(AZURE_CLIENT_SECRET=marker), emit=lambda event: said.append(event.detail)
        )
        assert marker not in str(result)
    assert "sending <hidden>" in said and marker not in "".join(said)
    holding = [path for path, content in world.state().items() if marker.encode() in content]
    assert holding == []
    assert marker not in str(client.queue()) + str(client.records())


@pytest.mark.parametrize("other", ["of-who-came-later", None])
def test_secrets_of_a_caller_wait_in_memory_only(world: World, other: str | None) -> None:
    marker, gate = "correct-horse-battery", world.folder / "gate"
    client = world.client()
    caller = world.caller(AZURE_CLIENT_SECRET=marker, AZURE_CLIENT_ID="public")
    first, second = world.spec(FAKE_GATE=str(gate)), world.spec()
    for spec in (first, second):
        client.submit(spec, caller, queue=True)
    world.until(gate.with_name("gate.reached").exists)
    kept = world.state()
    assert [path for path, content in kept.items() if marker.encode() in content] == []
    assert any(b"public" in content for path, content in kept.items() if "queue.db" in path)
    gate.touch()
    assert client.wait(second.identity.id, 30)["state"] == "done"
    assert (world.remote / second.name).read_text().split("\n")[3] == marker

    gate.unlink()
    first, third = world.spec(FAKE_GATE=str(gate)), world.spec()
    for spec in (first, third):
        client.submit(spec, caller, queue=True)
    world.until((world.remote / first.name).exists)
    world.kill()
    gate.touch()
    entry = world.client(**({"AZURE_CLIENT_SECRET": other} if other else {})).wait(third.identity.id, 30)
    if other:
        assert entry["state"] == "done"
        assert (world.remote / third.name).read_text().split("\n")[3] == other
    else:
        error = entry["result"]["error"]
        assert entry["state"] == "failed" and not (world.remote / third.name).exists()
        assert "`AZURE_CLIENT_SECRET`" in error["message"] and error["hint"] == "submit it again"


def test_the_journal_of_a_full_disk_is_written_later(world: World) -> None:
    client = world.client()
    client.submit(world.spec(), world.caller())
    (world.root / "record.jsonl").rename(world.root / "before")
    (world.root / "record.jsonl").mkdir()
    said: list[Event] = []
    result = client.submit(world.spec(), world.caller(), emit=said.append)
    assert result.status == "submitted" and [event.kind for event in said].count("warning") == 1
    (world.root / "record.jsonl").rmdir()
    (world.root / "before").rename(world.root / "record.jsonl")
    world.kill(signal.SIGTERM)
    client.queue()
    assert client.records()[0]["id"] == result.id


def test_G06_a_broken_database_is_set_aside_with_a_warning_and_work_goes_on(world: World) -> None:
    client = world.client()
    client.submit(world.spec(), world.caller())
    client.shutdown()
    (world.root / "daemon" / "queue.db").write_bytes(b"not a database" * 1000)
    said: list[Event] = []
    assert client.queue(emit=said.append) == []
    assert said[0].kind == "warning" and "set aside" in said[0].detail
    result = client.submit(world.spec(), world.caller(), emit=said.append)
    assert result.status == "submitted" and said[1].kind == "warning"
    assert len(list((world.root / "daemon").glob("queue.db.corrupt-*"))) == 1
    assert len(client.records()) == 2


def test_a_project_that_was_deleted_and_made_again_starts_afresh(world: World) -> None:
    import shutil

    client = world.client()
    client.submit(world.spec(), world.caller())
    shutil.rmtree(world.root)
    assert client.queue() == []
    spec = world.spec()
    assert client.submit(spec, world.caller()).status == "submitted"
    assert [entry["id"] for entry in client.queue()] == [spec.identity.id]


def test_a_link_to_a_project_is_the_project(world: World) -> None:
    world.client().submit(world.spec(), world.caller())
    (world.folder / "link").symlink_to(world.root)
    assert len(world.client(root=world.folder / "link").queue()) == 1


def test_the_record_says_which_commit_ran(world: World) -> None:
    import subprocess

    def git(*words: str) -> str:
        argv = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, cwd=world.project, check=True, capture_output=True, text=True).stdout.strip()

    client = world.client()
    for step in (
        lambda: None,
        lambda: git("init", "-q"),
        lambda: git("add", "train.py"),
        lambda: git("commit", "-qm", "x"),
    ):
        step()
        client.submit(world.spec(), world.caller())
    (world.project / "train.py").write_text("changed")
    client.submit(world.spec(), world.caller())
    commit = git("rev-parse", "HEAD")
    told = [(record["git_commit"], record["git_dirty"]) for record in client.records()]
    assert told == [(commit, True), (commit, False), (None, True), (None, False), (None, None)]


def test_jobs_are_found_by_everything_that_names_them(world: World) -> None:
    client = world.client()
    result = client.submit(world.spec(), world.caller())
    for ref in (result.id, result.id[:6], result.name, result.ticket):
        assert client.job(ref)["azure_name"] == result.azure_name
    assert client.job_logs(result.id) == {
        "chunks": [{"stream": "0", "text": "hello\n"}],
        "cursor": {"0": 6},
        "finished": False,
        "streams": [],
        "note": None,
    }
    assert client.job_logs(result.id, {"0": 6})["finished"] is True
    assert client.cancel_job(result.id) == {"azure_name": result.azure_name, "status": "Canceled"}
    assert [job["name"] for job in client.jobs()] == ["some_job"]
    with pytest.raises(NotFoundError):
        client.job("nothing")


def test_five_hundred_status_requests_at_once(world: World) -> None:
    client = world.client()
    client.submit(world.spec(), world.caller())
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: len(client.queue()), range(500)))
    assert answers == [1] * 500


def test_connections_that_say_nothing_hurt_nobody(world: World) -> None:
    client = world.client()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    for each in silent:
        each.connect(str(world.runtime.socket))
    assert client.queue() == []
    for each in silent:
        each.close()


def test_plans_stream_and_leave_no_trace(world: World) -> None:
    said: list[str] = []
    plan = world.client().plan(world.spec(), world.caller(), emit=lambda event: said.append(event.kind))
    assert plan["would_change"] is True and said == ["pack"]
    assert not world.root.exists()


def _submission(world: World, spec: Any) -> Any:
    from aj.shared.model import to_json
    from aj.shared.spec import spec_to_json

    body = {"spec": spec_to_json(spec), "caller": to_json(world.caller())}
    return Transport(world.runtime.socket, world.root).stream("POST", "/v1/submissions", body)


def _ignore(work: Callable[[], object]) -> Callable[[], None]:
    from aj.shared.errors import AjError

    def run() -> None:
        try:
            work()
        except AjError:
            pass

    return run
