"""The daemon's routes, as `schemas/openapi.yaml` describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request  # noqa: TID253
from starlette.responses import Response, StreamingResponse  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from aj.server.bodies import (
    PlanRequest,
    Submission,
    cleaning,
    cursor,
    json_body,
    limit,
    plan_request,
    shutdown_request,
    submission,
)
from aj.server.boundary import attempt
from aj.server.context import Context
from aj.server.events import Feed
from aj.server.jobs import View, Wanted
from aj.server.life import Life
from aj.server.queue import FINISHED
from aj.server.streams import follow
from aj.server.worker import Work
from aj.shared import errors
from aj.shared.caller import CALLER_HEADER, from_header
from aj.shared.errors import AjError, DaemonNotRunningError
from aj.shared.fingerprint import ROOT_HEADER
from aj.shared.jsonio import Json, compact
from aj.shared.model import JobResult, Plan, to_json

T = TypeVar("T")
RECORDS_AT_MOST = 10_000
STATUS: tuple[tuple[type[AjError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.ConflictError, 409),
    (errors.InputError, 400),
    (errors.DaemonError, 503),
    (errors.SubmissionError, 502),
    (errors.OutcomeUnknownError, 502),
    (errors.ChildError, 502),
    (errors.AzureError, 502),
    (AjError, 500),
)
"""The first class that fits gives the HTTP status."""


async def info(request: Request) -> Response:
    """The handshake."""
    life = _life(request)
    return _reply(await _within(life, life.quick, life.info))


async def shutdown(request: Request) -> Response:
    """Drain and leave, or leave at once."""
    life, body = _life(request), await json_body(request)
    return _reply(await _within(life, life.quick, lambda: life.shut_down(shutdown_request(body))))


async def plans(request: Request) -> Response:
    """Judge what a submission would do; events, then the plan."""
    life, body = _life(request), await json_body(request)
    life.contexts.refuse_when_stopping()
    asked = await _within(life, life.quick, partial(plan_request, body))
    context = await _within(life, life.quick, partial(life.contexts.enter, *_opening(request)))
    errand = _Errand()
    life.apart(life.build, partial(errand.run, life, context, asked))
    return _lines(follow(errand.feed, errand.outcome))


async def submissions(request: Request) -> Response:
    """Accept a submission and follow it to its end, or with `queue` until it has its ticket."""
    life, body = _life(request), await json_body(request)
    life.contexts.refuse_when_stopping()
    asked = await _within(life, life.quick, partial(submission, body))
    context = await _within(life, life.quick, partial(life.contexts.enter, *_opening(request)))
    try:
        work = await _within(life, life.quick, partial(context.accept, asked.spec))
    except AjError:
        life.contexts.leave(context)
        raise
    life.apart(life.build, partial(_prepare, life, context, work, asked))

    async def outcome() -> Json | None:
        result = work.result or _parked(context, work, asked)
        return result and to_json(replace(result, ticket=work.ticket))

    return _lines(follow(work.feed, outcome))


async def records(request: Request) -> Response:
    """The journal, newest first."""
    most = limit(request.query_params.get("limit"), RECORDS_AT_MOST)

    def read(context: Context) -> Json:
        found, warnings = context.journal.newest(most)
        return {"records": found, "warnings": [to_json(warning) for warning in warnings]}

    return await _answer(request, "quick", read)


async def queue(request: Request) -> Response:
    """All entries."""
    return await _answer(
        request,
        "quick",
        lambda context: {
            "entries": [entry.document() for entry in context.entries()],
            "warnings": [to_json(notice) for notice in context.notices()],
        },
    )


async def queue_entry(request: Request) -> Response:
    """One entry."""
    ref = request.path_params["ref"]
    return await _answer(request, "quick", lambda context: context.find(ref).document())


async def queue_cancel(request: Request) -> Response:
    """End a pending entry."""
    ref = request.path_params["ref"]
    return await _answer(request, "quick", lambda context: context.cancel(ref).document())


async def queue_events(request: Request) -> Response:
    """Follow an entry: its events so far, the coming ones, and the entry when it has ended."""
    life, ref = _life(request), request.path_params["ref"]

    def look(context: Context) -> tuple[Json, Work | None]:
        entry = context.find(ref)
        return entry.document(), context.work(entry.ticket)

    document, work = await _with_context(request, life.quick, look)
    ticket = document["ticket"]

    async def outcome() -> Json | AjError | None:
        if work is None and document["state"] in FINISHED:
            return document
        if work is not None and work.result is None:
            return _stopping(life, work)
        return await _ended(request, ticket)

    return _lines(follow(work.feed if work else Feed(), outcome))


async def job_list(request: Request) -> Response:
    """The jobs of the backends that the project uses."""
    query = request.query_params
    most = limit(query.get("limit"), RECORDS_AT_MOST)
    asked = Wanted(most, **{key: query.get(key) for key in ("status", "experiment", "backend")})

    def read(view: View) -> Json:
        jobs, notices = view.list_jobs(asked)
        return {"jobs": jobs, "warnings": [to_json(notice) for notice in notices]}

    return await _look(request, read)


async def job(request: Request) -> Response:
    """One job."""
    ref = request.path_params["ref"]
    return await _look(request, lambda view: {"job": view.show(ref)})


async def job_logs(request: Request) -> Response:
    """A page of a job's output."""
    ref, since = request.path_params["ref"], cursor(request.query_params.get("cursor"))
    stream = request.query_params.get("stream")
    return await _look(request, lambda view: view.logs(ref, since, stream))


