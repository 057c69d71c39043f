"""Names become files, files become one config; what is missing, circular or outside is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aj.shared.errors import TemplateError
from aj.shared.jsonio import sha256
from aj.shared.paths import Home
from aj.shared.template.template import check_template, list_templates, load_template, resolve_template, template_names
from aj.shared.yaml import dump, load


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An AJ_HOME below the current folder, so that places are short."""
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / ".azure_jobs")
    home.templates.mkdir(parents=True)
    return home


def write(home: Home, name: str, text: str) -> Path:
    path = home.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def refused(home: Home, name: str = "leaf") -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        load_template(home, name)
    return caught.value


def test_plain_names_lie_beside_and_dotted_ones_in_their_folder(home: Home) -> None:
    write(home, "template/leaf.yaml", "base: [common, storage.blob.v2]\nconfig: {description: leaf}\n")
    write(home, "template/common.yaml", "config: {target: {service: local}}\n")
    write(home, "storage/blob.v2.yaml", "base: other\nconfig: {code: {ignore: [a]}}\n")
    write(home, "storage/other.yaml", "config: {code: {ignore: [b]}}\n")
    template = load_template(home, "leaf")
    assert template.raw == {"target": {"service": "local"}, "code": {"ignore": ["b", "a"]}, "description": "leaf"}
    assert (template.name, template.path, template.service) == ("leaf", home.templates / "leaf.yaml", "local")
    assert template.base == ["common", "storage.blob.v2"]
    assert template.get("code", "ignore", 1) == "a"
    assert template.get("code", "nothing", default=3) == 3
    names = ["template/leaf.yaml", "template/common.yaml", "storage/blob.v2.yaml", "storage/other.yaml"]
    assert [source.path for source in template.sources] == names
    assert template.sources[1].sha256 == sha256((home.templates / "common.yaml").read_bytes())


@pytest.mark.parametrize("base", ["base:", "base: null", "base: ~", "base: []"])
def test_a_file_with_a_base_key_is_a_leaf_even_an_empty_one(home: Home, base: str) -> None:
    write(home, "template/leaf.yaml", f"{base}\n")
    assert load_template(home, "leaf").raw == {}
    assert load_template(home, "leaf").service == "aml"


def test_a_file_without_is_a_fragment_and_only_checked_as_yaml(home: Home) -> None:
    write(home, "template/part.yaml", "config: {target: {wrong: 1}}\n")
    error = refused(home, "part")
    assert error.message == "`part` is a fragment: it has no `base` key"
    assert error.where == ".azure_jobs/template/part.yaml"
    assert "write `base:`" in (error.hint or "")
    assert check_template(home, "part") == []
    write(home, "template/part.yaml", "config: {a: 1, a: 2}\n")
    assert [issue.message for issue in check_template(home, "part")] == ["duplicate key `a` on line 1, first on line 1"]


def test_T12_a_cycle_shows_its_chain(home: Home) -> None:
    write(home, "template/a.yaml", "base: b\n")
    write(home, "template/b.yaml", "base:\n  - a\n")
    error = refused(home, "a")
    assert error.message == "the bases form a cycle: a → b → a"
    assert error.where == ".azure_jobs/template/b.yaml:2:5"
    write(home, "set/x.yaml", "base: template.a\n")
    write(home, "template/b.yaml", "base: set.x\n")
    assert "a → b → set.x → a" in refused(home, "a").message
    write(home, "template/self.yaml", "base: self\n")
    assert "self → self" in refused(home, "self").message


def test_T12_a_cycle_is_found_by_real_path(home: Home) -> None:
    write(home, "template/a.yaml", "base: b\n")
    os.symlink("a.yaml", home.templates / "b.yaml")
    assert refused(home, "a").message == "the bases form a cycle: a → b (the same file as `a`)"


def test_T12_a_diamond_is_read_once_and_repeated_items_are_noticed(home: Home) -> None:
    write(home, "template/d.yaml", "base: [b, c]\n")
    write(home, "template/b.yaml", "base: low\nconfig: {description: b}\n")
    write(home, "template/c.yaml", "base: low\n")
    write(home, "template/low.yaml", "config: {target: {name: n}}\n")
    template = load_template(home, "d")
    assert [source.path for source in template.sources].count("template/low.yaml") == 1
    assert template.raw == {"target": {"name": "n"}, "description": "b"}
    assert template.notices == ()
    write(home, "template/low.yaml", "config: {environment: {setup: [x]}}\n")
    (notice,) = load_template(home, "d").notices
    assert "`environment.setup` holds items twice" in notice.message
    assert notice.where == ".azure_jobs/template/low.yaml:1:32"


