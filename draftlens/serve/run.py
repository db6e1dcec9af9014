"""Runs the application until a signal comes, and then until the running answers have ended."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import time
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from draftlens.core.errors import ConfigError
from draftlens.serve.options import ServeOptions

SEND_SECONDS = 60.0
KEEP_ALIVE_SECONDS = 30
HEAD_SECONDS = 35.0
"""Seconds in which the head of a request comes, from the start of the connection or the end of the
last response."""

MOST_CONNECTIONS = 1000
MOST_NEW = 128
"""Connections that are taken at once."""

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_SHORTAGE_SECONDS = 60.0
"""Seconds between two lines of the log about descriptors that run out."""

_log = logging.getLogger("draftlens.serve")


class BoundedProtocol(H11Protocol):
    """A connection, one of at most `most`. A new one takes the place of the one whose client has
    not sent a request for the longest time; it is closed if all of them have.

    Attributes:
        waits_since: when the wait for a request began.
    """

    def __init__(self, *args: Any, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waits_since = time.monotonic()
        self._most = most

    @property
    def waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            waiting = [each for each in self.connections if each.waits]  # type: ignore[union-attr]
            min(waiting, key=lambda each: each.waits_since).drop()  # type: ignore[union-attr]

    def on_response_complete(self) -> None:
        self.waits_since = time.monotonic()
        super().on_response_complete()

    def drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()


class DrainingServer(uvicorn.Server):
    """After a signal, new requests get 503 until the open ones have ended or `grace` seconds have
    passed. A second signal ends the server at once."""

    def __init__(
        self, app: FastAPI, options: ServeOptions, head_seconds: float = HEAD_SECONDS
    ) -> None:
        num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if num_files == resource.RLIM_INFINITY:
            num_files = 2 * MOST_CONNECTIONS
        config = uvicorn.Config(
            app,
            # The other half of the descriptors is for files, and for connections that were taken
            # and not counted yet.
            http=partial(BoundedProtocol, most=min(MOST_CONNECTIONS, num_files // 2)),  # type: ignore[arg-type]
            ws="none",
            backlog=min(MOST_NEW, num_files // 8),
            log_level="error",  # warnings are about malformed requests, a line for each
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._state = app.state.server
        self._grace = options.grace
        self._head_seconds = head_seconds
        self._deadline: float | None = None
        self._noted_shortage = -_SHORTAGE_SECONDS

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._note_error)
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._deadline is not None:
            self.should_exit = True
        self._state.closing = True
        self._deadline = time.monotonic() + self._grace

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        self._drop_silent()
        if self._deadline is None:
            return ends
        return ends or not self._state.num_open or time.monotonic() > self._deadline

    def _drop_silent(self) -> None:
        last = time.monotonic() - self._head_seconds
        for connection in list(self.server_state.connections):
            assert isinstance(connection, BoundedProtocol)
            if connection.waits and connection.waits_since < last:
                connection.drop()

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ValueError) and "._start_serving(" in context.get("message", ""):
            return  # asyncio listens again a second after a shortage: the socket is closed
        if not isinstance(error, OSError) or error.errno not in _SHORTAGES:
            loop.default_exception_handler(context)
            return
        # asyncio reports each connection that it cannot take, many times a second.
        if time.monotonic() - self._noted_shortage >= _SHORTAGE_SECONDS:
            self._noted_shortage = time.monotonic()
            _log.error("connections cannot be taken: %s", error.strerror)


def bind(host: str, port: int, send_seconds: float = SEND_SECONDS) -> socket.socket:
    """The socket of the server; port 0 takes a free one. The system closes a connection whose
    client has read nothing of what was sent for `send_seconds`.

    Raises:
        ConfigError: another program listens at the port.
        OSError: the address cannot be used for another reason.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        cause = f"port {port} of {host} is taken by another program"
        raise ConfigError(f"{cause}: name another with --port, or 0 for a free one") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * send_seconds))
    return bound
