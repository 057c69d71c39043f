"""The journal: whole lines only, newest first, whatever else lies in the file."""

from __future__ import annotations

import json
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.server.journal import BLOCK, Journal
from aj.shared.errors import StoreError


def record(number: int, **more: str) -> dict[str, str]:
    return {"id": f"{number:08x}", "status": "submitted", **more}


def ids(journal: Journal, limit: int = 1000) -> list[str]:
    return [found["id"] for found in journal.newest(limit)[0]]


def test_records_come_newest_first_and_limited(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "record.jsonl")
    assert journal.newest(5) == ([], [])
    for number in range(10):
        journal.append(record(number))
    assert ids(journal, 3) == ["00000009", "00000008", "00000007"]
    assert journal.has("00000000") and not journal.has("0000000a")


def test_the_file_is_private_even_if_it_was_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "record.jsonl")
    journal.path.write_text("")
    journal.path.chmod(0o644)
    journal.append(record(1))
    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600


def test_a_torn_last_line_does_not_swallow_the_next_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "record.jsonl")
    journal.append(record(1))
    with journal.path.open("ab") as file:
        file.write(b'{"id":"00000002","sta')
    journal.append(record(3))
    records, warnings = journal.newest(10)
    assert [found["id"] for found in records] == ["00000003", "00000001"]
    assert len(warnings) == 1 and "1 line" in warnings[0].message


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[]", b"3", b'{"id": 1}', b'{"id":"x"}', b"[" * 100_000, b"null"])
def test_foreign_lines_are_skipped_with_a_warning(tmp_path: Path, line: bytes) -> None:
    journal = Journal(tmp_path / "record.jsonl")
    journal.append(record(1))
    with journal.path.open("ab") as file:
        file.write(line + b"\n")
    journal.append(record(2))
    records, warnings = journal.newest(10)
    assert [found["id"] for found in records] == ["00000002", "00000001"]
    assert warnings


def test_blank_lines_are_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "record.jsonl")
    journal.path.write_text("\n\n")
    journal.append(record(1))
    assert journal.newest(10) == ([record(1)], [])


@given(lengths=st.lists(st.integers(min_value=0, max_value=3 * BLOCK), max_size=8))
def test_lines_of_any_length_are_read_from_the_end(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("long") / "record.jsonl")
    written = [record(number, note="n" * length) for number, length in enumerate(lengths)]
    journal.path.write_text("".join(json.dumps(each) + "\n" for each in written))
    assert journal.newest(1000) == (written[::-1], [])


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    def write(start: int) -> None:
        for number in range(start, start + 25):
            Journal(tmp_path / "record.jsonl").append(record(number, note="x" * number))

    threads = [threading.Thread(target=write, args=(start,)) for start in range(0, 200, 25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids(Journal(tmp_path / "record.jsonl"))) == [f"{number:08x}" for number in range(200)]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine\n")
    (tmp_path / "record.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError):
        Journal(tmp_path / "record.jsonl").append(record(1))
    assert (tmp_path / "victim").read_text() == "mine\n"
