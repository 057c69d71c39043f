"""Worlds for trying how things die: real daemons and clients as processes, forked where many are needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, socketpair

import pytest

from tests.trust.world import TrustWorld, Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The process that forks daemons and clients."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    script = Path(__file__).with_name("zygote.py")
    process = subprocess.Popen([sys.executable, "-P", str(script), str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    theirs.close()
    assert ours.recv(100) == b"ready"
    yield Zygote(ours)
    ours.close()
    process.wait(30)


@pytest.fixture
def trust(tmp_path: Path, zygote: Zygote) -> Iterator[Callable[..., TrustWorld]]:
    """Makes worlds below the test's folder; their daemons are ended afterwards."""
    made: list[TrustWorld] = []

    def make(name: str = "world") -> TrustWorld:
        made.append(TrustWorld(tmp_path / name, zygote))
        return made[-1]

    yield make
    for world in made:
        world.end()
