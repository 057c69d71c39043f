"""One real API server for all tests of a worker that ask for it, and one with Volcano in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.cluster import kube as api_server
from tests.cluster import volcano as volcanos
from tests.cluster.kube import Kube
from tests.cluster.prepare import KUBE_PARTS, PARTS, assets, missing
from tests.cluster.volcano import Volcano


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory, contracts: Path) -> Iterator[Kube]:
    """The server; skipped where its parts are not at hand."""
    folder = _assets(KUBE_PARTS)
    with api_server.running(folder, tmp_path_factory.mktemp("kube"), contracts / "volcano-crds") as server:
        yield server


@pytest.fixture(scope="session")
def volcano(tmp_path_factory: pytest.TempPathFactory, contracts: Path) -> Iterator[Volcano]:
    """A server of its own, since Volcano changes every Job there; skipped where its parts are not at hand."""
    folder, work = _assets(PARTS), tmp_path_factory.mktemp("volcano")
    with (
        api_server.running(folder, work, contracts / "volcano-crds") as server,
        volcanos.running(folder, work, server) as made,
    ):
        yield made


def _assets(parts: Iterable[str]) -> Path:
    folder = assets(os.environ)
    if lacking := missing(folder, parts):
        names = ", ".join(lacking)
        pytest.skip(f"no {names} in {folder}: `python tests/cluster/prepare.py` makes them, or set KUBEBUILDER_ASSETS")
    return folder
