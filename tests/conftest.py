"""What every test shares: where the project lies, and how much chance the property tests may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

PROJECT = Path(__file__).parents[1]
pytest_plugins = ["tests.azure.fixtures"]

CONTRACTS = Path(os.environ.get("AJ_CONTRACTS") or PROJECT.parent / "shared" / "contracts")

_COMMON = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
settings.register_profile("stable", derandomize=True, deadline=None, suppress_health_check=_COMMON)
settings.register_profile("random", deadline=None, suppress_health_check=_COMMON, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("AJ_TEST_PROFILE", "stable"))


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of the checkout."""
    return PROJECT


@pytest.fixture(scope="session")
def contracts() -> Path:
    """The folder of official schemas and recorded answers; tests that read it skip where it is absent."""
    if not CONTRACTS.is_dir():
        pytest.skip(f"no contracts beside the project at {CONTRACTS}")
    return CONTRACTS


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """What the kill matrix tried: its numbers are a result, not only its success."""
    for outcome in ("passed", "failed"):
        tried = [
            dict(report.user_properties) for report in terminalreporter.getreports(outcome) if report.when == "call"
        ]
        for line in sorted(str(each["kill matrix"]) for each in tried if "kill matrix" in each):
            terminalreporter.write_line(
                f"kill matrix: {line}: {'invariants held' if outcome == 'passed' else 'BROKEN'}"
            )
