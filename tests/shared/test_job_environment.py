"""What `--env` means, and what no process can be given."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import CommandError
from aj.shared.job.environment import check_string, job_environment, parse_env


def test_E03_an_entry_is_split_at_its_first_equals_sign() -> None:
    caller = {"A": "mine", "EMPTY": ""}
    pairs = ["TOKEN=abc==", "NCCL_IB_HCA==mlx5_0", "E=", "A", "EMPTY"]
    assert parse_env(pairs, caller) == {
        "TOKEN": "abc==",
        "NCCL_IB_HCA": "=mlx5_0",
        "E": "",
        "A": "mine",
        "EMPTY": "",
    }


def test_E03_a_name_alone_must_be_set_here() -> None:
    with pytest.raises(CommandError, match="`A` is not set") as caught:
        parse_env(["A"], {"B": "1"})
    assert caught.value.where == "--env" and caught.value.hint == "export it, or write `--env A=VALUE`"


def test_the_last_of_equal_names_wins() -> None:
    assert parse_env(["A=1", "A=2"], {}) == {"A": "2"}


@pytest.mark.parametrize(
    "pair", ["=x", "", "=", "9A=s3cret", "A-B=s3cret", "A B=s3cret", "é=s3cret", "A\n=s3cret", "９=s3cret"]
)
def test_E03_a_name_that_is_none_is_refused_without_its_value(pair: str) -> None:
    with pytest.raises(CommandError, match="not a variable's name") as caught:
        parse_env([pair], {})
    assert caught.value.where == "--env" and "s3cret" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("pair", ["AJ_NAME=x", "AJ_COMMAND=x", "AJ_=x", "AJ_NAME"])
def test_names_of_aj_are_refused(pair: str) -> None:
    with pytest.raises(CommandError, match="reserved"):
        parse_env([pair], {"AJ_NAME": "x"})


@pytest.mark.parametrize("value", ["s3cret\0", "s3cret\udcff", "s3cret" * 30_000])
def test_E09_a_value_that_no_process_can_be_given_is_refused_and_not_shown(value: str) -> None:
    for pairs, caller in ((["V=" + value], {}), (["V"], {"V": value})):
        with pytest.raises(CommandError, match="`V") as caught:
            parse_env(pairs, caller)
        assert "s3cret" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("letter", "width"), [("x", 1), ("é", 2), ("💥", 4)])
def test_E10_the_longest_value_runs_and_one_byte_more_is_refused(letter: str, width: int) -> None:
    pad = "x" * (131_069 % width)
    longest = pad + letter * (131_069 // width)
    check_string("V", longest, "here", "hint")
    done = subprocess.run(["/bin/true"], env={"V": longest, "PATH": os.environ["PATH"]}, check=False)
    assert done.returncode == 0
    with pytest.raises(CommandError, match=r"131,072 bytes.*131,071") as caught:
        check_string("V", longest + "x", "t.yaml:3:5", "hint")
    assert caught.value.where == "t.yaml:3:5"
    with pytest.raises(OSError, match="too long"):
        subprocess.run(["/bin/true"], env={"V": longest + "x"}, check=False)


def test_aj_wins_over_the_caller_who_wins_over_the_template() -> None:
    env = job_environment({"A": "t", "B": "t", "AJ_ID": "t"}, {"B": "c", "C": "c"}, {"AJ_ID": "aj"}, lambda name: name)
    assert env == {"A": "t", "B": "c", "C": "c", "AJ_ID": "aj"}


def test_a_template_may_not_set_other_variables_of_aj() -> None:
    with pytest.raises(CommandError, match="`AJ_COMMAND` is reserved") as caught:
        job_environment({"AJ_COMMAND": "x"}, {}, {"AJ_ID": "aj"}, lambda name: f"t.yaml:9:1 {name}")
    assert caught.value.where == "t.yaml:9:1 AJ_COMMAND"


_name = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True).filter(lambda name: not name.startswith("AJ_"))
_value = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(_name, _value))
def test_E09_any_value_is_kept_exactly(env: dict[str, str]) -> None:
    assert parse_env([f"{name}={value}" for name, value in env.items()], {}) == env
    assert parse_env(list(env), env) == env
