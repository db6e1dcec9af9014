"""The HTTP application: routes, responses and streams of events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from draftlens.core.version import __version__
from draftlens.engine import Engine
from draftlens.serve.answering import Answer, Answering
from draftlens.serve.completions import complete as complete_prompts
from draftlens.serve.description import body_of, description
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.guard import Guard, ServerState
from draftlens.serve.metrics import Metrics
from draftlens.serve.options import ServeOptions
from draftlens.serve.pages import add_pages
from draftlens.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    load_json,
    parse,
)
from draftlens.serve.responses import ChatForm, CompletionForm, Responder
from draftlens.serve.responses_api import ItemForm, ItemResponder, ResponsesRequest
from draftlens.serve.responses_api import respond as respond_in_items
from draftlens.serve.several import answerings_of
from draftlens.serve.sharing import Claim
from draftlens.serve.tracing import add_tracing
from draftlens.serve.warm_up import warm_up

Body = TypeVar("Body", bound=GenerationRequest)

SMALL_BODY = 2**16
"""Bytes of a body that takes less time to parse than a thread to start."""

_LEAST_RATE = 2**16
"""Bytes of a body in a second."""

HUNG_UP = 499
"""Status in the log where the client has gone."""

_log = logging.getLogger("draftlens.serve")


def create_app(
    engine: Engine, options: ServeOptions | None = None, further: Sequence[Engine] = ()
) -> FastAPI:
    """A server's application for an engine, and for further ones that clients choose by the names
    of their targets. It answers once its start-up has run a request of each.

    Raises:
        ConfigError: two models have one name.
    """
    options = options or ServeOptions()
    answerings = answerings_of([engine, *further], options)
    first, *_ = answerings.values()
    state = ServerState()
    metrics = Metrics(list(answerings.values()))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(warm_up(answerings.values(), state))
        try:
            yield
        finally:
            warming.cancel()
            for each in answerings.values():
                await asyncio.to_thread(each.close)

    # Its own pages would load scripts from the network.
    app = FastAPI(
        title="draftlens", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.openapi = partial(description, app)  # type: ignore[method-assign]
    app.state.server = state
    app.state.answering = first
    add_tracing(app, first.model)
    app.add_middleware(Guard, state=state, options=options, metrics=metrics)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(ApiError, _http_error)
    add_pages(app, answerings, state, metrics)
    _add_answers(app, options, answerings, metrics)
    return app


def _add_answers(
    app: FastAPI, options: ServeOptions, answerings: Mapping[str, Answering], metrics: Metrics
) -> None:
    first, *_ = answerings.values()

    @app.post("/v1/chat/completions", openapi_extra=body_of(ChatRequest))
    async def chat(request: Request) -> Response:
        return await _answered(request, ChatRequest, Answering.chat, ChatForm)

    @app.post("/v1/completions", openapi_extra=body_of(CompletionRequest))
    async def complete(request: Request) -> Response:
        return await _answered(request, CompletionRequest, complete_prompts, CompletionForm)

    @app.post("/v1/responses", openapi_extra=body_of(ResponsesRequest))
    async def respond(request: Request) -> Response:
        kind = ResponsesRequest
        return await _answered(request, kind, respond_in_items, ItemForm, ItemResponder)

    async def _answered(
        request: Request,
        kind: type[Body],
        begin: Callable[[Answering, Body, str], Awaitable[list[Answer]]],
        form: type[Any],
        responder: type[Any] = Responder,
    ) -> Response:
        """The response to a request, or that of an error."""
        client = request.state.client
        claim = Claim(first.bodies, client)

        async def answer(content: bytearray) -> Response:
            body = request.state.body = await _parsed(kind, content, options)
            answering = answerings.get(body.model or "", first)
            answers = await begin(answering, body, client)
            body.drop_prompt()
            claim.release()
            sending = responder(answers, body, form(answering.model), metrics, request)
            sent: Response = await sending.sent(options.keep_alive)
            return sent

        try:
            content = await _content_of(request, options, claim)
            return await _unless_gone(request, answer(content))
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
