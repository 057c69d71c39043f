"""The daemon's error boundary: whatever blocking work raises leaves it as an AjError without secrets."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Collection
from typing import TypeVar

from aj.shared.errors import AjError, InternalError, StoreError
from aj.shared.redact import redact_text

T = TypeVar("T")
LOG = logging.getLogger("aj")


def attempt(work: Callable[[], T], secrets: Collection[str] = ()) -> T | AjError:
    """What `work` returned or, as a value, the error that it raised, with `secrets` hidden in its texts."""
    try:
        return work()
    except AjError as error:
        LOG.info("%s: %s", type(error).__name__, redact_text(error.message, secrets))
        return _without(error, secrets)
    except OSError as error:
        _log(error, secrets)
        return _without(_of_the_system(error), secrets)
    except Exception as error:  # noqa: BLE001
        return internal(error, secrets)


def internal(error: Exception, secrets: Collection[str] = ()) -> InternalError:
    """A fault of ours as the user meets it: `Type: message`, and where to look; the traceback goes to the log."""
    message = _log(error, secrets)
    hint = f"a fault of aj: `AJ_DEBUG=1 aj daemon restart`, try again, then see {_log_file()}"
    return InternalError(message, hint=hint)


def _log(error: Exception, secrets: Collection[str]) -> str:
    message = redact_text(f"{type(error).__name__}: {error}", secrets)
    LOG.error("%s", message)
    if LOG.isEnabledFor(logging.DEBUG):
        LOG.debug("%s", redact_text("".join(traceback.format_exception(error)), secrets))
    return message


def _of_the_system(error: OSError) -> AjError:
    """Disks that are full and networks that fail are no faults of ours."""
    if isinstance(error, TimeoutError | ConnectionError):
        return AjError(f"the network failed: {error}")
    where = str(error.filename) if error.filename else None
    return StoreError(f"a file cannot be used: {error.strerror or error}", where=where, hint="is the disk full?")


def _log_file() -> str:
    try:
        return os.readlink("/proc/self/fd/2")  # noqa: PTH115
    except OSError:
        return "its log (`aj daemon status` names it)"


def _without(error: AjError, secrets: Collection[str]) -> AjError:
    details = error.details()
    texts = {name: details[name] and redact_text(details[name], secrets) for name in ("where", "hint")}
    return type(error)(redact_text(error.message, secrets), **{**details, **texts})
