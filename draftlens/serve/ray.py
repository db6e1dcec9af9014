"""The server as an application of Ray Serve: replicas with models and a batch of their own.

    serve run draftlens.serve.ray:app target=NAME replicas=4 gpus=1

`pip install "draftlens[serve,ray]"` installs what it needs. Turns of one conversation are answered
by one replica as long as it lives, so that it remembers them (`draftlens.serve.sessions`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from draftlens import load_engine
from draftlens.core.names import AUTO
from draftlens.scheduling import AnswerError, SchedulerLimits
from draftlens.serve.app import SMALL_BODY, create_app
from draftlens.serve.errors import ApiError, api_error
from draftlens.serve.options import PROMPT_CACHE, ServeOptions
from draftlens.serve.responses import DONE, line_of
from draftlens.serve.sessions import session_of

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
FRONT_REQUESTS = 1000
"""Most requests in a front at a time."""

CLOSING_SECONDS = 5.0
"""Time in which an answer ends whose client has gone."""

_NOT_SENT = ("app", "router", "extensions", "state")
"""Parts of a request's scope that belong to this process."""

_log = logging.getLogger("draftlens.serve")


class Settings(BaseModel):
    """Arguments of the application. Keys of clients are read from `DRAFTLENS_API_KEY` where the
    application is built, separated by spaces.

    Args:
        target, draft: as for `draftlens.load`.
        load: further arguments of `draftlens.load`.
        replicas: their number, or "auto" for Ray's autoscaling.
        min_replicas, max_replicas: bounds of the autoscaling.
        target_requests: requests in progress for each replica that the autoscaling aims at; by
            default as many as there are rows.
        cpus, gpus: of each replica.
        fronts: processes that read requests and hand them to the replicas of their sessions. With
            0 replicas receive requests themselves, which takes less time, and a session is known by
            the header that Ray looks for only, `X-Session-Id`.
        max_rows, max_waiting, max_new_tokens, prompt_cache: of each replica, as for `ServeOptions`.
    """

    model_config = ConfigDict(extra="forbid")

    target: str = "embedded"
    draft: str | None = AUTO
    load: dict[str, Any] = Field(default_factory=dict)
    replicas: int | str = 1
    min_replicas: int = 1
    max_replicas: int = 100
    target_requests: float | None = None
    cpus: float = 1
    gpus: float = 0
    fronts: int = 1
    max_rows: int = 16
    max_waiting: int = 64
    max_new_tokens: int = 1024
    prompt_cache: int | str = PROMPT_CACHE

    def options(self) -> ServeOptions:
        return ServeOptions(
            api_keys=tuple(os.environ.get("DRAFTLENS_API_KEY", "").split()),
            batch=SchedulerLimits(max_rows=self.max_rows, max_waiting=self.max_waiting),
            max_new_tokens=self.max_new_tokens,
            prompt_cache=self.prompt_cache,
        )

    def scaling(self) -> dict[str, Any]:
        """Options of the deployment about the number of replicas."""
        if self.replicas != AUTO:
            return {"num_replicas": int(self.replicas)}
        bounds = AutoscalingConfig(
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            target_ongoing_requests=self.target_requests or self.max_rows,
        )
        return {"autoscaling_config": bounds}


class Replica:
    """A replica that gets requests from a front."""

    async def __init__(self, settings: Settings, options: ServeOptions) -> None:  # type: ignore[misc]
        self._app = _built(settings, options)
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()

    async def __del__(self) -> None:
        await self._lifespan.__aexit__(None, None, None)

    def check_health(self) -> None:
        """Ray replaces a replica where this raises."""
        _check_alive(self._app)

    async def answer(self, scope: Mapping[str, Any], body: bytes) -> AsyncIterator[dict[str, Any]]:
        """The messages of ASGI that the application sends for a request."""
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        received = [{"type": "http.request", "body": body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if received:
                return received.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def respond() -> None:
            try:
                await self._app({**scope}, receive, messages.put)  # type: ignore[arg-type]
            finally:
                await messages.put(None)

        task = asyncio.create_task(respond())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            gone.set()
            await asyncio.wait([task], timeout=CLOSING_SECONDS)
            task.cancel()


class Front:
    """Receives requests and hands each to the replica of its session."""

    def __init__(self, replicas: DeploymentHandle[Any], max_body_bytes: int) -> None:
        self._replicas = replicas
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        try:
            body = await self._body_of(request)
        except ApiError as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response()
        if len(body) > SMALL_BODY:
            session = await asyncio.to_thread(session_of, request.headers, body)
        else:
            session = session_of(request.headers, body)
        scope = {name: each for name, each in request.scope.items() if name not in _NOT_SENT}
        replicas = self._replicas.options(stream=True, session_id=session)
        messages = replicas.answer.remote(scope, body)
        try:
            start = await anext(messages)
        except Exception as error:  # Ray's, such as the end of the replica's process
            return _lost(error).response()
        response = StreamingResponse(_relayed(messages), start["status"])
        response.raw_headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
        return response

    async def _body_of(self, request: Request) -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                cause = f"the body is larger than {self._max_body_bytes} bytes"
                raise ApiError(413, cause, code="body_too_large")
        return bytes(body)


async def _relayed(messages: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    """The body of a response; where its replica ends, an error is the last event."""
    try:
        async for message in messages:
            yield message.get("body", b"")
    except Exception as error:
        yield (line_of(_lost(error).body()) + DONE).encode()


def _lost(error: Exception) -> ApiError:
    _log.error("a replica has ended an answer: %s", type(error).__name__)
    return api_error(AnswerError("the answer was lost"))


def _built(settings: Settings, options: ServeOptions) -> FastAPI:
    engine = load_engine.load(settings.target, settings.draft, **settings.load)
    return create_app(engine, options)


def _check_alive(app: FastAPI) -> None:
    if not app.state.answering.scheduler.alive:
        raise RuntimeError("the scheduler has ended")


def app(settings: Settings) -> serve.Application:
    """The application, for `serve run` and `serve.run`."""
    options = settings.options()
    deployed = serve.deployment(
        # The scheduler refuses what is more.
        max_ongoing_requests=settings.max_rows + settings.max_waiting,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        **settings.scaling(),
    )
    if not settings.fronts:

        def build() -> FastAPI:  # Ray takes a function only
            return _built(settings, options)

        # At the top of this module, Ray would find the class without its ingress.
        @deployed
        @serve.ingress(build)
        class Ingress:
            def check_health(self) -> None:
                _check_alive(self.app)  # type: ignore[attr-defined]

        return Ingress.bind()  # type: ignore[attr-defined,no-any-return]
    front = serve.deployment(
        num_replicas=settings.fronts,
        max_ongoing_requests=FRONT_REQUESTS,
        ray_actor_options={"num_cpus": 0},
    )(Front)
    return front.bind(  # type: ignore[no-any-return]
        deployed(Replica).bind(settings, options), options.max_body_bytes
    )