def test_T12_a_chain_of_200_files_works_and_a_longer_one_is_one_line(home: Home) -> None:
    for index in range(300):
        write(home, f"template/t{index}.yaml", f"base: t{index + 1}\nconfig: {{description: d{index}}}\n")
    write(home, "template/t300.yaml", "base: null\nconfig: {target: {name: deep}}\n")
    write(home, "template/leaf.yaml", "base: t101\n")
    template = load_template(home, "leaf")
    assert template.raw == {"target": {"name": "deep"}, "description": "d101"}
    assert len(template.provenance["/target/name"].chain) == 201
    error = refused(home, "t0")
    assert error.message == "a chain of more than 250 bases"
    assert error.where == ".azure_jobs/template/t249.yaml:1:1"


def test_a_ladder_of_diamonds_does_not_double_for_ever(home: Home) -> None:
    for index in range(40):
        name = f"t{index + 1}"
        write(home, f"template/t{index}.yaml", f"base: [{name}, {name}]\nconfig: {{environment: {{setup: [x]}}}}\n")
    write(home, "template/t40.yaml", "base:\n")
    assert refused(home, "t0").message == "more than 2000 bases to merge"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpuu", "did you mean `gpu`?"),
        ("GPU", "did you mean `gpu`?"),
        ("gpu.yaml", "write the name without `.yaml`: `gpu`"),
        ("qqqqqq", "`.azure_jobs/template` has `gpu`, `tpu`"),
        ("old", "rename `.azure_jobs/template/old.yml` to `old.yaml`"),
        ("../template/gpu", "`.azure_jobs/template` has `gpu`, `tpu`"),
        ("a\0b", "`.azure_jobs/template` has `gpu`, `tpu`"),
        ("x" * 5000, "`.azure_jobs/template` has `gpu`, `tpu`"),
        ("", "`.azure_jobs/template` has `gpu`, `tpu`"),
    ],
)
def test_an_unknown_template_lists_near_names_and_the_folder(home: Home, name: str, hint: str) -> None:
    for each in ("gpu.yaml", "tpu.yaml", "old.yml"):
        write(home, f"template/{each}", "base:\n")
    error = refused(home, name)
    assert "unknown template" in error.message
    assert error.where == ".azure_jobs/template"
    assert error.hint == hint


def test_without_a_home_the_way_is_init(home: Home) -> None:
    error = refused(Home(home.root / "nowhere"))
    assert "there is no `.azure_jobs/nowhere`" in error.message
    assert "`aj init`" in (error.hint or "")


@pytest.mark.parametrize(
    ("base", "message", "hint"),
    [
        (
            "stor.blob",
            "base `stor.blob` is missing: there is no `.azure_jobs/stor/blob.yaml`",
            "there is no folder",
        ),
        ("storage.bolb", "base `storage.bolb` is missing", "did you mean `storage.blob`?"),
        ("storage.zzz", "base `storage.zzz` is missing", "`.azure_jobs/storage` has `storage.blob`"),
        ("leav", "base `leav` is missing: there is no `.azure_jobs/template/leav.yaml`", "did you mean `leaf`?"),
        ("old", "base `old` is missing", "rename `.azure_jobs/template/old.yml` to `old.yaml`"),
    ],
)
def test_a_missing_base_names_who_asked(home: Home, base: str, message: str, hint: str) -> None:
    write(home, "storage/blob.yaml", "config: {}\n")
    write(home, "template/old.yml", "config: {}\n")
    write(home, "template/leaf.yaml", f"base:\n  - storage.blob\n  - {base}\n")
    error = refused(home)
    assert message in error.message
    assert error.where == ".azure_jobs/template/leaf.yaml:3:5"
    assert hint in (error.hint or "")


OUTSIDE = ("../x", "/etc/passwd", "a/b", "..", ".", "..x/y", '"a\\0b"', '"a\\nb"', '""', ".x", "a.")


