"""From the words of a command line to a script: real bash must give every process exactly those words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aj.shared.errors import CommandError
from aj.shared.job.command import command_text, command_words, preamble

HOSTILE = [
    "pa$$w0rd$HOME",
    "`id`",
    'say "hi"',
    "it's",
    "a\nb",
    "!x",
    "\\",
    " lead",
    "",
    "-n",
    "*",
    "é",
    "$(id)",
    "~",
    "#",
]


def bash(text: str, cwd: Path | None = None, *options: str) -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        ["bash", *options, "-c", text], cwd=cwd, env=env, capture_output=True, timeout=30, check=False
    )


def words_seen(text: str, *options: str) -> list[str]:
    done = bash(text, None, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split("\0")[:-1]


def printing(words: Sequence[str]) -> list[str]:
    """A real process that prints its words, each ended by NUL."""
    return ["printf", "%s\\0", *words]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    for name in ("train.py", "run.sh", "train", "data.txt", "sub/eval.py", "-x.py", "+x.sh", "a b'c.py", ".py", "a.PY"):
        (folder / name).touch()
    (tmp_path / "outside.py").touch()
    return folder


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train.py", "--lr", "1"], ["uv", "run", "train.py", "--lr", "1"]),
        (["./train.py"], ["uv", "run", "train.py"]),
        (["sub/../train.py"], ["uv", "run", "train.py"]),
        (["sub/eval.py"], ["uv", "run", "sub/eval.py"]),
        (["run.sh", "run.sh"], ["bash", "run.sh", "run.sh"]),
        (["-x.py"], ["uv", "run", "./-x.py"]),
        (["+x.sh"], ["bash", "./+x.sh"]),
        (["a b'c.py"], ["uv", "run", "a b'c.py"]),
        (["python", "train.py"], ["python", "train.py"]),
        (["sub"], ["sub"]),
        (["missing.py", "--x"], ["missing.py", "--x"]),
        (["nvidia-smi", "--", "-L"], ["nvidia-smi", "--", "-L"]),
        (["/usr/bin"], ["/usr/bin"]),
    ],
)
def test_scripts_get_their_runner_and_other_words_stay(code: Path, argv: list[str], words: list[str]) -> None:
    assert command_words(argv, code) == tuple(words)


def test_an_absolute_path_inside_the_code_folder_becomes_relative(code: Path) -> None:
    assert command_words([str(code / "sub" / "eval.py")], code) == ("uv", "run", "sub/eval.py")


def test_a_code_folder_that_was_entered_by_a_link_is_the_same_folder(code: Path) -> None:
    link = code.parent / "link"
    link.symlink_to(code)
    assert command_words([str(code / "train.py")], link) == ("uv", "run", "train.py")
    assert command_words([str(link / "train.py")], code) == ("uv", "run", "train.py")


@pytest.mark.parametrize("word", ["../outside.py", "sub/../../outside.py", "ABSOLUTE", "door/outside.py"])
def test_a_script_outside_of_the_code_folder_would_not_travel(code: Path, word: str) -> None:
    (code / "door").symlink_to(code.parent)
    with pytest.raises(CommandError, match="outside the code folder") as caught:
        command_words([str(code.parent / "outside.py") if word == "ABSOLUTE" else word], code)
    assert caught.value.hint is not None and str(code) in caught.value.hint


@pytest.mark.parametrize("word", ["train", "./train", "data.txt", ".py", "a.PY"])
def test_another_file_is_refused_with_the_two_ways_out(code: Path, word: str) -> None:
    with pytest.raises(CommandError, match="neither") as caught:
        command_words([word], code)
    name = Path(word).name
    assert caught.value.hint == f"`bash {name}` runs it as a script, `env ./{name}` as a program"


def test_the_two_ways_out_do_run_the_file(code: Path) -> None:
    program = code / "train"
    program.write_text('#!/bin/bash\nprintf "%s\\0" ran "$@"\n')
    program.chmod(0o755)
    for argv in (["bash", "train", "a b"], ["env", "./train", "a b"]):
        assert bash(command_text([], command_words(argv, code)), code).stdout == b"ran\0a b\0"


def test_scripts_whose_names_look_like_options_run(code: Path) -> None:
    (code / "+x.sh").write_text('printf "%s\\0" ran "$@"\n')
    assert bash(command_text([], command_words(["+x.sh", "-c", "+x"], code)), code).stdout == b"ran\0-c\0+x\0"


@pytest.mark.parametrize("argv", [[], [""], ["", "x"], ["echo", "a\0b"], ["a\0"], ["echo", "\udcff"], ["\ud800"]])
def test_E09_words_that_no_process_can_be_given_are_refused(code: Path, argv: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        command_words(argv, code)
    assert caught.value.where == "COMMAND" and caught.value.hint


@pytest.mark.parametrize("word", ["A=1", "A=", "_x9=a b", "A+=1", "A[0]=1"])
def test_a_word_that_would_set_a_variable_is_refused(code: Path, word: str) -> None:
    with pytest.raises(CommandError, match="set a variable") as caught:
        command_words([word, "python"], code)
    assert "--env" in (caught.value.hint or "")
    assert command_words(["python", word], code) == ("python", word)


@pytest.mark.parametrize("options", [[], ["-e", "-o", "pipefail"]])
def test_E09_hostile_words_arrive_byte_for_byte(options: list[str]) -> None:
    assert words_seen(command_text([], printing(HOSTILE)), *options) == HOSTILE


_word = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12) | st.text(
    "\\'\"$`!*?~# \t\n\r;&|()<>{}[]=-%é💥\u2028", max_size=8
)


@settings(max_examples=60)
@given(st.lists(_word, min_size=1, max_size=6))
@example(HOSTILE)
def test_any_words_arrive_byte_for_byte(words: list[str]) -> None:
    assert words_seen(command_text([], printing(words)), "-e", "-o", "pipefail") == words


@pytest.mark.parametrize(
    "word", ["if", "then", "for", "while", "case", "function", "{", "[[", "!", "coproc", "in", "a b"]
)
def test_a_first_word_is_a_program_not_syntax(word: str, tmp_path: Path) -> None:
    program = tmp_path / word
    program.write_text('#!/bin/bash\nprintf "%s\\0" ran "$@"\n')
    program.chmod(0o755)
    text = command_text([], command_words([word, "then", "x"], Path("/nowhere")))
    done = bash(f'PATH="{tmp_path}:$PATH"\n{text}')
    assert done.stdout == b"ran\0then\0x\0", done.stderr


def test_template_entries_come_first_as_written_in_the_same_shell() -> None:
    text = command_text(["export A=1", "cd /usr\n", "# note"], ["bash", "-c", 'echo "$A $PWD"'])
    assert text == "export A=1\ncd /usr\n# note\nbash -c 'echo \"$A $PWD\"'"
    assert bash(text).stdout == b"1 /usr\n"


def test_E01_dollars_stay_as_written() -> None:
    assert command_text(["echo $$ $(date)"], ["echo", "x"]) == "echo $$ $(date)\necho x"


def test_E05_a_comment_ends_with_its_line() -> None:
    entry = 'export A=1\npython3 -c "print(1)"\n# note\necho done\n'
    text = command_text([entry], ["echo", "mine"])
    assert text == entry + "echo mine"
    assert bash(text).stdout == b"1\ndone\nmine\n"


def test_E06_a_folded_entry_is_three_lines() -> None:
    assert command_text(["python train.py\n  --lr 1\n  --bs 2\n"], ["x"]) == "python train.py\n  --lr 1\n  --bs 2\nx"


@pytest.mark.parametrize("entry", ["false | tee /dev/null", "false\necho after\n"])
def test_E07_a_failing_entry_stops_the_script(entry: str) -> None:
    done = bash(command_text([entry], ["echo", "mine"]), None, "-e", "-o", "pipefail")
    assert done.returncode == 1 and done.stdout == b""


@pytest.mark.parametrize("entry", ["false | tee /dev/null", 'false\nX="$(echo "$(echo y)")"\necho after\n'])
def test_E07_holds_where_entries_are_evaluated(entry: str) -> None:
    done = bash(command_text([entry + "\ncat <<EOF\n\\\nEOF\n"], ["echo", "mine"]), None, "-e", "-o", "pipefail")
    assert done.returncode == 1 and done.stdout == b""


SWALLOWING = {
    "here-document without its end": "cat <<EOF >/dev/null\nbody",
    "here-document whose end is indented": "cat <<EOF >/dev/null\nbody\n EOF",
    "here-document whose end is joined to a line": "cat <<EOF >/dev/null\nbody\\\nEOF",
    "second here-document without its end": "cat <<A <<B >/dev/null\na\nA\nb",
    "here-document with an odd delimiter": "cat <<'E F' >/dev/null\nbody",
    "here-document inside a substitution": 'x="$(cat <<EOF\nbody',
    "trailing backslash": "true a \\",
    "trailing backslash and newline": "true a \\\n",
    "three trailing backslashes": "true a \\\\\\",
    "or": "true ||",
    "or with a comment": "true || # later",
    "or behind a continuation": "true || \\",
    "pipe": "true |",
    "single quote": "true 'abc",
    "double quote": 'true "abc',
    "dollar quote": "true $'abc\\'",
    "comment sign inside a word": "true a#'b",
    "comment sign behind a carriage return": "true \r#'b",
    "escaped blank before a comment sign": "true \\ # ||",
}


@pytest.mark.parametrize("entry", SWALLOWING.values(), ids=SWALLOWING.keys())
def test_an_unfinished_entry_never_swallows_the_command(entry: str) -> None:
    """Either the command runs with exactly its words, or the script fails: it is never silently lost or changed."""
    words = ["it's", 'a "word"', "EOF", "||", "b"]
    done = bash(command_text([entry], printing(words)), None, "-e", "-o", "pipefail")
    if done.returncode == 0:
        assert done.stdout.decode().split("\0")[:-1] == words
    else:
        assert done.stdout == b""


@pytest.mark.parametrize(
    "entry",
    [
        'echo one\ncat <<EOF\nit\'s "a" body $(echo x)\nEOF\necho two',
        "cat <<-'EOF' | cat\n\tbody \\\n\tEOF\necho two",
        "cat <<A <<B\na\nA\nb\nB",
        'export X="$(hostname)" Y="${Z:-a b}" W=`hostname`',
        "echo it\\'s \"a \\\" b\" 'c' $'d\\'' # it's",
        "bash -c 'echo $0' x",
        "cat <<<word",
        "a=$# b=${#a} c=${a%%.*}",
        "if true; then\n  echo yes # it's\nfi",
        "(cd /tmp && ls) >/dev/null 2>&1 &",
        "echo \\|",
    ],
)
def test_a_finished_entry_stays_readable_and_runs_as_it_is(entry: str) -> None:
    assert preamble([entry])[0].startswith(entry) or entry == "echo \\|"
    alone, both = bash(entry), bash(command_text([entry], ["printf", "mine"]))
    assert both.stdout == alone.stdout + b"mine"
    assert both.stderr == alone.stderr


_scraps = st.sampled_from(
    [
        *("echo a", " ", "\n", "'", '"', "\\", "#", "`", "$(", ")", "|", "||", "&&", ";", "&", ":", "\r", "{ ", "}\n"),
        *("<<EOF", "EOF", "\nEOF\n", "<<-E\n", "\tE\n", "<<'EOF'\n", "<<<", "${x", "}", "$'", "((", "))", "x=1 "),
        *("if true; then ", "fi\n"),
    ]
)


@settings(max_examples=250)
@given(st.lists(_scraps, max_size=12).map("".join))
def test_whatever_an_entry_holds_the_command_runs_exactly_or_the_script_fails(entry: str) -> None:
    mark = '\x01it\'s "mine"'
    done = bash(command_text([entry], ["printf", "%s", mark]), Path("/"), "-e", "-o", "pipefail")
    if done.returncode == 0:
        assert mark in done.stdout.decode()
    elif mark.encode() in done.stdout:
        pytest.fail("the command ran, and then something failed")
