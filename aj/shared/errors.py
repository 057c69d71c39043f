"""Every error a user can meet, with its exit code and its form on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar


class AjError(Exception):
    """An error with a place and a way out.

    `where` is `file:line:col`, a flag or a command; `hint` names what to do next; `status_code` and
    `azure_code` are set when a remote said no. The concrete type survives the wire: see `to_wire`, `from_wire`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        status_code: int | None = None,
        azure_code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint
        self.status_code = status_code
        self.azure_code = azure_code

    def details(self) -> dict[str, Any]:
        """All but the message, as keywords for an error of another kind."""
        return {name: getattr(self, name) for name in _DETAILS}


_DETAILS = ("where", "hint", "status_code", "azure_code")
E = TypeVar("E", bound="AjError")


class InputError(AjError):
    """What the user wrote cannot be meant: exit code 2, nothing was changed."""

    exit_code: ClassVar[int] = 2


class TemplateError(InputError):
    """A template is malformed, missing, cyclic or has an unknown or ill-typed field."""


class ShapeError(InputError):
    """Nodes, processes or the SKU are missing, contradictory or unparseable."""


class CommandError(InputError):
    """The command, a flag's value or an environment entry cannot be sent exactly."""


class CodeError(InputError):
    """The code folder holds something that must not or cannot be packed."""


class ConfigError(InputError):
    """A configuration file or one of aj's own variables is invalid."""


class UnknownServiceError(InputError):
    """`target.service` names no registered backend."""


class NotFoundError(InputError):
    """No such job, ticket, record, schema or file."""


class PayloadError(AjError):
    """A rendered payload or a stored document violates its schema."""


class ArchiveError(AjError):
    """Packing failed; nothing was published."""


class CodeChanged(ArchiveError):
    """A file is no longer what was selected: select again, then pack again."""


class StoreError(AjError):
    """A cached file is damaged, locked or cannot be written."""


class ReadOnlyError(AjError):
    """A write was attempted where only reads are allowed."""


class DaemonError(AjError):
    """The daemon cannot be started, reached or understood."""


class DaemonBusyError(DaemonError):
    """The daemon is alive but does not answer in time."""


class DaemonNotRunningError(DaemonError):
    """No daemon serves: none runs and none was to be started, or it is stopping and took nothing on."""


class RequestError(InputError):
    """A request to the daemon is malformed."""


class ConflictError(AjError):
    """The request does not fit the present state, such as canceling what has ended; nothing was changed."""


class WaitTimeoutError(AjError):
    """What was waited for has not ended in the given time; it goes on."""


class ChildError(AjError):
    """A child process failed: the message carries command, status, stdout and stderr."""


class ChildEndedError(ChildError):
    """aj ended a child process early, as it took too long or was canceled; what it had done by then is not known."""


class AzureError(AjError):
    """Azure refused or failed a request."""


class LoginError(AzureError):
    """No credential of the caller gives a token for Azure."""


class AccessError(AzureError):
    """A role is missing, keys are disabled or a network rule forbids it."""


class UnreachableError(AzureError):
    """No connection: the request was surely not received."""


class LostAnswerError(AzureError):
    """The request was sent, its answer never came or said that the service failed."""


class CapacityError(AjError):
    """No place can take the job now: the message has the reason of each."""


class SubmissionError(AjError):
    """The backend refused or failed a submission; nothing is left running."""


class OutcomeUnknownError(AjError):
    """A write may or may not have happened: reconcile before trying again."""

    exit_code: ClassVar[int] = 4


class InterruptedByUser(AjError):
    """Ctrl-C: says what goes on and how to follow it."""

    exit_code: ClassVar[int] = 130


class InternalError(AjError):
    """A fault of aj itself; the hint names its log."""

    exit_code: ClassVar[int] = 70


def recast(error: AjError, kind: type[E], before: str = "") -> E:
    """The same words and codes as another kind of error, `before` in front of the message."""
    return kind(before + error.message, **error.details())


def to_wire(error: AjError) -> dict[str, Any]:
    """The `error` object of the daemon's answers and of `--json` documents (keys: json-output, openapi.yaml)."""
    return {"type": type(error).__name__, "message": error.message, **error.details()}


def from_wire(body: Mapping[str, Any]) -> AjError:
    """The concrete error that `to_wire` described; a type this version does not know becomes an `AjError`."""
    kind = _by_name(AjError).get(str(body.get("type")), AjError)
    return kind(str(body.get("message", "")), **{name: body.get(name) for name in _DETAILS})


def _by_name(kind: type[AjError]) -> dict[str, type[AjError]]:
    below = (_by_name(each) for each in kind.__subclasses__())
    return {kind.__name__: kind, **{name: each for found in below for name, each in found.items()}}
