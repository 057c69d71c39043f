"""One submission as the client lives through it: sent, perhaps followed, perhaps interrupted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from aj.client.call import Call
from aj.client.console import Answer, Console
from aj.client.follow import Follower
from aj.client.progress import progress
from aj.client.show import show_result, way_on
from aj.shared.errors import AjError, InputError, InterruptedByUser, OutcomeUnknownError, from_wire, to_wire
from aj.shared.jsonio import Json
from aj.shared.model import JobResult, JobSpec, Status, to_json

if TYPE_CHECKING:
    from aj.sdk.client import Client

COMPLETED = "Completed"
_ABSENT = dict.fromkeys(field.name for field in fields(JobResult))


class JobFailedError(AjError):
    """The job was submitted and ran, but did not complete."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One `JobSpec` on its way. `follow` None means as the backend does; `expect` is a saved plan's payload digest."""

    call: Call
    spec: JobSpec
    queue: bool
    follow: bool | None
    expect: str | None

    def answer(self) -> Answer:
        """Submit, follow where that is due, and say what became of it."""
        try:
            self._check_follow()
            client = self.call.connect()
            result = self._send(client)
        except AjError as error:
            return failed(document_of(self.spec, "failed"), error)
        if result["error"]:
            return failed(result, from_wire(result["error"]))
        follows = self._attached() and not self.queue if self.follow is None else self.follow
        return self._followed(client, result) if follows else Answer(result, lambda out: _show_sent(out, result))

    def _send(self, client: Client) -> Mapping[str, Any]:
        try:
            with progress(self.call.console) as emit:
                result = client.submit(self.spec, self.call.caller(), queue=self.queue, expect=self.expect, emit=emit)
        except KeyboardInterrupt:
            raise InterruptedByUser(
                f"interrupted; the daemon goes on submitting `{self.spec.name}`",
                hint=f"`aj queue show {self.spec.identity.id}` tells what became of it, "
                f"`aj job logs -f {self.spec.identity.id}` follows it",
            ) from None
        return {"kind": "submission_result", **to_json(result)}

    def _check_follow(self) -> None:
        from aj.shared.spec import describe

        if self.follow and not describe(self.spec.service).managed:
            message = f"aj does not follow jobs of `{self.spec.service}`"
            raise InputError(message, where="--follow", hint="the result names the command that shows the log")

    def _attached(self) -> bool:
        from aj.shared.spec import describe

        return self.spec.via is None and describe(self.spec.service).attached

    def _followed(self, client: Client, result: Mapping[str, Any]) -> Answer:
        console, name = self.call.console, str(result["azure_name"])
        several = self.spec.shape.nodes * self.spec.shape.processes_per_node > 1
        follower = Follower(client.job_logs, name, console.stream, prefixed=several)
        try:
            show_result(console.say, result)
            console.flush()
            follower.to_the_end()
            return _ended(client.job(name), follower, result)
        except KeyboardInterrupt:
            return self._interrupted(client, follower, result)
        except AjError as error:
            return failed(result, error)

    def _interrupted(self, client: Client, follower: Follower, result: Mapping[str, Any]) -> Answer:
        name = follower.name
        if not self._attached():
            stopped = InterruptedByUser(
                f"no longer following `{name}`, which goes on",
                hint=f"`aj job logs -f {name}` follows it again, `aj job cancel {name}` ends it",
            )
            return failed(result, stopped)
        self.call.console.say(f"canceling `{name}`; Ctrl-C again leaves at once")
        self.call.console.flush()
        canceled = client.cancel_job(name)
        follower.so_far()
        return failed({**result, "job_status": canceled["status"]}, InterruptedByUser(f"`{name}` was canceled"))


def document_of(spec: JobSpec, status: Status) -> dict[str, Json]:
    """The `submission_result` of a job that has met no daemon."""
    names = (spec.identity.id, spec.name, spec.backend, spec.template.name)
    shape = (spec.shape.nodes, spec.shape.processes, spec.shape.processes_per_node)
    return {"kind": "submission_result", **to_json(JobResult(status, *names, *shape))}


def failed(known: Mapping[str, Json], error: AjError) -> Answer:
    """The `submission_result` with its error: `failed`, `unknown` when the job may exist; a submitted one stays so."""
    status = known.get("status", "failed")
    if isinstance(error, OutcomeUnknownError) or (isinstance(error, InterruptedByUser) and status == "failed"):
        status = "unknown"
    fixed = {"status": status, "error": to_wire(error)}
    document = {"kind": "submission_result", **_ABSENT, **known, **fixed}
    return Answer(document, lambda out: out.error(error), error.exit_code)


def _show_sent(out: Console, result: Mapping[str, Any]) -> None:
    show_result(out.painted, result)
    if way := way_on(result):
        out.painted(f"  follow  {way}")


def _ended(job: Mapping[str, Any], follower: Follower, result: Mapping[str, Any]) -> Answer:
    ended = {**result, "job_status": job["status"]}
    if job["status"] == COMPLETED:
        return Answer(ended, lambda out: out.say(f"{follower.name} completed", "green"))
    # the process that ended the job, as far as its backend tells
    culprits = (str(each["rank"]) for each in job.get("members", ()) if each["exit_code"] == job.get("exit_code"))
    stream = next(culprits, "0")
    last = follower.tails.get(stream, "")
    reason = f": {job['reason']}" if job.get("reason") else ""
    error = JobFailedError(
        f"job `{follower.name}` {str(job['status']).lower()}{reason}",
        hint=f"`aj job logs {follower.name}` shows all of it",
    )
    answer = failed({**ended, "note": last or None}, error)

    def show(out: Console) -> None:
        if last and follower.prefixed:
            out.say(f"the last lines of process {stream}:", "bold")
            out.say(last)
        out.error(error)

    return Answer(answer.document, show, answer.exit_code)
