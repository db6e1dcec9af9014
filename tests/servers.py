"""Servers on this machine that answer as they are told to."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle, islice
from threading import Event, Thread

DRIPS = 1500
"""Bytes that a slow server sends, in 30 seconds."""

Answer = Callable[[socket.socket, bytes], None]


class Server:
    """Answers each connection on a port of this machine with what `answer` sends.

    Args:
        answer: called with the connection and the head of the request.
        host: an address of this machine.
    """

    def __init__(self, answer: Answer, host: str = "127.0.0.1") -> None:
        self.heads: list[bytes] = []
        self.closing = Event()
        self.was_heard_out = False
        self._answer = answer
        self._socket = socket.create_server((host, 0))
        self.port = self._socket.getsockname()[1]
        self.address = f"http://{host}:{self.port}"
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._threads.append(Thread(target=self._serve, args=[connection], daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.heads.append(connection.recv(1 << 16))
            self._answer(connection, self.heads[-1])

    def drip(self, connection: socket.socket, content: bytes) -> None:
        """Send bytes one by one, again and again, for as long as somebody listens."""
        for byte in islice(cycle(content), DRIPS):
            if self.closing.wait(0.02):
                return
            connection.sendall(bytes([byte]))
        self.was_heard_out = True

    def close(self) -> None:
        self.closing.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join()


def redirect(target: str) -> bytes:
    """An answer that leads to another address."""
    return f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