async def job_cancel(request: Request) -> Response:
    """End a job."""
    ref = request.path_params["ref"]
    return await _look(request, lambda view: view.cancel(ref))


async def azure(request: Request) -> Response:
    """What the caller can see in Azure."""
    topic = request.path_params["topic"]
    caller = from_header(request.headers.get(CALLER_HEADER))

    def read(context: Context) -> Json:
        from aj.server.azure.views import view

        return view(topic, context.home, caller)

    return await _answer(request, "remote", read)


async def cache(request: Request) -> Response:
    """The archives in the caller's cache."""
    caller = from_header(request.headers.get(CALLER_HEADER))

    def read(_: Context) -> Json:
        from aj.server.cache import show

        return show(caller)

    return await _answer(request, "quick", read)


async def cache_gc(request: Request) -> Response:
    """Remove archives that nobody needs, or say which those are."""
    caller, asked = from_header(request.headers.get(CALLER_HEADER)), cleaning(await json_body(request))

    def work(_: Context) -> Json:
        from aj.server.cache import clean

        return clean(caller, asked)

    return await _answer(request, "quick", work)


ROUTES = [
    Route("/v1/info", info),
    Route("/v1/shutdown", shutdown, methods=["POST"]),
    Route("/v1/plans", plans, methods=["POST"]),
    Route("/v1/submissions", submissions, methods=["POST"]),
    Route("/v1/records", records),
    Route("/v1/queue", queue),
    Route("/v1/queue/{ref}", queue_entry),
    Route("/v1/queue/{ref}/cancel", queue_cancel, methods=["POST"]),
    Route("/v1/queue/{ref}/events", queue_events),
    Route("/v1/jobs", job_list),
    Route("/v1/jobs/{ref}", job),
    Route("/v1/jobs/{ref}/logs", job_logs),
    Route("/v1/jobs/{ref}/cancel", job_cancel, methods=["POST"]),
    Route("/v1/azure/{topic}", azure),
    Route("/v1/cache", cache),
    Route("/v1/cache/gc", cache_gc, methods=["POST"]),
]


def refusal(error: AjError, status: int | None = None) -> Response:
    """An error as an answer."""
    fitting = next(code for kind, code in STATUS if isinstance(error, kind))
    return _reply({"error": errors.to_wire(error)}, status or fitting)


class _Errand:
    """A plan in the making: its events, and its outcome when there is one."""

    def __init__(self) -> None:
        self.feed = Feed()
        self._outcome: Json | AjError | None = None

    def run(self, life: Life, context: Context, asked: PlanRequest) -> None:
        outcome = attempt(lambda: self._plan(context, asked))
        life.contexts.leave(context)
        self._outcome = outcome if isinstance(outcome, AjError) else to_json(outcome)
        self.feed.end()

    async def outcome(self) -> Json | AjError | None:
        return self._outcome

    def _plan(self, context: Context, asked: PlanRequest) -> Plan:
        submissions = context.workshop.submissions(context.home, asked.caller)
        judge = submissions.plan_offline if asked.offline else submissions.plan
        return judge(asked.spec, asked.caller, self.feed.emit)


def _prepare(life: Life, context: Context, work: Work, asked: Submission) -> None:
    context.prepare(work, asked.spec, asked.caller, asked.expect)
    life.contexts.leave(context)


def _parked(context: Context, work: Work, asked: Submission) -> JobResult | None:
    """The result of a submission that waits in the queue, when its client is not to wait with it."""
    if asked.queue and work.phase in ("waiting", "sending"):
        return work.so_far("queued", None)
    if context.stopping and work.phase == "waiting":
        return work.so_far("queued", "the daemon was stopped; this goes on with the next `aj` command in this project")
    return None


def _stopping(life: Life, work: Work) -> AjError | None:
    if life.contexts.stopping and work.phase == "waiting":
        return DaemonNotRunningError("the daemon is stopping, the entry stays queued", hint="`aj queue wait` again")
    return None


async def _ended(request: Request, ticket: str) -> Json:
    def read(context: Context) -> Json:
        return context.find(ticket).document()

    return await _with_context(request, _life(request).quick, read)


async def _look(request: Request, work: Callable[[View], Json]) -> Response:
    caller = from_header(request.headers.get(CALLER_HEADER))
    return await _answer(request, "remote", lambda context: work(View(context, caller)))


async def _answer(request: Request, lane: str, work: Callable[[Context], Json]) -> Response:
    return _reply(await _with_context(request, getattr(_life(request), lane), work))


async def _with_context(request: Request, lane: ThreadPoolExecutor, work: Callable[[Context], T]) -> T:
    life, opening = _life(request), _opening(request)

    def use() -> T:
        with life.contexts.use(*opening) as context:
            return work(context)

    return await _within(life, lane, use)


async def _within(life: Life, lane: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """What blocking work returns; what it raises has passed the error boundary."""
    outcome = await life.within(lane, lambda: attempt(work))
    if isinstance(outcome, AjError):
        raise outcome
    return outcome


def _opening(request: Request) -> tuple[str | None, Mapping[str, str]]:
    """Which project is meant, and the variables of who asks."""
    return request.headers.get(ROOT_HEADER), from_header(request.headers.get(CALLER_HEADER)).env


def _life(request: Request) -> Life:
    life = request.app.state.life
    assert isinstance(life, Life)
    return life


def _reply(document: Json, status: int = 200) -> Response:
    return Response(compact(document), status, media_type="application/json")


def _lines(content: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(content, media_type="application/x-ndjson")
