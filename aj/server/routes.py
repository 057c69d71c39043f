"""The daemon's routes, as `schemas/openapi.yaml` describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from starlette.requests import Request  # noqa: TID253
from starlette.responses import Response, StreamingResponse  # noqa: TID253
from starlette.routing import Route  # noqa: TID253

from aj.server import cache
from aj.server.bodies import JobRequest, cleaning, cursor, job_request, json_body, limit, shutdown_request
from aj.server.boundary import attempt
from aj.server.context import Context
from aj.server.events import Feed, follow
from aj.server.jobs import View, Wanted
from aj.server.life import Life
from aj.server.queue import FINISHED
from aj.server.worker import Work
from aj.shared import errors
from aj.shared.caller import CALLER_HEADER, from_header
from aj.shared.errors import AjError, DaemonNotRunningError
from aj.shared.fingerprint import ROOT_HEADER
from aj.shared.jsonio import Json, compact
from aj.shared.model import Caller, Emit, JobResult, Notice, to_json

T = TypeVar("T")
ROWS_AT_MOST = 10_000
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A request about one project; `path` has the names of its route."""

    context: Context
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Json

    @property
    def ref(self) -> str:
        """The entry or job that is meant."""
        return self.path["ref"]

    @property
    def jobs(self) -> View:
        """The project's jobs, for this caller."""
        return View(self.context, self.caller)

    @property
    def most(self) -> int:
        """Rows that are wanted."""
        return limit(self.query.get("limit"), ROWS_AT_MOST)


def _records(asked: Asked) -> Json:
    records, warnings = asked.context.journal.newest(asked.most)
    return {"records": records, "warnings": _notices(warnings)}


def _queue(asked: Asked) -> Json:
    entries = [entry.document() for entry in asked.context.queue.entries()]
    return {"entries": entries, "warnings": _notices(asked.context.queue.notices)}


def _jobs(asked: Asked) -> Json:
    wanted = Wanted(asked.most, **{key: asked.query.get(key) for key in ("status", "experiment", "backend")})
    jobs, warnings = asked.jobs.list_jobs(wanted)
    return {"jobs": jobs, "warnings": _notices(warnings)}


def _azure(asked: Asked) -> Json:
    from aj.server.azure.views import view

    return view(asked.path["topic"], asked.context.home, asked.caller)


def _notices(notices: Sequence[Notice]) -> list[Json]:
    return [to_json(notice) for notice in notices]


_OF_A_PROJECT: Sequence[tuple[str, str, str, Callable[[Asked], Json]]] = (
    ("GET", "/v1/records", "quick", _records),
    ("GET", "/v1/queue", "quick", _queue),
    ("GET", "/v1/queue/{ref}", "quick", lambda asked: asked.context.queue.find(asked.ref).document()),
    ("POST", "/v1/queue/{ref}/cancel", "quick", lambda asked: asked.context.cancel(asked.ref).document()),
    ("GET", "/v1/jobs", "remote", _jobs),
    ("GET", "/v1/jobs/{ref}", "remote", lambda asked: {"job": asked.jobs.show(asked.ref)}),
    (
        *("GET", "/v1/jobs/{ref}/logs", "remote"),
        lambda asked: asked.jobs.logs(asked.ref, cursor(asked.query.get("cursor")), asked.query.get("stream")),
    ),
    ("POST", "/v1/jobs/{ref}/cancel", "remote", lambda asked: asked.jobs.cancel(asked.ref)),
    ("GET", "/v1/azure/{topic}", "remote", _azure),
    ("GET", "/v1/cache", "quick", lambda asked: cache.show(asked.caller)),
    ("POST", "/v1/cache/gc", "quick", lambda asked: cache.clean(asked.caller, cleaning(asked.body))),
)
"""Method, path, lane, and what is done there: one document is the answer."""


