"""Names of jobs: what a person would call them, made legal, the id never lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aj.shared.errors import CommandError
from aj.shared.job.naming import fit_name, job_base_name, stable_identity
from aj.shared.model import Identity

FOLDER = {"allowed": "A-Za-z0-9_.-", "first": "A-Za-z0-9_"}
DNS_1035 = {"allowed": "a-z0-9-", "first": "a-z"}
AZURE_ML = {"allowed": "A-Za-z0-9_-", "first": "A-Za-z0-9"}


def test_AJ_NAME_comes_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    assert job_base_name("pretrain", tmp_path, ("train.py",)) == "pretrain"


def test_else_the_folder_and_the_stem_of_an_existing_script(tmp_path: Path) -> None:
    folder = tmp_path / "vision"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").touch()
    (folder / "sub" / "eval.sh").touch()
    assert job_base_name(None, folder, ("train.py", "--lr", "1")) == "vision_train"
    assert job_base_name("", folder, ("sub/eval.sh",)) == "vision_eval"
    assert job_base_name(None, folder, (str(folder / "train.py"),)) == "vision_train"
    assert job_base_name(None, folder, ("python", "train.py")) == "vision"
    assert job_base_name(None, folder, ("sub",)) == "vision"
    assert job_base_name(None, folder, ()) == "vision"
    assert job_base_name(None, folder, ("a\0b",)) == "vision"
    assert job_base_name(None, folder, ("x" * 5000,)) == "vision"


def test_a_folder_without_a_printable_name_still_gives_one() -> None:
    assert job_base_name(None, Path("/"), ()) == "job"
    assert job_base_name(None, Path("/tmp/a\nb\udcff"), ()) == "a-b-"


@pytest.mark.parametrize("name", ["a\nb", "a\0", "\t", "a\u202eb", "\udcff"])
def test_AJ_NAME_must_be_printable(name: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        job_base_name(name, tmp_path, ())
    assert caught.value.where == "AJ_NAME" and repr(name) in caught.value.message


@pytest.mark.parametrize(
    ("base", "folder", "dns"),
    [
        ("tf:3:13PM", "tf-3-13PM", "tf-3-13pm"),
        ("feat/x", "feat-x", "feat-x"),
        ("My_Exp.v2", "My_Exp.v2", "my-exp-v2"),
        ("1st", "1st", "j-1st"),
        ("-x-", "x", "x"),
        ("..", "job", "job"),
        ("été", "ete", "ete"),
        ("実験", "job", "job"),
        ("a実験b", "a-b", "a-b"),
        ("../../etc", "etc", "etc"),
        ("_private", "_private", "private"),
    ],
)
def test_S09_K08_names_are_mapped_by_one_rule(base: str, folder: str, dns: str) -> None:
    assert fit_name(f"{base}_0123abcd", **FOLDER, limit=128) == f"{folder}_0123abcd"
    assert fit_name(f"{base}_0123abcd", **DNS_1035, limit=40) == f"{dns}-0123abcd"


def test_S09_a_name_of_256_characters_is_cut_in_front_of_the_id() -> None:
    name = fit_name("n" * 256 + "_0123abcd", **FOLDER, limit=128)
    assert name == "n" * 119 + "_0123abcd"


def test_K03_a_cut_never_leaves_a_separator_in_front_of_the_id() -> None:
    assert fit_name("a" * 30 + "-bcd_0123abcd", **DNS_1035, limit=40) == "a" * 30 + "-0123abcd"


@pytest.mark.parametrize("rule", [FOLDER, DNS_1035, AZURE_ML])
@given(base=st.text(), identifier=st.from_regex(r"[0-9a-f]{8}", fullmatch=True), limit=st.integers(10, 140))
@example(base="", identifier="00000000", limit=10)
@example(base="1", identifier="12345678", limit=10)
@example(base="_" * 200, identifier="12345678", limit=10)
@example(base="x_12345678", identifier="12345678\n"[:8], limit=12)
@example(base="İIß①ﬁ", identifier="deadbeef", limit=40)
def test_any_name_becomes_legal_once(rule: dict[str, str], base: str, identifier: str, limit: int) -> None:
    name = fit_name(f"{base}_{identifier}", **rule, limit=limit)
    assert re.fullmatch(f"[{rule['first']}][{rule['allowed']}]*", name)
    assert 9 <= len(name) <= limit
    assert re.fullmatch(rf".*[-_]{identifier}", name)
    assert fit_name(name, **rule, limit=limit) == name


@pytest.mark.parametrize("rule", [FOLDER, DNS_1035, AZURE_ML])
@given(name=st.text() | st.from_regex(r"[-_.a-fA-F0-9\n]{0,60}", fullmatch=True), limit=st.integers(10, 60))
def test_a_name_without_an_id_is_legal_too(rule: dict[str, str], name: str, limit: int) -> None:
    fitted = fit_name(name, **rule, limit=limit)
    assert re.fullmatch(f"[{rule['first']}][{rule['allowed']}]*", fitted)
    assert len(fitted) <= limit
    assert fit_name(fitted, **rule, limit=limit) == fitted


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,80}_[0-9a-f]{8}", fullmatch=True))
def test_a_legal_name_stays_as_it_is(name: str) -> None:
    assert fit_name(name, **FOLDER, limit=128) == name


def test_the_job_sees_its_final_name() -> None:
    identity = Identity("0123abcd", "My Exp", "2026-01-31T08:00:00+00:00")
    assert stable_identity(identity, "my-exp-0123abcd") == {
        "AJ_NAME": "my-exp-0123abcd",
        "AJ_ID": "0123abcd",
        "AJ_SUBMIT_TIMESTAMP_UTC": "2026-01-31T08:00:00+00:00",
    }
