"""The engine runs what is stale and nothing else, whatever happened to targets and memo."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.build.engine import bring_up_to_date
from aj.build.step import Step
from aj.shared.errors import CodeError, StoreError
from aj.shared.model import Event, nowhere


def chain(folder: Path, values: dict[str, str], calls: list[str]) -> tuple[Step, ...]:
    """`first` writes a key's value, `upper` its upper case, `last` what it reads plus another key."""

    def logged(name: str, make: Callable[[], bytes]) -> Callable[[], bytes]:
        def run() -> bytes:
            calls.append(name)
            return make()

        return run

    first, upper, last = (folder / name for name in ("first", "upper", "last"))
    return (
        Step("first", "pure", (), first, {"value": values["a"]}, logged("first", lambda: values["a"].encode())),
        Step("upper", "pure", (first,), upper, {}, logged("upper", lambda: first.read_bytes().upper())),
        Step(
            "last",
            "pure",
            (upper,),
            last,
            {"tail": values["b"]},
            logged("last", lambda: upper.read_bytes() + values["b"].encode()),
        ),
    )


def run(folder: Path, a: str, b: str = "!") -> list[str]:
    calls: list[str] = []
    bring_up_to_date(chain(folder, {"a": a, "b": b}, calls), folder / "memo.db", nowhere)
    assert (folder / "last").read_text() == a.upper() + b
    return calls


def test_second_run_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "x") == ["first", "upper", "last"]
    assert run(tmp_path, "x") == []


def test_equal_bytes_cut_off_what_follows(tmp_path: Path) -> None:
    run(tmp_path, "x")
    assert run(tmp_path, "X") == ["first", "upper"], "`upper` wrote the same bytes, so `last` is fresh"


def test_a_changed_key_reruns_its_step_only(tmp_path: Path) -> None:
    run(tmp_path, "x")
    assert run(tmp_path, "x", "?") == ["last"]


def test_reasons_name_what_changed(tmp_path: Path) -> None:
    run(tmp_path, "x")
    outcomes = bring_up_to_date(chain(tmp_path, {"a": "y", "b": "!"}, []), tmp_path / "memo.db", nowhere)
    assert [(why.reason, why.detail) for name in outcomes for why in outcomes[name].ran] == [
        ("key_changed", "value"),
        ("input_changed", "first"),
        ("input_changed", "upper"),
    ]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("tampered")])
def test_G08_a_lost_or_tampered_target_is_made_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    run(tmp_path, "x")
    damage(tmp_path / "upper")
    assert "upper" in run(tmp_path, "x")


def test_G06_a_broken_memo_is_set_aside_and_rebuilt(tmp_path: Path) -> None:
    run(tmp_path, "x")
    noise = random.Random(7).randbytes(4096)
    (tmp_path / "memo.db").write_bytes(noise)
    events: list[Event] = []
    calls: list[str] = []
    bring_up_to_date(chain(tmp_path, {"a": "x", "b": "!"}, calls), tmp_path / "memo.db", events.append)
    assert calls == ["first", "upper", "last"], "nothing is called fresh on the word of a broken memo"
    assert [event.kind for event in events if event.kind == "warning"] == ["warning"]
    assert [path.read_bytes() for path in tmp_path.glob("memo.db.broken-*")] == [noise]


def test_G06_a_memo_with_broken_rows_is_rebuilt(tmp_path: Path) -> None:
    run(tmp_path, "x")
    with sqlite3.connect(tmp_path / "memo.db") as database:
        database.execute("update doit set task_data = '{broken'")
    assert run(tmp_path, "x") == ["first", "upper", "last"]


def test_a_lost_memo_costs_time_only(tmp_path: Path) -> None:
    run(tmp_path, "x")
    (tmp_path / "memo.db").unlink()
    assert run(tmp_path, "x") == ["first", "upper", "last"]


def test_the_error_of_a_step_keeps_its_type_and_stops_what_follows(tmp_path: Path) -> None:
    later: list[str] = []

    def fail() -> bytes:
        raise CodeError("no", where="here")

    steps = (
        Step("bad", "pure", (), tmp_path / "bad", {}, fail),
        Step("next", "pure", (tmp_path / "bad",), tmp_path / "next", {}, lambda: later.append("ran") or b""),  # type: ignore[func-returns-value]
    )
    with pytest.raises(CodeError, match="no") as caught:
        bring_up_to_date(steps, tmp_path / "memo.db", nowhere)
    assert (caught.value.where, later) == ("here", [])
    assert not (tmp_path / "bad").exists()


def test_a_step_that_failed_runs_again(tmp_path: Path) -> None:
    answers: list[bytes] = []

    def once() -> bytes:
        if not answers:
            answers.append(b"x")
            raise CodeError("first time")
        return b"done"

    step = Step("flaky", "pure", (), tmp_path / "flaky", {}, once)
    with pytest.raises(CodeError):
        bring_up_to_date([step], tmp_path / "memo.db", nowhere)
    assert bring_up_to_date([step], tmp_path / "memo.db", nowhere)["flaky"].target == b"done"


def test_a_missing_source_is_named(tmp_path: Path) -> None:
    step = Step("orphan", "pure", (tmp_path / "absent",), tmp_path / "out", {}, lambda: b"")
    with pytest.raises(StoreError, match="absent"):
        bring_up_to_date([step], tmp_path / "memo.db", nowhere)


def test_reads_and_writes_are_never_skipped(tmp_path: Path) -> None:
    calls: list[str] = []
    steps = (
        Step("facts", "read", (), tmp_path / "facts", {}, lambda: calls.append("read") or b"same"),  # type: ignore[func-returns-value]
        Step("pure", "pure", (tmp_path / "facts",), tmp_path / "pure", {}, lambda: calls.append("pure") or b"p"),  # type: ignore[func-returns-value]
        Step("send", "write", (tmp_path / "pure",), tmp_path / "sent", {}, lambda: calls.append("write") or b"r"),  # type: ignore[func-returns-value]
    )
    for _ in range(2):
        bring_up_to_date(steps, tmp_path / "memo.db", nowhere)
    assert calls == ["read", "pure", "write", "read", "write"], "equal facts change nothing downstream"


def test_a_further_condition_of_freshness_counts(tmp_path: Path) -> None:
    there = [True]
    step = Step("archive", "pure", (), tmp_path / "record", {}, lambda: b"r", also=lambda target: there[0])
    bring_up_to_date([step], tmp_path / "memo.db", nowhere)
    assert bring_up_to_date([step], tmp_path / "memo.db", nowhere)["archive"].ran == ()
    there[0] = False
    outcome = bring_up_to_date([step], tmp_path / "memo.db", nowhere)["archive"]
    assert [why.reason for why in outcome.ran] == ["target_missing"]


def test_memo_and_targets_are_private(tmp_path: Path) -> None:
    run(tmp_path / "line", "x")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "line").iterdir()} == {0}


@given(st.lists(st.tuples(st.sampled_from(["x", "X", "y"]), st.sampled_from("!?"), st.integers(0, 5)), max_size=12))
def test_any_history_gives_what_a_fresh_build_gives(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    for a, b, accident in history:
        run(folder, a, b)
        if accident < 3:
            (folder / ("first", "upper", "last")[accident]).unlink()
        elif accident == 3:
            (folder / "memo.db").write_bytes(b"noise" * 100)
        elif accident == 4:
            (folder / "upper").write_text("foreign")
