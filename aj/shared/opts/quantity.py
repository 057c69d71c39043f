"""How Kubernetes writes amounts of memory and CPU, and which of them can be meant."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

from aj.shared.errors import TemplateError
from aj.shared.jsonio import Json

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3}|)")
_BINARY = {f"{letter}i": Decimal(1024**power) for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL = {letter: Decimal(10) ** (3 * power) for power, letter in enumerate("num kMGTPE", -3)} | {"": Decimal(1)}
_MEANT = re.compile(r"(?P<number>[0-9.]+)[ _]*(?P<letter>[kmgtpe])i?b?", re.IGNORECASE)
_SMALLEST, _LARGEST = Decimal(1024**2), Decimal(1024**4 * 64)
_CPUS = Decimal(4096)


def memory(value: Json, field: str, where: str) -> str:
    """Bytes as Kubernetes reads them: the text as it is where it counts whole bytes, else their number, rounded up.

    `TemplateError` for another grammar (`16GB`), and for what no node has: under 1Mi or over 64Ti.
    """
    amount = _amount(value, field, where)
    if not _SMALLEST <= amount <= _LARGEST:
        small = amount < _SMALLEST
        text = f"`{field}: {value}` is {amount.normalize():f} bytes, which is {'less' if small else 'more'}"
        raise TemplateError(f"{text} than a node can use", where=where, hint=_meant(str(value)) if small else None)
    return _spelled(str(value), amount)


def shm(value: Json, field: str, where: str) -> str:
    """The same for a size that docker reads as well: its `64g`, a count of gibibytes, becomes `64Gi`."""
    docker = re.fullmatch(r"([0-9]+)([kmg])", str(value))
    return memory(f"{docker[1]}{docker[2].upper()}i" if docker else value, field, where)


def cpus(value: Json, field: str, where: str) -> str:
    """A number of CPUs down to thousandths; `TemplateError` for finer ones, none, or more than 4096."""
    amount = _amount(value, field, where)
    if not 0 < amount <= _CPUS or (amount * 1000) % 1:
        message = f"`{field}: {value}` is not a number of CPUs"
        raise TemplateError(message, where=where, hint="write for example `96`, `0.5` or `500m`")
    return _spelled(str(value), amount) if amount % 1 == 0 else f"{amount * 1000:.0f}m"


def parse(text: str) -> Decimal | None:
    """The number that Kubernetes reads; None for what it refuses, and for less than nothing."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return None
    number, unit = Decimal(match[1]), match[2]
    if unit[:1] in ("e", "E") and unit[1:] not in ("", "i"):
        return number.scaleb(int(unit[1:]))
    return number * (_BINARY | _DECIMAL)[unit]


def _amount(value: Json, field: str, where: str) -> Decimal:
    amount = parse(str(value))
    if amount is None:
        message = f"`{field}: {value}` is not a Kubernetes quantity"
        raise TemplateError(message, where=where, hint=_meant(str(value)) or "write for example `64Gi`")
    return amount


def _spelled(text: str, amount: Decimal) -> str:
    return text if re.fullmatch(r"[1-9][0-9]*([KMGTPE]i|[kMGTPE]|)", text) else f"{amount.to_integral(ROUND_CEILING):f}"


def _meant(text: str) -> str | None:
    match = _MEANT.fullmatch(text)
    return f"did you mean `{match['number']}{match['letter'].upper()}i`?" if match else None
