"""A token of the caller's own `az`, by azure-identity, in a process whose environment is the caller's."""

from __future__ import annotations

import json
import os
import sys

PATIENCE_SECONDS = 3600
"""Longer than who started us waits: they end `az` and its children, the credential would end `az` alone."""


def main(scope: str) -> None:
    """Writes `{"token": …, "expires_on": …}`, or `{"failed": …}` with what is wrong."""
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity import AzureCliCredential

    os.environ.pop("PYTHONPATH", None)  # it leads to our modules, which `az` must not take for its own
    try:
        found = AzureCliCredential(process_timeout=PATIENCE_SECONDS).get_token(scope)
        answer = {"token": found.token, "expires_on": found.expires_on}
    except (ClientAuthenticationError, ValueError) as error:
        answer = {"failed": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
