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

SEND_SECONDS = 60.0


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


def bind(host: str, port: int, send_seconds: float = SEND_SECONDS) -> socket.socket:
    """The socket of the server; port 0 takes a free one. The system closes a connection whose
    client has read nothing of what was sent for `send_seconds`. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * send_seconds))
    return bound


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
