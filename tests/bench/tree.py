"""The tree that the benchmarks share: what a large Python project looks like on disk, the same bytes every time."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

_FILES_PER_FOLDER = 25
_BINARY_BYTES = 2_000_000
_MEAN_BYTES = 10_200
_WORDS = re.findall(
    r"\w+",
    "batch cache chunk client column config cursor device epoch event field filter frame gradient handle index "
    "kernel label layer limit loader logger margin metric model module offset optimizer output parser path "
    "pipeline prefix queue rank reader record request response result sample schedule scope shape shard signal "
    "sink size slot source stage state step stream table target task tensor token trace tree value vector "
    "version weight window writer",
)
_LINES = (
    "        {a}_{b} = self._{c}.get({d!r}, {n})\n",
    "        if {a}_{b} is None or len({c}_{d}) > {n}:\n            raise ValueError(f'no {a} for {{{c}_{d}}}')\n",
    "        for {a} in self.{b}_{c}s:\n            {d}_{a}.append({a}.{b} * {n})\n",
    "        with self._{a}_lock:\n            self._{b}[{c!r}] = {d}({n}, {a}={b})\n",
    "        return [{a}.{b} for {a} in {c}_{d} if {a}.{c} != {n}]\n",
    "        # The {a} of a {b} is only known once its {c} has seen the first {d}.\n",
    "        logger.debug('%s: {a} {b} took %d {c}s', {d}, {n})\n",
    "        assert {a}.{b}_{c} <= self.{d}_limit, ({a}, {n})\n",
)


def source_tree(folder: Path, files: int = 20_000, binaries: int = 20) -> Path:
    """`files` source-like text files (10 KB mean, nested folders) and `binaries` random ones of 2 MB in `folder`.

    Deterministic; with the defaults 244 MB. A folder that exists is complete: it was built beside and renamed.
    """
    if folder.exists():
        return folder
    draft = folder.with_name(folder.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    chance = random.Random(20_000)
    methods = [_method(chance) for _ in range(6_000)]
    for number in range(files):
        path = draft / _place(number) / f"{_name(chance)}_{number}.py"
        if number % _FILES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_module(chance, methods, number))
    (draft / "assets").mkdir(parents=True, exist_ok=True)
    for number in range(binaries):
        (draft / "assets" / f"{_name(chance)}_{number}.bin").write_bytes(chance.randbytes(_BINARY_BYTES))
    return draft.rename(folder)


def _place(number: int) -> str:
    folder = number // _FILES_PER_FOLDER
    depth = 1 + folder % 5
    groups = [folder // 8 ** (depth - level) for level in range(depth + 1)]
    return "/".join(f"{_WORDS[(group * 7 + level * 13) % len(_WORDS)]}_{group}" for level, group in enumerate(groups))


def _name(chance: random.Random) -> str:
    return "_".join(chance.choices(_WORDS, k=2))


def _method(chance: random.Random) -> str:
    head = f"    def {_name(chance)}_{{0}}(self, {chance.choice(_WORDS)}: int, {chance.choice(_WORDS)}: str) -> None:\n"
    body = []
    for _ in range(chance.randint(3, 14)):
        a, b, c, d = chance.choices(_WORDS, k=4)
        body.append(chance.choice(_LINES).format(a=a, b=b, c=c, d=d, n=chance.randint(0, 4096)))
    return head + f'        """{_name(chance)}: {" ".join(chance.choices(_WORDS, k=8))}."""\n' + "".join(body) + "\n"


def _module(chance: random.Random, methods: list[str], number: int) -> str:
    wanted = min(int(chance.lognormvariate(0, 0.9) * _MEAN_BYTES / 1.64), 200_000)
    parts = ["".join(f"from {_name(chance)} import {_name(chance)}\n" for _ in range(chance.randint(2, 12)))]
    parts.append(f"\n\nclass {_name(chance).title().replace('_', '')}{number}:\n")
    size = 0
    while size < wanted:
        parts.append(chance.choice(methods).replace("{0}", str(number)))
        size += len(parts[-1])
    return "".join(parts)