def _one_document(lane: str, work: Callable[[Asked], Json]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        body = await json_body(request)

        def use(context: Context) -> Json:
            return work(Asked(context, _caller(request), request.path_params, request.query_params, body))

        return _reply(await _with_context(request, getattr(_life(request), lane), use))

    return endpoint


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
    life, asked, context = await _taken_on(request, {"offline"})
    feed, outcome = Feed(), Future[Json]()

    def work() -> None:
        plan = attempt(lambda: _plan(context, asked, feed.emit))
        life.contexts.leave(context)
        outcome.set_result(plan)
        feed.end()

    async def found() -> Json | AjError | None:
        return outcome.result() if outcome.done() else None

    life.apart(life.build, work)
    return _lines(follow(feed, found))


async def submissions(request: Request) -> Response:
    """Accept a submission and follow it to its end, or with `queue` until it has its ticket."""
    life, asked, context = await _taken_on(request, {"queue", "expect"})
    try:
        work = await _within(life, life.quick, partial(context.accept, asked.spec))
    except AjError:
        life.contexts.leave(context)
        raise

    def prepare() -> None:
        context.worker.prepare(work, asked.spec, asked.caller, asked.expect)
        life.contexts.leave(context)

    async def outcome() -> Json | None:
        result = work.result or _parked(context, work, asked)
        return result and to_json(replace(result, ticket=work.ticket))

    life.apart(life.build, prepare)
    return _lines(follow(work.feed, outcome))


async def queue_events(request: Request) -> Response:
    """Follow an entry: its events so far, the coming ones, and the entry when it has ended."""
    life, ref = _life(request), request.path_params["ref"]

    def look(context: Context) -> tuple[Json, Work | None]:
        entry = context.queue.find(ref)
        return entry.document(), context.worker.work(entry.ticket)

    document, work = await _with_context(request, life.quick, look)

    async def outcome() -> Json | AjError | None:
        if work is None and document["state"] in FINISHED:
            return document
        if work is not None and work.result is None:
            if life.contexts.stopping and work.phase == "waiting":
                text = "the daemon is stopping, the entry stays queued"
                return DaemonNotRunningError(text, hint="`aj queue wait` again")
            return None
        return await _with_context(
            request, life.quick, lambda context: context.queue.find(document["ticket"]).document()
        )

    return _lines(follow(work.feed if work else Feed(), outcome))


ROUTES = [
    Route("/v1/info", info),
    Route("/v1/shutdown", shutdown, methods=["POST"]),
    Route("/v1/plans", plans, methods=["POST"]),
    Route("/v1/submissions", submissions, methods=["POST"]),
    Route("/v1/queue/{ref}/events", queue_events),
    *(Route(path, _one_document(lane, work), methods=[method]) for method, path, lane, work in _OF_A_PROJECT),
]


def refusal(error: AjError, status: int | None = None) -> Response:
    """An error as an answer."""
    fitting = next(code for kind, code in STATUS if isinstance(error, kind))
    return _reply({"error": errors.to_wire(error)}, status or fitting)


def _plan(context: Context, asked: JobRequest, emit: Emit) -> Json:
    makers = context.workshop.submissions(context.home, asked.caller)
    judge = makers.plan_offline if asked.offline else makers.plan
    return to_json(judge(asked.spec, asked.caller, emit))


def _parked(context: Context, work: Work, asked: JobRequest) -> JobResult | None:
    """The result of a submission that waits in the queue, when its client is not to wait with it."""
    if asked.queue and work.phase in ("waiting", "sending"):
        return work.so_far("queued", None)
    if context.worker.stopping and work.phase == "waiting":
        return work.so_far("queued", "the daemon was stopped; this goes on with the next `aj` command in this project")
    return None


async def _taken_on(request: Request, own: Collection[str]) -> tuple[Life, JobRequest, Context]:
    """What is asked for, and its project, to be left when it is done."""
    life, body = _life(request), await json_body(request)
    life.contexts.refuse_when_stopping()
    asked = await _within(life, life.quick, partial(job_request, body, own))
    return life, asked, await _within(life, life.quick, partial(life.contexts.enter, *_opening(request)))


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
    return request.headers.get(ROOT_HEADER), _caller(request).env


def _caller(request: Request) -> Caller:
    return from_header(request.headers.get(CALLER_HEADER))


def _life(request: Request) -> Life:
    life = request.app.state.life
    assert isinstance(life, Life)
    return life


def _reply(document: Json, status: int = 200) -> Response:
    return Response(compact(document), status, media_type="application/json")


def _lines(content: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(content, media_type="application/x-ndjson")