@pytest.mark.parametrize("base", OUTSIDE)
def test_names_cannot_leave_the_home(home: Home, base: str) -> None:
    write(home, "x.yaml", "config: {}\n")
    write(home, "template/leaf.yaml", f"base: [{base}]\n")
    error = refused(home)
    assert "is not the name of a template" in error.message
    assert error.where == ".azure_jobs/template/leaf.yaml:1:8"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("bsae: x\n", "1:1", "did you mean `base`?"),
        ("extends: x\n", "1:1", "did you mean `base`?"),
        ("base:\ntarget: {}\n", "2:1", "put `target` under `config`"),
        ("base: 1\n", "1:1", "write one name, a list of names"),
        ("base: [a, 1]\n", "1:1", "write one name, a list of names"),
        ("base: {a: b}\n", "1:1", "write one name, a list of names"),
        ("base: false\n", "1:1", "write one name, a list of names"),
        ("base:\nconfig: x\n", "2:1", "indent its keys below it"),
        ("base:\nconfig: []\n", "2:1", "indent its keys below it"),
        ("- base\n", "1:1", ""),
        ("base\n", "1:1", ""),
    ],
)
def test_a_file_is_a_mapping_of_base_and_config(home: Home, text: str, place: str, words: str) -> None:
    write(home, "template/leaf.yaml", text)
    error = refused(home)
    assert error.where == f".azure_jobs/template/leaf.yaml:{place}"
    assert words in (error.hint or "")


def test_what_is_no_file_is_never_opened(home: Home) -> None:
    os.mkfifo(home.templates / "pipe.yaml")
    (home.templates / "folder.yaml").mkdir()
    os.symlink("loop.yaml", home.templates / "loop.yaml")
    for name in ("pipe", "folder", "loop"):
        write(home, "template/leaf.yaml", f"base: {name}\n")
        error = refused(home)
        assert "is not a file that can be read" in error.message
        assert error.where == ".azure_jobs/template/leaf.yaml:1:1"


def test_places_outside_the_current_folder_are_absolute(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, "template/leaf.yaml", "base:\nconfig: {x: 1}\n")
    monkeypatch.chdir("/")
    os.chdir(home.templates)
    assert refused(home).where == "leaf.yaml:2:10"
    os.chdir(write(home, "other/f.yaml", "").parent)
    assert refused(home).where == f"{home.templates}/leaf.yaml:2:10"


def test_the_list_has_the_leaves_with_what_they_are_built_on(home: Home) -> None:
    write(home, "template/b.yaml", "base: [low]\n")
    write(home, "template/a.yaml", "base:\nconfig: {target: {service: volcano}}\n")
    write(home, "template/low.yaml", "config: {target: {service: local}}\n")
    write(home, "template/torn.yaml", "base: [\n")
    write(home, "template/lost.yaml", "base: nowhere\n")
    listed = [(each.name, each.base, each.service) for each in list_templates(home)]
    expected = [("a", None, "volcano"), ("b", ["low"], "local"), ("lost", "nowhere", None), ("torn", None, None)]
    assert listed == expected
    assert [each.issue is None for each in list_templates(home)] == [True, True, False, False]
    assert template_names(home) == ["a", "b", "lost", "torn"]
    assert template_names(Home(home.root / "nowhere")) == []


def test_lints_of_every_file_are_the_template_s_notices(home: Home) -> None:
    write(home, "template/leaf.yaml", "base: low\nconfig: {description: a}\n")
    write(home, "template/low.yaml", "config:\n  description: x #y\n")
    (notice,) = resolve_template(home, "leaf").notices
    assert notice.where == ".azure_jobs/template/low.yaml:2:18"


def test_the_deepest_values_in_the_longest_chain_need_no_recursion_limit(home: Home) -> None:
    deep = "{a: [" * 45 + "1" + "]}" * 45
    for index in range(240):
        write(home, f"template/t{index}.yaml", f"base: t{index + 1}\n")
    write(home, "template/t240.yaml", f"base: [low, low]\nconfig: {{_extra: {deep}}}\n")
    write(home, "template/low.yaml", f"config: {{_extra: {deep}}}\n")
    template = load_template(home, "t0")
    assert len(template.provenance) == 1 + 90 + 3
    assert load(dump(dict(template.raw)).encode(), "t").value == template.raw
