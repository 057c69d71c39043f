"""The simulated Azure for the tests of this folder, and projects that submit to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.azure.cloud import Azure, Place
from tests.azure.fixtures import azure, azure_session, azurite, azurite_http, certificate
from tests.azure.project import Project

__all__ = ["azure", "azure_session", "azurite", "azurite_http", "certificate"]


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
