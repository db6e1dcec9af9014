"""The server as an application of Ray Serve: replicas with models and a batch of their own.

    serve run draftlens.serve.ray:app target=NAME replicas=4 gpus=1

`pip install "draftlens[serve,ray]"` installs what it needs. Requests with one `X-Session-Id` are
answered by one replica as long as it lives, so that it remembers the conversation.
"""

from __future__ import annotations

import os
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import RequestRouterConfig

from draftlens import load_engine
from draftlens.core.names import AUTO
from draftlens.scheduling import SchedulerLimits
from draftlens.serve.app import create_app
from draftlens.serve.options import PROMPT_CACHE, ServeOptions

ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"


class Settings(BaseModel):
    """Arguments of the application. Keys of clients are read from `DRAFTLENS_API_KEY` where the
    application is built, separated by spaces.

    Args:
        target, draft: as for `draftlens.load`.
        load: further arguments of `draftlens.load`.
        replicas: their number, or "auto" for Ray's autoscaling.
        cpus, gpus: of each replica.
        max_rows, max_waiting, max_new_tokens, prompt_cache: of each replica, as for `ServeOptions`.
    """

    model_config = ConfigDict(extra="forbid")

    target: str = "embedded"
    draft: str | None = AUTO
    load: dict[str, Any] = Field(default_factory=dict)
    replicas: int | str = 1
    cpus: float = 1
    gpus: float = 0
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


def app(settings: Settings) -> serve.Application:
    """The application, for `serve run` and `serve.run`."""
    options = settings.options()

    def build() -> FastAPI:
        """Runs in each replica."""
        engine = load_engine.load(settings.target, settings.draft, **settings.load)
        return create_app(engine, options)

    @serve.deployment(
        num_replicas=settings.replicas,
        # The scheduler refuses what is more.
        max_ongoing_requests=settings.max_rows + settings.max_waiting,
        ray_actor_options={"num_cpus": settings.cpus, "num_gpus": settings.gpus},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    )
    @serve.ingress(build)
    class Draftlens:
        def check_health(self) -> None:
            """Ray replaces a replica where this raises."""
            if not self.app.state.answering.scheduler.alive:  # type: ignore[attr-defined]
                raise RuntimeError("the scheduler has ended")

    return Draftlens.bind()  # type: ignore[attr-defined,no-any-return]
