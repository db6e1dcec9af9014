"""The HTTP application: routes, responses and streams of events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftlens.core.version import __version__
from draftlens.engine import Engine
from draftlens.models.known_pairs import EMBEDDED
from draftlens.serve.answering import Answer, Answering
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.guard import Guard, ServerState
from draftlens.serve.metrics import Metrics
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    parse,
    usage,
)
from draftlens.serve.warm_up import warm_up

Body = TypeVar("Body", bound=GenerationRequest)

HUNG_UP = 499
"""Status in the log where the client has gone."""

_log = logging.getLogger("draftlens.serve")


def create_app(engine: Engine, options: ServeOptions | None = None) -> FastAPI:
    """A server's application for an engine. It answers once its start-up has run a request."""
    options = options or ServeOptions()
    answering = Answering(engine, options)
    state = ServerState()
    metrics = Metrics(answering.scheduler)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(warm_up(answering, state))
        try:
            yield
        finally:
            warming.cancel()
            await asyncio.to_thread(answering.close)

    # Its own pages would load scripts from the network.
    app = FastAPI(
        title="draftlens", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.server = state
    app.state.answering = answering
    app.add_middleware(Guard, state=state, options=options, metrics=metrics)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ApiError, _http_error)
    _add_pages(app, engine, answering, state, metrics)
    _add_answers(app, options, answering, metrics)
    return app


