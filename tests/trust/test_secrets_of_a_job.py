"""A value given by `--env` or a template's env is nowhere in what aj keeps once the job was sent, or has failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trust.world import TrustWorld, state_of, until

Make = Callable[..., TrustWorld]
GIVEN, WRITTEN = "correct-horse-battery-staple", "tr0ub4dor-and-3"


def keeps(world: TrustWorld) -> Iterator[Path]:
    """Every file of aj: AJ_HOME, cache, runtime folder, logs, what commands printed; not the templates themselves."""
    for place in (
        world.root,
        world.folder / "cache",
        world.runtime.folder,
        world.folder / "commands",
        world.folder / "home",
    ):
        for path in place.rglob("*"):
            if path.is_file() and not path.is_relative_to(world.root / "template"):
                yield path


def holding(world: TrustWorld) -> list[str]:
    markers = (GIVEN.encode(), WRITTEN.encode())
    return [str(path) for path in keeps(world) if any(marker in path.read_bytes() for marker in markers)]


def with_secret(world: TrustWorld, service: str) -> None:
    leaf = world.root / "template" / f"{service}.yaml"
    leaf.write_text(leaf.read_text().replace("LR: 1e-3", f"LR: 1e-3, API_TOKEN: {WRITTEN}"))


@pytest.mark.parametrize("service", ["double", "local"])
def test_nothing_is_left_of_them_after_success_failure_and_death(trust: Make, service: str) -> None:
    world = trust()
    with_secret(world, service)
    client = world.client(AJ_DEBUG="1")
    given = ("--env", f"WANDB_API_KEY={GIVEN}")
    for base, fault, code in (
        ("ok", "", 0),
        ("refused", "lost before", 1),
        ("adopted", "time-out after", 0),
        ("queued", "", 0),
    ):
        options = [*given, *(["--env", f"FAULT={fault}"] if fault else []), *(["--queue"] if base == "queued" else [])]
        aj = world.aj("run", "-t", service, "-p", "1", "--no-follow", *options, "true", AJ_NAME=base, AJ_DEBUG="1")
        assert aj.wait()[0] == code, aj.said()
    assert (
        world.run("unknown", service, *given, "--env", "FAULT=lost after", "--env", "FAULT_FIND=blind").wait()[0] == 4
    )
    world.aj("plan", "-t", service, "-p", "1", *given, "true").wait()
    for entry in client.queue():
        client.wait(entry["id"], 60)
    assert holding(world) == []
    client.shutdown()
    assert holding(world) == []


def test_a_pending_one_holds_them_until_it_is_sent_or_canceled_and_only_the_owner_can_read_them(trust: Make) -> None:
    world = trust()
    with_secret(world, "double")
    world.client(AJ_DEBUG="1", AJ_DEBUG_STOP_AT="begun")
    daemon = world.pid()
    aj = world.run("dies", "double", "--env", f"WANDB_API_KEY={GIVEN}")
    until(lambda: state_of(daemon) == "T")
    kept = holding(world)
    assert kept and {Path(path).name.removesuffix("-wal") for path in kept} == {"queue.db"}
    assert {os.stat(path).st_mode & 0o777 for path in kept} == {0o600}
    os.kill(daemon, signal.SIGKILL)
    aj.wait()
    client = world.client()
    client.wait(client.queue()[0]["id"], 60)
    client.shutdown()
    assert holding(world) == []
