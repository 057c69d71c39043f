"""What callers' variables keep secret: in memory while an entry waits, never in the queue's database."""

from __future__ import annotations

from collections.abc import Mapping

from aj.shared.caller import caller_from_json
from aj.shared.errors import ConfigError
from aj.shared.jsonio import Json
from aj.shared.model import Caller
from aj.shared.redact import looks_secret

WITHHELD = "withheld"
"""In the document of a caller: the names of the variables that are not in it."""


class Secrets:
    """Those of one project's waiting entries, by ticket; `lent` is for entries whose daemon is gone with them."""

    def __init__(self, lent: Mapping[str, str]) -> None:
        self._lent = lent
        self._kept: dict[str, dict[str, str]] = {}

    def withhold(self, ticket: str, caller: Caller) -> dict[str, Json]:
        """The caller's document without its secrets, which are kept here until `forget`."""
        kept = {name: value for name, value in caller.env.items() if looks_secret(name)}
        self._kept[ticket] = kept
        env = {name: value for name, value in caller.env.items() if name not in kept}
        return {"cwd": caller.cwd, "env": env, WITHHELD: sorted(kept)}

    def caller(self, ticket: str, document: Mapping[str, Json]) -> Caller:
        """The caller with the secrets that are known."""
        known = self._kept.get(ticket, self._lent)
        back = {name: known[name] for name in document.get(WITHHELD, ()) if name in known}
        return caller_from_json({"cwd": document["cwd"], "env": {**document["env"], **back}})

    def forget(self, ticket: str) -> None:
        """The entry has ended."""
        self._kept.pop(ticket, None)


def check_whole(document: Mapping[str, Json], caller: Caller) -> None:
    """`ConfigError` when the caller had secrets that nobody knows any more."""
    if lost := [f"`{name}`" for name in document.get(WITHHELD, ()) if name not in caller.env]:
        raise ConfigError(
            f"the daemon was restarted before this was sent, and {', '.join(lost)} of its caller was in memory only",
            hint="submit it again",
        )
