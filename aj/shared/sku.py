"""The grammar of SKUs, and how a template's SKU becomes one for a given shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from aj.shared.errors import ShapeError
from aj.shared.schema import close_match

GRAMMAR = (
    "`[SERIES:][N]x [MEM]G<gpus>[-TYPE…][-IB][-NvLink|-xGMI][@region,…]` or `[N]x [MEM]C<cpus>[@region,…]`, "
    "for example `G1`, `2x80G8-A100-NvLink`, `C2@westus2`"
)

_NUMBER = "[1-9][0-9]{0,5}"
_LINK = "(?i:NvLink|xGMI)"
_SKU = re.compile(
    rf"""
    (?: (?P<series> [A-Za-z0-9][A-Za-z0-9_.-]*) : )?
    (?: (?P<nodes> {_NUMBER}) x [ ]? )?
    (?P<memory> {_NUMBER})?
    (?P<family> [GC]) (?P<count> {_NUMBER})
    (?P<types> (?: - (?! (?: (?i:IB) | {_LINK} ) (?: [-@] | \Z) ) [A-Za-z0-9][A-Za-z0-9_.]* )*)
    (?P<infiniband> - (?i:IB))?
    (?P<links> (?: - {_LINK})*)
    (?: @ (?P<regions> [A-Za-z0-9]+ (?: , [A-Za-z0-9]+)*) )?
    """,
    re.VERBOSE,
)
_SPELLING = {word.lower(): word for word in ("NVIDIA", "AMD", "NvLink", "xGMI")}
_VENDORS = ("NVIDIA", "AMD")
_RANGE = re.compile(rf"({_NUMBER})(?:(\+)|-({_NUMBER}))?")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}?|\}")


@dataclass(frozen=True, slots=True)
class Sku:
    """A parsed SKU; `str()` spells it so that `parse_sku` gives the same value."""

    family: Literal["G", "C"]
    count: int
    """GPUs per node of a G SKU; CPU size tier of a C SKU."""
    nodes: int | None = None
    """None where the SKU does not say, which schedules one node."""
    memory_gb: int | None = None
    """GB per GPU, at least."""
    series: str | None = None
    """Instance type series, as written."""
    vendors: tuple[str, ...] = ()
    """Any of `NVIDIA`, `AMD`; empty: any vendor."""
    accelerators: tuple[str, ...] = ()
    """Accelerator types as written, any of which will do; empty: any."""
    infiniband: bool = False
    links: tuple[str, ...] = ()
    """Any of `NvLink`, `xGMI`; empty: any or none."""
    regions: tuple[str, ...] = ()
    """Lower case, any of which will do; empty: any."""

    def __str__(self) -> str:
        series = f"{self.series}:" if self.series else ""
        nodes = f"{self.nodes}x" if self.nodes else ""
        interconnect = ("IB",) if self.infiniband else ()
        words = "".join(f"-{word}" for word in (*self.vendors, *self.accelerators, *interconnect, *self.links))
        regions = "@" + ",".join(self.regions) if self.regions else ""
        return f"{series}{nodes}{self.memory_gb or ''}{self.family}{self.count}{words}{regions}"


def parse_sku(text: str, where: str) -> Sku:
    """The SKU that `text` spells, whole; `ShapeError` shows the grammar for anything else."""
    match = _SKU.fullmatch(text)
    part = match.groupdict() if match else {}
    types, links = _words(part.get("types")), _words(part.get("links"))
    regions = tuple(region for region in (part.get("regions") or "").lower().split(",") if region)
    is_odd_c = part.get("family") == "C" and (part["series"] or types or links or part["infiniband"])
    if match is None or is_odd_c or any(len({*words}) != len(words) for words in (types, links, regions)):
        raise ShapeError(f"`{text!r}` is not a SKU", where=where, hint=f"the grammar is {GRAMMAR}")
    return Sku(
        family="G" if part["family"] == "G" else "C",
        count=int(part["count"]),
        nodes=int(part["nodes"]) if part["nodes"] else None,
        memory_gb=int(part["memory"]) if part["memory"] else None,
        series=part["series"],
        vendors=tuple(word for word in types if word in _VENDORS),
        accelerators=tuple(word for word in types if word not in _VENDORS),
        infiniband=part["infiniband"] is not None,
        links=links,
        regions=regions,
    )


def _words(text: str | None) -> tuple[str, ...]:
    return tuple(_SPELLING.get(word.lower(), word) for word in (text or "").split("-")[1:])


def check_shape(sku: Sku, nodes: int, processes: int, where: str) -> None:
    """Refuse a SKU that names another shape than the job has; `ShapeError` shows both values."""
    if sku.nodes is not None and sku.nodes != nodes:
        raise _conflict(f"`{sku}` asks for {sku.nodes} nodes, but the job has {nodes}", "{nodes}x", where)
    if sku.count != processes:
        what = "GPUs per node" if sku.family == "G" else "as its CPU size tier"
        message = f"`{sku}` asks for {sku.count} {what}, but `-p` or `target.gpus_per_node` says {processes}"
        raise _conflict(message, f"{sku.family}{{processes}}", where)


def _conflict(message: str, placeholder: str, where: str) -> ShapeError:
    return ShapeError(message, where=where, hint=f"write `{placeholder}` in the SKU, or make the two agree")


def resolve_sku(sku: str | Mapping[str, str], nodes: int, processes: int, where: str) -> str:
    """`jobs[0].sku` for a shape: the first range that contains `nodes`, with `{nodes}` and `{processes}` filled in.

    `ShapeError` for a bad range, none that fits, or another placeholder.
    """
    values = {"nodes": str(nodes), "processes": str(processes)}

    def fill(match: re.Match[str]) -> str:
        name = match[0].strip("{}")
        if match[0] == f"{{{name}}}" and name in values:
            return values[name]
        is_open = match[0].startswith("{") and not match[0].endswith("}")
        close = close_match(name, values) if name else None
        hint = "`{nodes}` and `{processes}` are the only placeholders of a SKU"
        message = f"the placeholder `{match[0]}` is never closed" if is_open else f"`{match[0]}` is not a placeholder"
        raise ShapeError(message, where=where, hint=f"did you mean `{{{close}}}`? {hint}" if close else hint)

    if isinstance(sku, str):
        return _PLACEHOLDER.sub(fill, sku)
    fitting = [text for key, text in sku.items() if _contains(str(key), nodes, where)]
    if not fitting:
        known = ", ".join(f"`{key}`" for key in sku) or "none"
        raise ShapeError(f"no range of the SKU contains {nodes} nodes", where=where, hint=f"the ranges are {known}")
    return _PLACEHOLDER.sub(fill, fitting[0])


def _contains(key: str, nodes: int, where: str) -> bool:
    match = _RANGE.fullmatch(key)
    low = int(match[1]) if match else 0
    high = int(match[3]) if match and match[3] else low
    if match is None or high < low:
        raise ShapeError(f"`{key!r}` is not a range of nodes", where=where, hint="write `4`, `2-8` or `9+`")
    return low <= nodes and (match[2] is not None or nodes <= high)
