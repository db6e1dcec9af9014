"""The HTTP application: routes, responses and streams of events."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

from draftlens.core.version import __version__
from draftlens.engine import Engine
from draftlens.models.known_pairs import EMBEDDED
from draftlens.serve.answering import Answer, Answering
from draftlens.serve.description import body_of, description
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.guard import Guard, ServerState
from draftlens.serve.metrics import Metrics
from draftlens.serve.options import ServeOptions
from draftlens.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    load_json,
    parse,
)
from draftlens.serve.responses import ChatForm, CompletionForm, Responder
from draftlens.serve.sharing import Claim
from draftlens.serve.warm_up import warm_up

Body = TypeVar("Body", bound=GenerationRequest)

SMALL_BODY = 2**16
"""Bytes of a body that takes less time to parse than a thread to start."""

_LEAST_RATE = 2**16
"""Bytes of a body in a second."""

HUNG_UP = 499
"""Status in the log where the client has gone."""

_log = logging.getLogger("draftlens.serve")


def create_app(engine: Engine, options: ServeOptions | None = None) -> FastAPI:
    """A server's application for an engine. It answers once its start-up has run a request."""
    options = options or ServeOptions()
    answering = Answering(engine, options)
    state = ServerState()
    metrics = Metrics(answering.scheduler, answering.prompt_cache)

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
    app.openapi = partial(description, app)  # type: ignore[method-assign]
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
    page_headers = {"Content-Security-Policy": _policy_of(page), "Referrer-Policy": "no-referrer"}

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers=page_headers)

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
    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat(request: Request) -> Response:
        return await _answered(request, ChatRequest, answering.chat, ChatForm)

    @app.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def complete(request: Request) -> Response:
        return await _answered(request, CompletionRequest, answering.complete, CompletionForm)

    async def _answered(
        request: Request,
        kind: type[Body],
        begin: Callable[[Body, str], Awaitable[list[Answer]]],
        form: type[ChatForm],
    ) -> Response:
        """The response to a request, or that of an error."""
        client = request.state.client
        claim = Claim(answering.bodies, client)

        async def respond(content: bytearray) -> Response:
            body = await _parsed(kind, content, options)
            answers = await begin(body, client)
            body.drop_prompt()
            claim.release()
            responder = Responder(answers, body, form(answering.model), metrics, request)
            return await responder.sent(options.keep_alive)

        try:
            content = await _content_of(request, options, claim)
            return await _unless_gone(request, respond(content))
        except ClientDisconnect:
            return Response(status_code=HUNG_UP)
        except Exception as error:
            failure = api_error(error)
            if failure.status == 500:
                _log.exception("a request failed")
            request.state.log["error"] = type(error).__name__
            return failure.response()
        finally:
            claim.release()


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


async def _content_of(request: Request, options: ServeOptions, claim: Claim) -> bytearray:
    """The body. Raises `ApiError` for a wrong type or size, if it is slow, or if others leave no
    room for it."""
    most = options.max_body_bytes
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # which no page of another site can send without permission
        raise ApiError(415, "the body has the type application/json")
    stated = request.headers.get("content-length", "")
    too_large = ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")
    if stated.isdigit() and int(stated) > most:
        raise too_large
    body = bytearray()
    last = asyncio.get_running_loop().time() + options.body_seconds
    try:
        async with asyncio.timeout_at(last) as timeout:
            async for chunk in request.stream():
                claim.take(len(chunk))
                body += chunk
                if len(body) > most:
                    raise too_large
                timeout.reschedule(last + len(body) / _LEAST_RATE)
    except TimeoutError:
        raise ApiError(408, "the body comes too slowly", code="timeout") from None
    return body


async def _parsed(kind: type[Body], content: bytearray, options: ServeOptions) -> Body:
    """The request; a large one is parsed in a thread, and `content` is emptied."""

    def parsed() -> Body:
        body = load_json(content, options.max_items)
        content.clear()
        return parse(kind, body, options)

    return parsed() if len(content) <= SMALL_BODY else await asyncio.to_thread(parsed)


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    status = getattr(error, "status_code", 500)
    messages = {404: "there is no such path here", 405: "the method is not allowed here"}
    return ApiError(status, messages.get(status, "the request is not valid")).response()


def _policy_of(page: str) -> str:
    """The Content-Security-Policy of a page, which runs its own script and style only."""

    def own(tag: str) -> str:
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src 'sha256-{own('script')}'; "
        f"style-src 'sha256-{own('style')}'; img-src data: blob:; media-src data: blob:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
