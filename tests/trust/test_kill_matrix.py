"""Whoever dies, wherever: a submission reaches the remote once or not at all, and what aj says of it is true."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from aj.shared.runtime import held
from tests.trust.world import Aj, TrustWorld, check_files, check_truth, runs, state_of, until

RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(random.SystemRandom().random())
SEED = int(os.environ.get("AJ_KILL_SEED") or zlib.crc32(RUN.encode()))
"""Of the random points, another in each run; printed, and set by AJ_KILL_SEED to play them again."""
RANDOM_POINTS = int(os.environ.get("AJ_KILL_POINTS", "200"))
CHUNKS = 4
POINT = re.compile(r"aj\.points: \w{8}: ([^`\n]+)")
"""Up to the name of the job, which is another each time."""
Make = Callable[..., TrustWorld]
Note = Callable[[str, object], None]


def points_of(world: TrustWorld, service: str) -> list[str]:
    """Every point that a submission passes, in order, as the daemon itself logs them."""
    world.client(AJ_DEBUG="1")
    code, document = world.run("scout", service).wait()
    assert code == 0, document
    world.kill_daemon(signal.SIGTERM)
    return list(dict.fromkeys(POINT.findall(world.runtime.log.read_text())))


KILL, TERM = signal.SIGKILL, signal.SIGTERM
MATRIX = [
    *(("double", victim, number) for victim in ("daemon", "client") for number in (KILL, TERM)),
    ("local", "daemon", KILL),
    ("local", "client", TERM),
]


@pytest.mark.parametrize(
    ("service", "victim", "number"),
    MATRIX,
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
)
def test_D09_U10_G13_killed_at_every_named_point(
    trust: Make, service: str, victim: str, number: int, record_property: Note
) -> None:
    world = trust()
    points = points_of(world, service)
    assert {"accepted", "frozen", "ready", "begun", "note sent", "executed", "finished", "recorded", "ended"} <= {
        *points
    }
    for index, point in enumerate(points):
        afresh(world, index)
        one_death(world, service, point, victim, number)
    check_files(world)
    record_property(
        "kill matrix", f"{len(points)} named points, {service}, SIG{signal.Signals(number).name[3:]} of the {victim}"
    )


def afresh(world: TrustWorld, index: int) -> None:
    """Everything is to be built and uploaded anew, so that every point is passed."""
    (world.project / "train.py").write_text(f"print({index})\n")
    for memory in (world.root / "build" / "lines", world.remote / "blobs"):
        shutil.rmtree(memory, ignore_errors=True)


def one_death(world: TrustWorld, service: str, point: str, victim: str, number: int) -> None:
    """A submission in whose middle one dies; then the daemon is there again and the truth is looked at."""
    base = f"case{world.folder.name}{time.monotonic_ns()}"
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT=point)
    daemon, aj = world.pid(), world.run(base, service)
    until(lambda: state_of(daemon) == "T" or aj.ended())
    assert state_of(daemon) == "T", f"it never came to `{point}`: {aj.said()}"
    os.kill(daemon if victim == "daemon" else aj.pid, number)
    if victim == "client":
        until(aj.ended)
    with suppress(ProcessLookupError):
        os.kill(daemon, signal.SIGCONT)
    if victim == "daemon":
        until(lambda: not runs(daemon))
    code, document = aj.wait()
    client = world.client()
    check_truth(world, client, base, service)
    check_answer(world, base, code, document)
    if world.pid() == daemon:
        client.shutdown()
    else:
        world.kill_daemon(signal.SIGTERM)
    assert not world.runtime.socket.exists() and not held(world.runtime.lock)


def stopped(pid: int) -> bool:
    return state_of(pid) == "T"


RECOVERY = ["note the answer was lost", "executed", "finished", "recorded", "ended"]


@pytest.mark.parametrize("taken", [True, False], ids=["the remote took it", "the remote did not"])
def test_D09_U10_killed_again_at_every_point_of_the_recovery(trust: Make, taken: bool, record_property: Note) -> None:
    world = trust()
    for point in RECOVERY:
        base = f"case{time.monotonic_ns()}"
        world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="note sent" if taken else "note sending")
        daemon, aj = world.pid(), world.run(base, "double", "--queue")
        until(partial(stopped, daemon))
        os.kill(daemon, signal.SIGKILL)
        aj.wait()
        world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT=point)
        daemon, aj = world.pid(), world.aj("queue", "list")
        until(partial(stopped, daemon))
        os.kill(daemon, signal.SIGKILL)
        aj.wait()
        check_truth(world, world.client(), base)
        assert len(world.jobs(base)) == taken
        world.kill_daemon(signal.SIGTERM)
    check_files(world)
    record_property("kill matrix", f"{len(RECOVERY)} points of a recovery, double, SIGKILL of the daemon")


def check_answer(world: TrustWorld, base: str, code: int | None, document: dict[str, object]) -> None:
    """What the client said, when it could say something, is true; `unknown` and `queued` say nothing that could be false."""
    if code is None:
        return
    jobs = len(world.jobs(base))
    assert (document["status"], code) in {("submitted", 0), ("failed", 1), ("unknown", 4), ("queued", 0)}, document
    if document["status"] in ("submitted", "failed"):
        assert jobs == (document["status"] == "submitted"), document


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_D09_U10_G13_killed_at_random_points(trust: Make, chunk: int, record_property: Note) -> None:
    chance = random.Random(SEED + chunk)
    print(f"AJ_KILL_SEED={SEED}")
    world = trust(f"world{chunk}")
    world.client()
    usual, became = how_long(world), Counter[str]()
    for index in range(RANDOM_POINTS // CHUNKS):
        if chance.random() < 0.3:
            (world.project / "train.py").write_text(f"print({index})\n" * chance.choice([1, 2000]))
        try:
            became[one_accident(world, chance, usual, f"case{index}x")] += 1
        except AssertionError as error:
            raise AssertionError(f"AJ_KILL_SEED={SEED}, point {index} of chunk {chunk}: {error}") from error
    world.client().shutdown()
    check_files(world)
    assert len(became) > 1, became
    ends = ", ".join(f"{count} {end}" for end, count in sorted(became.items()))
    record_property("kill matrix", f"{RANDOM_POINTS // CHUNKS} random points ({ends}), AJ_KILL_SEED={SEED}")


def how_long(world: TrustWorld) -> float:
    began = time.monotonic()
    for index in range(3):
        world.run(f"warm{index}").wait()
    return (time.monotonic() - began) / 3


def one_accident(world: TrustWorld, chance: random.Random, usual: float, base: str) -> str:
    """One or two deaths at any moment of a submission, direct or queued, and of the recovery; what became of it."""
    service = "local" if chance.random() < 0.1 else "double"
    world.client()
    aj = world.run(base, service, *(["--queue"] if chance.random() < 0.3 else []))
    for _ in range(chance.choice([1, 1, 2])):
        time.sleep(chance.random() * usual * 1.2)
        strike(world, aj, chance)
    code, document = aj.wait()
    client = world.client()
    check_truth(world, client, base, service)
    check_answer(world, base, code, document)
    return next((entry["state"] for entry in client.queue() if entry["name"].startswith(base)), "never accepted")


def strike(world: TrustWorld, aj: Aj, chance: random.Random) -> None:
    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    with suppress(OSError):
        os.kill(world.pid() if chance.random() < 0.7 else aj.pid, number)
