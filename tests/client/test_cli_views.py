"""How output looks: followed logs line by line, sizes, plans, tables, progress without a terminal."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aj.client.console import Console
from aj.client.follow import TAIL_LINES, Follower
from aj.client.progress import progress
from aj.client.show import FILES_SHOWN, closing_line, show_plan, size
from aj.shared.model import Event


class Pages:
    """A daemon that has only logs: one page an answer."""

    def __init__(self, *pages: list[tuple[str, str]]) -> None:
        self.pages = list(pages)
        self.asked: list[Mapping[str, int]] = []

    def job_logs(self, ref: str, cursor: Mapping[str, int] | None = None, /) -> dict[str, Any]:
        self.asked.append(cursor or {})
        chunks = [{"stream": stream, "text": text} for stream, text in self.pages.pop(0)] if self.pages else []
        return {"chunks": chunks, "cursor": {"page": len(self.asked)}, "finished": not self.pages}


def _console() -> tuple[Console, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Console({}, out, err, machine=False), out, err


def _followed(prefixed: bool, *pages: list[tuple[str, str]]) -> str:
    lines: list[str] = []
    Follower(Pages(*pages).job_logs, "job", lines.append, prefixed).to_the_end()
    return "".join(lines)


def test_one_process_is_shown_as_it_is() -> None:
    assert _followed(False, [("0", "a\nb")], [("0", "c\n"), ("0", "d")]) == "a\nbc\nd\n"


def test_several_processes_get_their_rank_and_never_share_a_line() -> None:
    shown = _followed(True, [("0", "a"), ("1", "x\ny")], [("0", "b\n\n")], [("1", "z")])
    assert shown == "1 | x\n0 | ab\n0 | \n1 | yz\n"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("01"), st.text("ab\n", min_size=1, max_size=8)), max_size=4),
        min_size=1,
        max_size=6,
    )
)
def test_each_stream_arrives_whole_however_it_is_cut(pages: list[list[tuple[str, str]]]) -> None:
    shown = _followed(True, *[page for page in pages if page] or [[]])
    for stream in "01":
        text = "".join(piece for page in pages for name, piece in page if name == stream)
        lines = [line.removeprefix(f"{stream} | ") for line in shown.splitlines() if line.startswith(f"{stream} | ")]
        assert lines == (text.removesuffix("\n").split("\n") if text else [])


def test_the_tail_keeps_the_last_lines_of_each_stream() -> None:
    follower = Follower(
        Pages([("0", "".join(f"{n}\n" for n in range(50)))], [("0", "end")]).job_logs, "job", lambda _: None, False
    )
    follower.to_the_end()
    assert follower.tails["0"].split("\n") == [*(str(n) for n in range(50 - TAIL_LINES + 1, 50)), "end"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (10**18, "1000000.0 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def _plan(**changes: Any) -> dict[str, Any]:
    steps = [
        {
            "name": "archive",
            "kind": "pure",
            "verdict": "changed",
            "why": [{"reason": "key_changed", "detail": "tree"}],
            "bytes": None,
        },
        {
            "name": "upload-code",
            "kind": "write",
            "verdict": "would",
            "why": [{"reason": "remote_missing", "detail": "abc"}],
            "bytes": 1500,
        },
        {
            "name": "submit",
            "kind": "write",
            "verdict": "would",
            "why": [{"reason": "first_run", "detail": "one job, 2 nodes"}],
            "bytes": None,
        },
    ]
    archive = {
        "sha256": "a" * 64, "size": 1500, "files": 2,
        "added": [{"path": f"new{n}.py", "size": 10} for n in range(FILES_SHOWN + 5)],
        "changed": [{"path": "train.py", "size": 2000}], "removed": [{"path": "old\x1b.py", "size": None}],
    }  # fmt: skip
    return {
        "template": "gpu", "backend": "local", "baseline": "12345678", "would_change": True, "steps": steps,
        "archive": archive, "diffs": {"template": "", "payload": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y\n"}, "warnings": [],
        **changes,
    }  # fmt: skip


def test_a_plan_shows_steps_files_diffs_and_one_closing_line() -> None:
    console, out, _ = _console()
    show_plan(console, _plan())
    text = out.getvalue()
    assert text.splitlines()[0] == "gpu on local, compared with run 12345678"
    assert "  ~ archive      changed  tree\n" in text
    assert "  > upload-code  would    1.5 kB, remote missing: abc\n" in text
    assert "  > submit       would    one job, 2 nodes\n" in text
    assert "  + ... and 5 more\n" in text
    assert "  ~ train.py  2.0 kB\n  - old\\x1b.py\n" in text
    assert "\npayload:\n--- a\n+++ b\n" in text
    assert "\ntemplate:\n" not in text
    assert (
        text.splitlines()[-1]
        == "Changes: the next run would upload 1.5 kB and submit something other than run 12345678 did."
    )


def test_closing_lines() -> None:
    assert closing_line(_plan(would_change=False, steps=[])) == (
        "No changes: the next run would submit what run 12345678 submitted."
    )
    assert closing_line(_plan(baseline=None, steps=[])) == "First run: it would submit one job."


def test_tables_align_and_hold_one_line_a_row() -> None:
    console, out, _ = _console()
    console.table(("NAME", "NOTE"), [("a", "x\ny"), ("longer", "")])
    assert out.getvalue() == "NAME    NOTE\na       x y\nlonger\n"


def test_progress_without_a_terminal_is_silent_but_for_what_matters() -> None:
    console, out, err = _console()
    with progress(console) as emit:
        for done in range(1000):
            emit(Event("pack", "packing", done, 1000))
        emit(Event("wait", "another build of this project is running"))
        emit(Event("warning", "`id_rsa` looks like a key"))
    assert out.getvalue() == ""
    assert err.getvalue() == "another build of this project is running\nwarning: `id_rsa` looks like a key\n"
