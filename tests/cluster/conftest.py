"""One real API server for all tests of a worker that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.kube import Kube, missing, running
from tests.cluster.prepare import assets


@pytest.fixture(scope="session")
def kube(tmp_path_factory: pytest.TempPathFactory, contracts: Path) -> Iterator[Kube]:
    """The server; skipped where its parts are not at hand."""
    folder = assets(os.environ)
    if lacking := missing(folder):
        names = ", ".join(lacking)
        pytest.skip(f"no {names} in {folder}: `python tests/cluster/prepare.py` makes them, or set KUBEBUILDER_ASSETS")
    with running(folder, tmp_path_factory.mktemp("kube"), contracts / "volcano-crds") as server:
        yield server
