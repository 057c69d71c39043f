"""Jobs that amlt submits: how its program is found, called and read; it alone packs the code and meets the remote."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aj.build.effects import JobReceipt, NothingToUpload, Receipt, Sealed
from aj.server.child import Child, run
from aj.server.record import LONG, hidden_values
from aj.server.submit import Execution
from aj.shared.config import checked_config
from aj.shared.errors import (
    ChildEndedError,
    ChildError,
    ConfigError,
    NotFoundError,
    OutcomeUnknownError,
    SubmissionError,
)
from aj.shared.job.amlt import MISSING, with_code
from aj.shared.job.naming import fit_name
from aj.shared.jsonio import Json, write_file
from aj.shared.model import Caller, Emit, Event, JobSpec
from aj.shared.paths import Home, environment, positive_seconds
from aj.shared.yaml import dump

TIMEOUT_SECONDS = 1800.0
LINES_SHOWN = 400
"""Lines that become events: fewer than a feed keeps, so that who follows late gets them all."""
LINE_LIMIT = 2000
"""Characters of one of them."""

_CONTROL = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
"""Colours, links and cursor movements: amlt writes for a terminal."""
_LINK = re.compile(r"https://ml\.azure\.(?:com|us|cn)/[^\s\"'<>|)\]}\x1b\x07]*[^\s\"'<>|)\]}\x1b\x07.,;:!?]")
_RUN = re.compile(r"/runs/([A-Za-z0-9][A-Za-z0-9_-]*)")


@dataclass(frozen=True, slots=True)
class AmltEffects(NothingToUpload):
    """One call of `amlt run`, which is the only write."""

    home: Home
    caller: Caller
    program: str
    timeout_seconds: float

    def submit(self, sealed: Sealed, receipts: Mapping[str, Receipt], emit: Emit) -> JobReceipt:
        """Write the document and run amlt on it; each of its lines becomes an event.

        `SubmissionError` when it fails; `OutcomeUnknownError` when it had named a run by then, or took too long.
        """
        del receipts
        spec = sealed.spec
        file = self.home.submission / f"{spec.identity.id}.yaml"
        cwd = Path(self.caller.cwd)
        name = experiment(self.home)
        text = dump(with_code(sealed.payload, file, cwd, self.home))
        try:
            write_file(file, text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise SubmissionError(f"cannot write what amlt is to read: {error}", where=str(file)) from error
        argv = (self.program, "run", str(file), name, "-y")
        child = Child(argv, self.caller.env, cwd, self.timeout_seconds, _secrets(spec))
        reader = _Reader(emit)
        emit(Event("note", f"amlt run {file} {name} -y"))
        try:
            run(child, reader.line)
        except ChildError as error:
            raise self._failure(error, reader, name) from error
        if reader.dropped:
            emit(Event("note", f"{reader.dropped} more lines of amlt are not shown"))
        return JobReceipt(
            remote_name=reader.run or spec.name,
            portal_url=reader.link,
            status="NotStarted",
            note=f"experiment {name}; `amlt status {name}` follows it",
        )

    def find(self, spec: JobSpec, facts: Json) -> JobReceipt | None:
        """amlt has no look-up by a name of ours: `NotFoundError`, so that nobody takes it for absent."""
        del facts
        raise NotFoundError(f"aj cannot ask amlt for `{spec.name}`", hint="`amlt status` shows what there is")

    def _failure(self, error: ChildError, reader: _Reader, name: str) -> SubmissionError | OutcomeUnknownError:
        hint = f"`amlt status {name}` shows whether the job exists; look before you run it again"
        if isinstance(error, ChildEndedError):
            longer = "AJ_AMLT_TIMEOUT, set before `aj daemon restart`, gives it longer"
            return OutcomeUnknownError(error.message, where="amlt", hint=f"{hint}; {longer}")
        if reader.run:
            return OutcomeUnknownError(f"{error.message}\nbefore that, it named {reader.link}", where="amlt", hint=hint)
        return SubmissionError(error.message, where="amlt", hint=error.hint)


class _Reader:
    """What amlt's output says: a link to the job, and lines for people, as many as are read."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._seen = 0
        self.link: str | None = None
        self.run: str | None = None

    @property
    def dropped(self) -> int:
        return max(0, self._seen - LINES_SHOWN)

    def line(self, text: str) -> None:
        for link in _LINK.findall(text):
            run = _RUN.search(link)
            if self.link is None or (run and not self.run):
                self.link, self.run = link, run[1] if run else None
        last = text.rstrip("\r\n").rpartition("\r")[2]  # a progress bar is written over itself
        if plain := _CONTROL.sub("", last).rstrip():
            self._seen += 1
            if self._seen <= LINES_SHOWN:
                self._emit(Event("note", plain[:LINE_LIMIT]))


def _secrets(spec: JobSpec) -> frozenset[str]:
    """As amlt may print them: dollars doubled or not, and line by line."""
    values = {spelled for value in hidden_values(spec) for spelled in (value, value.replace("$", "$$"))}
    lines = {line for value in values for line in value.splitlines() if len(line) >= LONG}
    return frozenset(values | lines)


def experiment(home: Home) -> str:
    """`experiment` of the project's configuration, else the name of the folder that AJ_HOME lies in, made legal."""
    legal = fit_name(home.root.parent.name or "aj", allowed="A-Za-z0-9_-", first="A-Za-z0-9", limit=128)
    return str(checked_config(home).get("experiment", legal))


def amlt(home: Home, caller: Caller, env: Mapping[str, str]) -> AmltEffects:
    """The effects of one submission; `env` is the daemon's own. `ConfigError` when amlt is not on the caller's PATH."""
    program = shutil.which("amlt", path=caller.env.get("PATH"))
    if program is None:
        raise ConfigError("`amlt` is not on PATH", where="--amlt", hint=MISSING)
    return AmltEffects(home, caller, program, positive_seconds(env, "AJ_AMLT_TIMEOUT", TIMEOUT_SECONDS))


EXECUTION = Execution(effects=lambda home, caller: amlt(home, caller, environment()), jobs=None)