def _add_pages(
    app: FastAPI, engine: Engine, answering: Answering, state: ServerState, metrics: Metrics
) -> None:
    created = int(time.time())
    page = (files("draftlens.serve") / "page.html").read_text(encoding="utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _PAGE_POLICY})

    @app.get("/health")
    async def health() -> Response:
        if state.closing or not state.warm or not answering.scheduler.alive:
            return ApiError(503, "the server does not answer now", code="not_ready").response()
        return JSONResponse({"status": "ok"})

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/metrics")
    async def scrape() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != answering.model:
            raise ApiError(404, "there is no such model here", "model", "model_not_found")
        return card

    card = {
        "id": answering.model,
        "object": "model",
        "created": created,
        "owned_by": "draftlens",
        "max_model_len": answering.max_positions,
        "draftlens": {
            "draft": None if engine.draft is None else engine.draft.name,
            "modalities": sorted(engine.target.backbone.modalities),
            "embedded": engine.target.name == EMBEDDED,
            "max_new_tokens": answering.options.max_new_tokens,
        },
    }


def _add_answers(
    app: FastAPI, options: ServeOptions, answering: Answering, metrics: Metrics
) -> None:
    def schema(kind: type[GenerationRequest]) -> dict[str, Any]:
        content = {"application/json": {"schema": kind.model_json_schema()}}
        return {"requestBody": {"content": content, "required": True}}

    @app.post("/v1/chat/completions", openapi_extra=schema(ChatRequest))
    async def chat(request: Request) -> Response:
        async def answer(body: ChatRequest) -> Response:
            answers = [await answering.chat(body, request.state.client)]
            response = _Answers(answers, body, _Chat(answering.model), metrics, request)
            return await response.sent(options.keep_alive)

        return await _answered(request, options, ChatRequest, answer)

    @app.post("/v1/completions", openapi_extra=schema(CompletionRequest))
    async def complete(request: Request) -> Response:
        async def answer(body: CompletionRequest) -> Response:
            answers = await answering.complete(body, request.state.client)
            response = _Answers(answers, body, _Completion(answering.model), metrics, request)
            return await response.sent(options.keep_alive)

        return await _answered(request, options, CompletionRequest, answer)


class _Chat:
    """The form of responses to messages."""

    def __init__(self, model: str) -> None:
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    def first(self, index: int) -> dict[str, Any] | None:
        """The event before the first text of a choice, if there is one."""
        return self._event(index, {"role": "assistant", "content": ""})

    def gained(self, index: int, text: str) -> dict[str, Any]:
        return self._event(index, {"content": text})

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        return self._event(index, {}, reason)

    def event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "choices": choices}

    def whole(self, texts: Sequence[str], reasons: Sequence[str | None]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": reason,
            }
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return {**self._head, "object": "chat.completion", "choices": choices}

    def _event(
        self, index: int, delta: dict[str, Any], reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self.event([choice])


class _Completion(_Chat):
    """The form of responses to prompts."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._head |= {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion"}

    def first(self, index: int) -> None:
        return None

    def gained(self, index: int, text: str) -> dict[str, Any]:
        return self._choice(index, text, None)

    def ended(self, index: int, reason: str) -> dict[str, Any]:
        return self._choice(index, "", reason)

    def whole(self, texts: Sequence[str], reasons: Sequence[str | None]) -> dict[str, Any]:
        pairs = enumerate(zip(texts, reasons, strict=True))
        choices = [self._choice(index, *pair)["choices"][0] for index, pair in pairs]
        return self.event(choices)

    def _choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        return self.event(
            [{"index": index, "text": text, "logprobs": None, "finish_reason": reason}]
        )


class _Answers:
    """The answers of one request, whose choices follow each other."""

    def __init__(
        self,
        answers: list[Answer],
        body: GenerationRequest,
        form: _Chat,
        metrics: Metrics,
        request: Request,
    ) -> None:
        self._answers = answers
        self._body = body
        self._form = form
        self._metrics = metrics
        self._log = request.state.log
        self._begun: set[int] = set()

    async def sent(self, keep_alive: float) -> Response:
        """The whole response, or one that streams from the first token on."""
        first: asyncio.Task[list[dict[str, Any]]] | None = None
        try:
            if not self._body.stream:
                return JSONResponse(await self._whole())
            # An error before the first token has a status of its own.
            first = asyncio.create_task(self._next_events())
            await asyncio.wait([first], timeout=keep_alive)
            if first.done():
                first.result()
            return _EventStream(self, self._events(first, keep_alive))
        except BaseException:
            if first is not None:
                first.cancel()
            self.close()
            raise

    def close(self) -> None:
        """End the answers, if they have not ended."""
        for answer in self._answers:
            answer.stream.cancel()

    async def _whole(self) -> dict[str, Any]:
        for answer in self._answers:
            while not answer.stream.done:
                await answer.next_round()
        rows = [row for answer in self._answers for row in answer.rows]
        whole = self._form.whole(
            [row.text.text for row in rows], [row.finish_reason for row in rows]
        )
        self._record()
        whole["usage"] = self._usage()
        if self._body.draftlens:
            whole["draftlens"] = self._details()
        return whole

    async def _next_events(self) -> list[dict[str, Any]]:
        """Events of the next round of the first answer that goes on; none at the end."""
        first = 0
        for answer in self._answers:
            if not answer.stream.done:
                events: list[dict[str, Any]] = []
                for row, pieces in await answer.next_round():
                    events += self._events_of(answer, row, first + row, pieces)
                return events
            first += len(answer.rows)
        return []

    async def _events(
        self, first: asyncio.Task[list[dict[str, Any]]], keep_alive: float
    ) -> AsyncIterator[str]:
        """Events, with a comment line in each long silence; an error is the last event."""
        task = first
        try:
            while True:
                await asyncio.wait([task], timeout=keep_alive)
                if not task.done():
                    yield ": waiting\n\n"
                    continue
                for event in task.result():
                    yield _line(self._with_usage(event))
                if all(answer.stream.done for answer in self._answers):
                    break
                task = asyncio.create_task(self._next_events())
            self._record()
            for event in self._last_events():
                yield _line(event)
        except Exception as error:
            yield _line(api_error(error).body())
        finally:
            task.cancel()
            self.close()
        yield "data: [DONE]\n\n"

    def _events_of(
        self, answer: Answer, row: int, index: int, pieces: list[tuple[str, bool]]
    ) -> list[dict[str, Any]]:
        events = []
        if index not in self._begun:
            self._begun.add(index)
            events.append(self._form.first(index))
        if pieces:
            event = self._form.gained(index, "".join(text for text, _ in pieces))
            if self._body.draftlens:
                passes = answer.stream.stats.passes
                tokens = answer.num_completion
                event["draftlens"] = {"pieces": pieces, "tokens": tokens, "passes": passes}
            events.append(event)
        reason = answer.rows[row].finish_reason
        if reason is not None:
            events.append(self._form.ended(index, reason))
        return [event for event in events if event is not None]

    def _with_usage(self, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, "usage": None} if self._body.includes_usage else event

    def _last_events(self) -> list[dict[str, Any]]:
        if not self._body.includes_usage and not self._body.draftlens:
            return []
        event = self._form.event([])
        if self._body.includes_usage:
            event["usage"] = self._usage()
        if self._body.draftlens:
            event["draftlens"] = self._details()
        return [event]

    def _usage(self) -> dict[str, Any]:
        predictions = [answer.prediction for answer in self._answers]
        return usage(
            sum(answer.num_prompt for answer in self._answers),
            sum(answer.num_completion for answer in self._answers),
            predictions[0],
        )

    def _details(self) -> Any:
        details = [answer.details() for answer in self._answers]
        return details[0] if len(details) == 1 else details

    def _record(self) -> None:
        for answer in self._answers:
            self._metrics.record(answer)
            self._log |= {
                "prompt_tokens": answer.num_prompt,
                "completion_tokens": answer.num_completion,
                **answer.details(),
            }


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


class _EventStream(StreamingResponse):
    """Events until the last one or until the client hangs up, which ends the answers."""

    def __init__(self, answers: _Answers, events: AsyncIterator[str]) -> None:
        # No proxy may hold events back.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()  # also if no event was asked for


async def _answered(
    request: Request,
    options: ServeOptions,
    kind: type[Body],
    answer: Callable[[Body], Awaitable[Response]],
) -> Response:
    """The response to a request, or that of an error."""
    try:
        body = parse(kind, await _json_of(request, options.max_body_bytes))
        return await _unless_gone(request, answer(body))
    except ClientDisconnect:
        return Response(status_code=HUNG_UP)
    except Exception as error:
        shown = api_error(error)
        if shown.status == 500:
            _log.exception("a request failed")
        request.state.log["error"] = type(error).__name__
        return shown.response()


async def _unless_gone(request: Request, work: Awaitable[Response]) -> Response:
    """The response, unless the client hangs up before, which ends the work."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnect_of(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _disconnect_of(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _json_of(request: Request, most: int) -> Any:
    """The body as JSON. Raises `ApiError` for a wrong type, size or syntax."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page of another site can send without permission
        raise ApiError(415, "the body has the type application/json")
    stated = request.headers.get("content-length", "")
    too_large = ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")
    if stated.isdigit() and int(stated) > most:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not valid JSON") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    status = getattr(error, "status_code", 500)
    messages = {404: "there is no such path here", 405: "the method is not allowed here"}
    return ApiError(status, messages.get(status, "the request is not valid")).response()


_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; media-src data: blob:; connect-src 'self'; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'"
)
