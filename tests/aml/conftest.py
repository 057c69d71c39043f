"""Projects that submit to the simulated Azure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aml.project import Here, Project
from tests.azure.cloud import Azure, Place


@pytest.fixture
def place(azure: Azure) -> Place:
    """A workspace with the compute `gpus` of four nodes."""
    made = azure.workspace("ws1")
    azure.compute(made, "gpus")
    return made


@pytest.fixture
def project(tmp_path: Path, azure: Azure, place: Place) -> Iterator[Project]:
    """A project whose workspace is `place`."""
    made = Project(tmp_path / "p", azure)
    made.configure(place)
    yield made
    made.close()


@pytest.fixture
def here(project: Project) -> Here:
    """The project without a daemon: quick."""
    return Here(project)
