"""Runs the application until a signal comes, and then until the running answers have ended."""

from __future__ import annotations

import socket
import time
from types import FrameType

import uvicorn

from draftlens.engine import Engine
from draftlens.serve.app import create_app
from draftlens.serve.guard import ServerState
from draftlens.serve.options import ServeOptions


class DrainingServer(uvicorn.Server):
    """After a signal, new requests get 503 until the open ones have ended or `grace` seconds have
    passed. A second signal ends the server at once."""

    def __init__(self, config: uvicorn.Config, state: ServerState, grace: float) -> None:
        super().__init__(config)
        self._state = state
        self._grace = grace
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._deadline is not None:
            self.should_exit = True
        self._state.closing = True
        self._deadline = time.monotonic() + self._grace

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        if self._deadline is None:
            return ends
        return ends or not self._state.num_open or time.monotonic() > self._deadline


def bind(host: str, port: int) -> socket.socket:
    """The socket of the server; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def run(engine: Engine, options: ServeOptions, bound: socket.socket) -> None:
    """Serve an engine; returns after SIGTERM or Ctrl-C."""
    app = create_app(engine, options)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=30,
    )
    DrainingServer(config, app.state.server, options.grace).run(sockets=[bound])
