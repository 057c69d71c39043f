"""What the service's published contract allows: operations with their parameters, request bodies, answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from tests.azure.arm.refusals import Refused

API_VERSION = "2024-04-01"

REQUEST_BODIES = {
    "Jobs_CreateOrUpdate": ("aml-commandjob.contract", "JobPut"),
    "Datastores_CreateOrUpdate": ("aml-datastore-blob.contract", "DatastorePut"),
    "EnvironmentVersions_CreateOrUpdate": ("aml-environmentversion.contract", "EnvironmentVersionPut"),
}
"""Operation -> schema file and `$def` of its body; an operation that is not here takes no body."""

_ANSWERS = "aml-responses.contract"
_NO_SCHEMA = {"DatastoreSecrets": None, "CodeVersionResource": None}
_FORMATS = {
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "duration": r"P(?=.)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)",
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the contract."""

    name: str
    method: str
    pattern: re.Pattern[str]
    parameters: Mapping[str, Mapping[str, Any]]
    answers: Mapping[int, str | None]


class Contract:
    """The folder of published schemas, and the checks they make possible."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        rows = json.loads((folder / "aml-operations.json").read_text())["operations"]
        self.operations = {name: _operation(name, row) for name, row in rows.items()}

    def find(self, method: str, path: str) -> tuple[Operation, dict[str, str]]:
        """The operation a request means and its path parameters; Refused when there is none."""
        allowed = []
        for operation in self.operations.values():
            found = operation.pattern.fullmatch(path)
            if found is None:
                continue
            if operation.method == method:
                return operation, {_restore(name): value for name, value in found.groupdict().items()}
            allowed.append(operation.method)
        if allowed:
            raise Refused(
                405, "MethodNotAllowed", f"The method '{method}' is not allowed; allowed: {', '.join(allowed)}."
            )
        raise Refused(400, "InvalidResourceType", f"The contract has no operation `{method} {path}`.")

    def check_request(
        self, operation: Operation, path: Mapping[str, str], query: Mapping[str, str], body: bytes
    ) -> Any:
        """The parsed body of a request that keeps the contract (None for an empty one); else Refused."""
        check_api_version(query, {API_VERSION})
        for name in query:
            if name not in operation.parameters:
                raise Refused(400, "InvalidParameter", f"Unknown query parameter '{name}'.")
        for name, rule in operation.parameters.items():
            value = path.get(name) if rule["in"] == "path" else query.get(name)
            _check_parameter(name, rule, value)
        named = REQUEST_BODIES.get(operation.name)
        if named is None:
            if body not in (b"", b"{}", b"null"):
                raise Refused(400, "InvalidRequestContent", f"`{operation.name}` takes no body.")
            return None
        document = parse_json(body)
        problems = self.problems(*named, document)
        if problems:
            raise Refused(400, "ValidationError", f"The request is invalid: {'; '.join(problems)}")
        return document

    def answer_problems(self, operation: Operation, status: int, document: Any) -> list[str]:
        """What is wrong with our own answer; empty when it is what the service could send."""
        if status >= 400:
            return self.problems(_ANSWERS, "Error", document)
        if status not in operation.answers:
            return [f"`{operation.name}` never answers {status}"]
        name = operation.answers[status]
        if name is None:
            return [] if document is None else [f"`{operation.name}` {status} has no body"]
        if name in _NO_SCHEMA:
            return [] if isinstance(document, dict) else ["an object was expected"]
        return self.problems(_ANSWERS, name, document)

    def problems(self, schema: str, definition: str, document: Any) -> list[str]:
        """Violations of one `$def`, at most five, as `place: message`."""
        found = []
        for error in _validator(self._folder / f"{schema}.schema.json", definition).iter_errors(document):
            deepest = _deepest(error)
            found.append(f"/{'/'.join(map(str, deepest.absolute_path))}: {deepest.message[:300]}")
        return found[:5]


def check_api_version(query: Mapping[str, str], known: set[str]) -> None:
    """Refused, in ARM's words, when `api-version` is missing or not one of `known`."""
    version = query.get("api-version")
    if not version:
        raise Refused(400, "MissingApiVersionParameter", "The api-version query parameter (?api-version=) is required.")
    if version not in known:
        message = f"No registered resource provider found for API version '{version}'. Supported: {sorted(known)}."
        raise Refused(400, "NoRegisteredProviderFound", message)


def parse_json(body: bytes) -> Any:
    """A request's JSON; Refused when it is none."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise Refused(400, "InvalidRequestContent", f"The request content was invalid: {error}") from error


def _operation(name: str, row: Mapping[str, Any]) -> Operation:
    pattern = re.sub(r"\\{(\w+)\\}", lambda hit: f"(?P<p_{hit[1]}>[^/]+)", re.escape(row["path"]))
    parameters = {rule["name"]: rule for rule in row["parameters"]}
    answers = {int(status): answer["schema"] for status, answer in row["responses"].items() if status != "default"}
    # ARM compares the fixed parts of a path without regard to case.
    return Operation(name, row["method"], re.compile(pattern, re.IGNORECASE), parameters, answers)


def _restore(group: str) -> str:
    return group.removeprefix("p_")


def _check_parameter(name: str, rule: Mapping[str, Any], value: str | None) -> None:
    if value is None:
        if rule.get("required"):
            raise Refused(400, "InvalidParameter", f"'{name}' is required.")
        return
    pattern = rule.get("pattern")
    if pattern and re.search(pattern, value) is None:
        raise Refused(400, "InvalidParameter", f"'{name}' must match the pattern '{pattern}': '{value}'.")
    if not rule.get("minLength", 0) <= len(value) <= rule.get("maxLength", len(value)):
        raise Refused(400, "InvalidParameter", f"'{name}' has a wrong length: '{value}'.")
    if "enum" in rule and value not in rule["enum"]:
        raise Refused(400, "InvalidParameter", f"'{name}' must be one of {rule['enum']}: '{value}'.")
    if rule["type"] == "integer" and not value.isdecimal():
        raise Refused(400, "InvalidParameter", f"'{name}' must be a number: '{value}'.")
    if rule["type"] == "boolean" and value not in ("true", "false"):
        raise Refused(400, "InvalidParameter", f"'{name}' must be true or false: '{value}'.")


@cache
def _validator(file: Path, definition: str) -> Draft202012Validator:
    schema = json.loads(file.read_text())
    return Draft202012Validator({**schema, "$ref": f"#/$defs/{definition}"}, format_checker=_formats())


@cache
def _formats() -> FormatChecker:
    checker = FormatChecker(formats=())
    for name, pattern in _FORMATS.items():
        checker.checks(name)(_matcher(re.compile(pattern)))
    return checker


def _matcher(pattern: re.Pattern[str]) -> Any:
    return lambda value: not isinstance(value, str) or pattern.fullmatch(value) is not None


def _deepest(error: Any) -> Any:
    """The innermost cause: an `if/then` says only that `then` does not hold."""
    while error.context:
        error = max(error.context, key=lambda inner: len(inner.absolute_path))
    return error
