"""A stand-in for the Azure CLI on PATH: it prints tokens as `az account get-access-token` does, and keeps count."""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]

_SCRIPT = """#!{python}
import datetime, json, os, sys, time
sys.path.insert(0, {project!r})
from tests.azure.arm.tokens import TENANT, token

folder = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(os.path.join(folder, "calls.jsonl"), "a") as calls:
    calls.write(json.dumps(words) + chr(10))
with open(os.path.join(folder, "behaviour.json")) as file:
    behaviour = json.load(file)
time.sleep(behaviour["seconds"])
if behaviour["error"]:
    sys.exit("ERROR: " + behaviour["error"])
if words[:2] != ["account", "get-access-token"]:
    sys.exit("ERROR: this stand-in knows only `az account get-access-token`")
given = dict(zip(words[2::2], words[3::2]))
if set(given) - {{"--output", "-o", "--resource", "--scope", "--tenant", "--subscription"}}:
    sys.exit("ERROR: unrecognized arguments: " + " ".join(words))
resource = given.get("--resource") or given.get("--scope", "https://management.core.windows.net/").removesuffix("/.default")
end = time.time() + behaviour["lifetime"]
print(json.dumps({{
    "accessToken": token(resource, lifetime=behaviour["lifetime"], tenant=given.get("--tenant", TENANT)),
    "expiresOn": datetime.datetime.fromtimestamp(end).strftime("%Y-%m-%d %H:%M:%S.%f"),
    "expires_on": int(end),
    "subscription": given.get("--subscription", "00000000-0000-0000-0000-000000000001"),
    "tenant": given.get("--tenant", TENANT),
    "tokenType": "Bearer",
}}, indent=2))
"""

NOT_LOGGED_IN = "Please run 'az login' to setup account."


class FakeAz:
    """The folder with the script, to be put first on PATH, and its behaviour."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        script = folder / "az"
        script.write_text(_SCRIPT.format(python=sys.executable, project=str(PROJECT)))
        script.chmod(0o755)
        self.behave()

    def behave(self, *, error: str = "", lifetime: float = 3600, seconds: float = 0) -> None:
        """From now on: fail with `error` (NOT_LOGGED_IN), give tokens of `lifetime` seconds, take `seconds` for it."""
        behaviour = {"error": error, "lifetime": lifetime, "seconds": seconds}
        (self.folder / "behaviour.json").write_text(json.dumps(behaviour))

    def calls(self) -> list[list[str]]:
        """The arguments of every call so far."""
        file = self.folder / "calls.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
