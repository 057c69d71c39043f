"""How kubectl is called: in the caller's world, for one context and namespace, with nothing secret among its words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from aj.server.child import Child, Output, run
from aj.shared.errors import ChildError
from aj.shared.jsonio import Json, compact
from aj.shared.model import Caller

JOBS = "jobs.batch.volcano.sh"
"""Never `job`, which means another group's."""
ID_LABEL = "aj/id"
REQUEST_SECONDS = 60
"""After so long the server's answer is given up."""
KEPT = 8 << 20
"""Bytes of an answer: more than an object has, which must be whole to be understood."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """The caller's cluster; `context` None is the kubeconfig's current one, `namespace` None the context's own."""

    caller: Caller
    context: str | None
    namespace: str | None

    def words(self, *words: str) -> tuple[str, ...]:
        """The command line of `kubectl WORDS` here."""
        place = (("--context", self.context), ("--namespace", self.namespace))
        return ("kubectl", *(word for pair in place if pair[1] for word in pair if word), *words)

    def shown(self, *words: str) -> str:
        """The same for a person to type."""
        return shlex.join(self.words(*words))

    def run(
        self,
        *words: str,
        stdin: bytes | Iterable[bytes] = b"",
        seconds: float = REQUEST_SECONDS + 15,
        secrets: frozenset[str] = frozenset(),
    ) -> Output:
        """Run it to its end; `ChildError` when it fails or takes longer."""
        cwd = Path(self.caller.cwd)
        return run(Child(self.words(*words), self.caller.env, cwd, seconds, secrets, stdin, kept=KEPT))

    def create(self, document: Json, secrets: frozenset[str] = frozenset()) -> str:
        """Create one object, once; its name. A `ChildError` does not tell whether it exists: look for it."""
        words = ("create", "-f", "-", "-o", "name", f"--request-timeout={REQUEST_SECONDS}s")
        name = self.run(*words, stdin=compact(document), secrets=secrets).stdout.strip().rpartition("/")[2]
        if not name:
            raise ChildError(f"`{self.shown(*words)}` gave no name")
        return name

    def read(self, *words: str) -> Any:
        """What `get WORDS` knows, as JSON."""
        words = ("get", *words, "-o", "json", f"--request-timeout={REQUEST_SECONDS}s")
        output = self.run(*words)
        try:
            return json.loads(output.stdout)
        except ValueError as error:
            raise ChildError(f"`{self.shown(*words)}` gave no JSON: {error}") from error

    def remove(self, kind: str, name: str) -> str | None:
        """Delete what may be there, in a few attempts, without a wait for its end; None, or what is left to do."""
        for seconds in (0, 1, 2):
            sleep(seconds)
            try:
                words = ("delete", kind, name, "--ignore-not-found", "--wait=false", "--now")
                self.run(*words, f"--request-timeout={REQUEST_SECONDS}s")
                return None
            except ChildError as error:
                last = error
        return f"the {kind} `{name}` may be left; run `{self.shown('delete', kind, name)}`: {last.message}"

    def find(self, kind: str, identity: str) -> list[dict[str, Any]]:
        """Our objects of a kind, by the AJ_ID that labels them."""
        found = self.read(kind, "--selector", f"{ID_LABEL}={identity}")
        return list(found["items"])
