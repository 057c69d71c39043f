"""Bases fold from left to right by the table, and every value remembers its file."""

from __future__ import annotations

import copy
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.jsonio import at
from aj.shared.paths import Home
from aj.shared.template.merge import Sourced, merge, set_values, sourced
from aj.shared.template.template import Template, resolve_template
from aj.shared.yaml import dump, load


def tree(config: Any, file: str = "t.yaml") -> Sourced:
    return sourced(load(dump({"config": config}).encode(), file), "config", (file,))


def merged(*configs: Any) -> Any:
    return set_values(functools.reduce(merge, map(tree, configs)))[0]


def through_files(folder: Path, *configs: Any) -> Template:
    """All but the last config as bases, in order, of a leaf with the last one."""
    home = Home(folder)
    (folder / "template").mkdir()
    (folder / "set").mkdir()
    names = [f"f{index}" for index in range(len(configs) - 1)]
    for name, config in zip(names, configs, strict=False):
        (folder / "set" / f"{name}.yaml").write_text(dump({"config": config}))
    leaf = {"base": [f"set.{name}" for name in names], "config": configs[-1]}
    (folder / "template" / "leaf.yaml").write_text(dump(leaf))
    return resolve_template(home, "leaf")


TABLE = [
    # dictionaries: recursive
    ({"a": {"x": 1, "y": 1}}, {"a": {"y": 2, "z": 2}}, {"a": {"x": 1, "y": 2, "z": 2}}),
    ({"a": {}}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ({"a": {"x": 1}}, {"a": {}}, {"a": {"x": 1}}),
    # lists that hold dictionaries: by index, what has no partner is kept
    ({"a": [{"x": 1}, {"y": 1}]}, {"a": [{"x": 2}]}, {"a": [{"x": 2}, {"y": 1}]}),
    ({"a": [{"x": 1}]}, {"a": [{"z": 2}, {"y": 2}]}, {"a": [{"x": 1, "z": 2}, {"y": 2}]}),
    ({"a": [{"x": 1}]}, {"a": []}, {"a": [{"x": 1}]}),
    ({"a": ["s", "t"]}, {"a": [{"x": 1}]}, {"a": [{"x": 1}, "t"]}),
    ({"a": [{"x": 1}, "t"]}, {"a": ["s"]}, {"a": ["s", "t"]}),
    ({"a": [{"x": [1]}]}, {"a": [{"x": [2]}]}, {"a": [{"x": [1, 2]}]}),
    # lists of scalars: joined
    ({"a": ["s", 1]}, {"a": ["s", True]}, {"a": ["s", 1, "s", True]}),
    ({"a": []}, {"a": [1]}, {"a": [1]}),
    ({"a": [1]}, {"a": []}, {"a": [1]}),
    # scalars and mixed values: the last one
    ({"a": 1}, {"a": "x"}, {"a": "x"}),
    ({"a": {"x": 1}}, {"a": 2}, {"a": 2}),
    ({"a": 2}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ({"a": [1]}, {"a": "x"}, {"a": "x"}),
    ({"a": "x"}, {"a": [1]}, {"a": [1]}),
    ({"a": {"x": 1}}, {"a": [1]}, {"a": [1]}),
    ({"a": [[1]]}, {"a": [2]}, {"a": [2]}),
    ({"a": [1]}, {"a": [[2]]}, {"a": [[2]]}),
    # null: a value that wins, and means unset
    ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
    ({"a": {"x": 1}}, {"a": None}, {}),
    ({"a": None}, {"a": {"x": 1}}, {"a": {"x": 1}}),
    ({"a": {"x": 1, "y": 1}}, {"a": {"x": None}}, {"a": {"y": 1}}),
    ({"a": [{"x": 1}, {"y": 1}]}, {"a": [None]}, {"a": [{"y": 1}]}),
    ({"a": [1]}, {"a": [None, 2]}, {"a": [1, 2]}),
    ({"_extra": {"x": 1, "z": [1]}}, {"_extra": {"x": None, "z": [None]}}, {"_extra": {"x": None, "z": [1, None]}}),
    ({"_extra": {"x": 1}}, {"_extra": None}, {}),
]


@pytest.mark.parametrize(("base", "over", "result"), TABLE)
def test_every_row_of_the_table(tmp_path: Path, base: Any, over: Any, result: Any) -> None:
    assert merged(base, over) == result
    assert through_files(tmp_path, base, over).raw == result


def test_an_unset_base_does_not_come_back() -> None:
    assert merged({"a": {"x": 1}}, {"a": None}, {"a": {"y": 2}}) == {"a": {"y": 2}}


def test_env_values_keep_their_spelling_before_they_meet(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    env = "{V: 1.10, H: 58899e0, BIG: 12345678, S: 0123456, N: 01, U: 0777, R: no, T: true, X: 0x10, Q: '1.0', G: ~}"
    text = f"""base:
config:
  jobs:
  - submit_args: {{env: {env}, max_run_duration_seconds: 10}}
  environment: {{env: {{A: 1.10}}}}
  env_defaults: {{A: 1.10}}
  search: {{job_template: {{submit_args: {{env: {{A: 1.10}}}}}}}}
  _extra: {{volcano: {{tasks: {{master: {{env: {{A: 1.10}}, replicas: 1}}}}}}, env: {{A: 1.10}}}}
"""
    (tmp_path / "template" / "t.yaml").write_text(text)
    raw: Any = resolve_template(Home(tmp_path), "t").raw
    spelled = "V=1.10 H=58899e0 BIG=12345678 S=0123456 N=01 U=0777 R=no T=true X=0x10 Q=1.0"
    assert raw["jobs"][0]["submit_args"]["env"] == dict(entry.split("=") for entry in spelled.split())
    assert raw["jobs"][0]["submit_args"]["max_run_duration_seconds"] == 10
    assert raw["environment"]["env"] == raw["env_defaults"] == {"A": "1.10"}
    assert raw["search"]["job_template"]["submit_args"]["env"] == {"A": "1.10"}
    assert raw["_extra"]["volcano"]["tasks"]["master"] == {"env": {"A": "1.10"}, "replicas": 1}
    assert raw["_extra"]["env"] == {"A": 1.1}


def test_provenance_follows_joined_and_indexed_items(tmp_path: Path) -> None:
    base = {"environment": {"setup": ["a", "b"]}, "jobs": [{"sku": "G1", "tags": ["t"]}]}
    template = through_files(tmp_path, base, {"environment": {"setup": ["c"]}, "jobs": [{"sku": "G2"}]})
    low, leaf = str(tmp_path / "set" / "f0.yaml"), str(tmp_path / "template" / "leaf.yaml")
    assert template.where("environment", "setup", 1) == f"{low}:5:9"
    assert template.where("environment", "setup", 2) == f"{leaf}:6:9"
    assert template.where("jobs", 0, "sku") == f"{leaf}:8:7"
    assert template.where("jobs", 0, "tags", 0).startswith(low)
    assert template.provenance["/jobs/0/tags/0"].chain == (leaf, low)
    assert template.provenance["/jobs/0/sku"].chain == (leaf,)
    assert template.where("jobs", 0, "nothing", "here") == template.where("jobs", 0)
    assert template.where("nothing") == f"{leaf}:3:1"


def oracle(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        both = {key: oracle(base[key], over[key]) for key in base.keys() & over.keys()}
        return {**base, **over, **both}
    if isinstance(base, list) and isinstance(over, list):
        kinds = {type(item) for item in base + over}
        if dict in kinds:
            pairs = [oracle(low, high) for low, high in zip(base, over, strict=False)]
            return pairs + max(base, over, key=len)[len(pairs) :]
        if list not in kinds:
            return base + over
    return over


keys = st.sampled_from("abc")
scalars = st.integers(0, 9) | st.sampled_from(["x", "y"]) | st.booleans()
trees = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
configs = st.dictionaries(keys, trees, max_size=3)


@given(st.lists(configs, min_size=1, max_size=4))
def test_bases_fold_from_left_to_right_as_the_table_says(several: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert through_files(Path(folder), *several).raw == functools.reduce(oracle, several)


def of_shape(shape: Any) -> st.SearchStrategy[Any]:
    """Values in which no key differs in type from any other value of the same shape."""
    if isinstance(shape, dict):
        return st.fixed_dictionaries({}, optional={key: of_shape(inner) for key, inner in shape.items()})
    if isinstance(shape, list):
        return st.lists(of_shape(shape[0]), max_size=3)
    return scalars


shapes = st.recursive(
    st.just(0), lambda inner: st.dictionaries(keys, inner, max_size=3) | inner.map(lambda item: [item])
)


@given(st.data())
def test_folding_is_associative_where_no_key_changes_its_type(data: st.DataObject) -> None:
    shape = data.draw(st.dictionaries(keys, shapes.filter(lambda shape: not is_list_of_lists(shape)), max_size=3))
    low, middle, high = (tree(data.draw(of_shape(shape))) for _ in range(3))
    assert set_values(merge(merge(low, middle), high))[0] == set_values(merge(low, merge(middle, high)))[0]


def is_list_of_lists(shape: Any) -> bool:
    """Such a list is replaced or joined by whether it is empty: it changes its type."""
    if isinstance(shape, dict):
        return any(is_list_of_lists(inner) for inner in shape.values())
    return isinstance(shape, list) and (isinstance(shape[0], list) or is_list_of_lists(shape[0]))


@given(configs, configs)
def test_merging_shares_no_state_with_its_inputs(base: Any, over: Any) -> None:
    low, high = tree(base), tree(over)
    first, _ = set_values(merge(low, high))
    before = copy.deepcopy(first)
    spoil(first)
    assert set_values(merge(low, high))[0] == before
    assert set_values(low)[0] == base
    assert set_values(high)[0] == over


def spoil(value: Any) -> None:
    for inner in list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()):
        spoil(inner)
    if isinstance(value, dict | list):
        value.clear()


@given(st.lists(configs, min_size=1, max_size=4))
def test_provenance_names_the_file_whose_value_won(several: list[Any]) -> None:
    names = [*(f"f{index}" for index in range(len(several) - 1)), "leaf"]
    named = [signed(config, name) for config, name in zip(several, names, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        template = through_files(Path(folder), *named)
        for where, value in walk(template.raw, ""):
            origin = template.provenance[where]
            assert origin.chain[-1] == origin.mark.file
            if isinstance(value, str):
                assert value.split("-")[0] == Path(origin.mark.file).stem
                line = Path(origin.mark.file).read_text().splitlines()[origin.mark.line - 1]
                assert value in line
        assert set(template.provenance) == {where for where, _ in walk(template.raw, "")}
        assert all(at(template.raw, where, ...) is not ... for where in template.provenance)


def signed(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: signed(inner, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [signed(inner, name) for inner in value]
    return f"{name}-{value}"


def walk(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    yield where, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from walk(item, f"{where}/{key}")
