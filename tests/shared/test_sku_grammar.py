"""SKUs as people write them, and the ones that must not be guessed at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aj.shared.errors import ShapeError
from aj.shared.sku import GRAMMAR, Sku, check_shape, parse_sku


@pytest.mark.parametrize(
    ("text", "shape"),
    [("G8", (None, 8)), ("2xG4", (2, 4)), ("8xG1", (8, 1)), ("8x G4", (8, 4)), ("2xG2", (2, 2)), ("8xC1", (8, 1))],
)
def test_S06_nodes_and_gpus(text: str, shape: tuple[int | None, int]) -> None:
    sku = parse_sku(text, "t.yaml:3:8")
    assert (sku.nodes, sku.count) == shape


@pytest.mark.parametrize(
    "text",
    [
        *("g4", "G0", "G4.5", "0xG4", "2xG", "xG4", "G４", "G4\n", "G4-", "", " ", "G", "C0", "c2", "G04"),
        *("02xG4", "0G4", "-1xG4", "G4 ", " G4", "8x  G4", "8 xG4", "8XG4", "2x2xG4", "2xG4xG4", "G4G4"),
        *("4090:8", ":G4", "a b:G4", "²G4", "٣xG4", "G4--V100", "G4-V100-", "G4-IB-V100", "G4-NvLink-IB"),
        *("G4-V100-V100", "G4-NvLink-NvLink", "G4-é", "G4 -IB", "G4@", "G4@,", "G4@westus2,", "@westus2"),
        *("G4@westus2,westus2", "G4@west us", "C2-IB", "C2-V100", "ND:C2", "C2-NvLink", "G9999999"),
        *("G" + "9" * 5000, "1e3xG4", "+2xG4", "0x10G4", "G{processes}", "2xG4\0", "NDv4:", "G4@westus2-IB"),
    ],
)  # fmt: skip
def test_S06_everything_else_is_an_error_that_shows_the_grammar(text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        parse_sku(text, "t.yaml:3:8")
    assert caught.value.where == "t.yaml:3:8"
    assert caught.value.hint is not None and GRAMMAR in caught.value.hint
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "sku"),
    [
        ("G1", Sku("G", 1)),
        ("G1-NVIDIA", Sku("G", 1, vendors=("NVIDIA",))),
        ("G4-AMD", Sku("G", 4, vendors=("AMD",))),
        ("32G2", Sku("G", 2, memory_gb=32)),
        ("G4-V100-P40-K80", Sku("G", 4, accelerators=("V100", "P40", "K80"))),
        ("G8-NvLink-xGMI", Sku("G", 8, links=("NvLink", "xGMI"))),
        ("G8-NVLINK", Sku("G", 8, links=("NvLink",))),
        ("8x G4", Sku("G", 4, nodes=8)),
        ("8xC1", Sku("C", 1, nodes=8)),
        ("16C2", Sku("C", 2, memory_gb=16)),
        ("C2@westus2,eastus2", Sku("C", 2, regions=("westus2", "eastus2"))),
        ("G1@WestUS2", Sku("G", 1, regions=("westus2",))),
        ("NDv4:2xG8-IB", Sku("G", 8, nodes=2, series="NDv4", infiniband=True)),
        ("ND_H100_v5:G8", Sku("G", 8, series="ND_H100_v5")),
        ("2x80G8-A100-NvLink", Sku("G", 8, nodes=2, memory_gb=80, accelerators=("A100",), links=("NvLink",))),
        ("G4-V100-A100@westus2", Sku("G", 4, accelerators=("V100", "A100"), regions=("westus2",))),
        ("G4-IBX-nvlinkish", Sku("G", 4, accelerators=("IBX", "nvlinkish"))),
        ("G8-MI300X-IB-xGMI", Sku("G", 8, accelerators=("MI300X",), infiniband=True, links=("xGMI",))),
    ],
)
def test_the_documented_forms(text: str, sku: Sku) -> None:
    assert parse_sku(text, "here") == sku


_numbers = st.integers(1, 999_999)
_words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.]{0,8}", fullmatch=True).filter(
    lambda word: word.lower() not in ("ib", "nvlink", "xgmi", "nvidia", "amd")
)
_regions = st.lists(st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True), unique=True, max_size=3).map(tuple)
_cpu = st.builds(
    Sku, st.just("C"), _numbers, nodes=st.none() | _numbers, memory_gb=st.none() | _numbers, regions=_regions
)
_gpu = st.builds(
    Sku,
    st.just("G"),
    _numbers,
    nodes=st.none() | _numbers,
    memory_gb=st.none() | _numbers,
    series=st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True),
    vendors=st.permutations(["NVIDIA", "AMD"]).flatmap(lambda all: st.integers(0, 2).map(lambda n: tuple(all[:n]))),
    accelerators=st.lists(_words, unique=True, max_size=3).map(tuple),
    infiniband=st.booleans(),
    links=st.permutations(["NvLink", "xGMI"]).flatmap(lambda all: st.integers(0, 2).map(lambda n: tuple(all[:n]))),
    regions=_regions,
)


@given(_gpu | _cpu)
def test_what_is_spelled_is_read_back(sku: Sku) -> None:
    assert parse_sku(str(sku), "here") == sku


@given(st.text(st.sampled_from("0123456789xXgGcC:-@, .ABIbvkNLx\n４"), max_size=16))
def test_any_text_is_a_sku_that_reads_back_or_an_error(text: str) -> None:
    try:
        sku = parse_sku(text, "here")
    except ShapeError:
        return
    assert parse_sku(str(sku), "here") == sku
    assert sku.count > 0 and sku.nodes != 0 and sku.memory_gb != 0


def test_S05_an_explicit_shape_beside_another_in_the_sku() -> None:
    sku = parse_sku("2xG2", "t.yaml:5:8")
    check_shape(sku, 2, 2, "t.yaml:5:8")
    check_shape(parse_sku("G2", "x"), 3, 2, "x")
    with pytest.raises(ShapeError, match=r"2 nodes.* 3") as caught:
        check_shape(sku, 3, 2, "t.yaml:5:8")
    assert caught.value.where == "t.yaml:5:8"
    with pytest.raises(ShapeError, match=r"2 GPUs per node.* 4"):
        check_shape(sku, 2, 4, "t.yaml:5:8")
    with pytest.raises(ShapeError, match="size tier"):
        check_shape(parse_sku("C2", "x"), 1, 4, "x")
