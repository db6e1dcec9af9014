"""A two-way channel between a process and its child; tensors travel by shared memory."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from draftlens.processes.shared_tensors import Parcel, file_of, pack, unpack

_HEADER = struct.Struct("<QBB")
"""Bytes of the message, whether it is in a file, and whether its tensors are in a file."""
_INLINE = 1 << 16
"""Bytes of the longest message through the socket, which has a small buffer."""
_CHUNK = 1 << 16


@dataclass
class _Outgoing:
    """A pending message: unsent bytes, and the descriptors that go with its first byte."""

    unsent: bytes
    files: list[int]


class ClosedError(Exception):
    """The other side has gone."""


class Channel:
    """Messages over a connected stream socket, which the channel owns. Sending never blocks: a
    message that the other side does not take at once is sent on by later calls."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._outgoing: deque[_Outgoing] = deque()
        self._received = bytearray()
        self._files: list[int] = []

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """A channel, and the other end's socket to be inherited by a child."""
        own_end, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(own_end), other_end

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Send anything that can be pickled. Raises `ClosedError`, or errors of pickle."""
        self.send_parcel(pack(message))

    def send_parcel(self, parcel: Parcel) -> None:
        """Send a parcel and close its file."""
        files = [] if parcel.file is None else [parcel.file]
        in_line = parcel.pickled
        if len(in_line) > _INLINE:
            files.insert(0, file_of(in_line))
            in_line = b""
        header = _HEADER.pack(len(in_line), not in_line, parcel.file is not None)
        self._outgoing.append(_Outgoing(header + in_line, files))
        try:
            self.flush()
        except ClosedError:
            self._drop_outgoing()
            raise

    def flush(self, timeout: float | None = 0.0) -> None:
        """Send pending messages, waiting at most `timeout` seconds for the other side (None: any
        time). Raises `ClosedError`."""
        try:
            self._socket.settimeout(timeout)
            while self._outgoing:
                self._send_some(self._outgoing[0])
        except (TimeoutError, BlockingIOError):
            return
        except OSError as error:
            raise ClosedError("the other side has gone") from error

    def _send_some(self, message: _Outgoing) -> None:
        if message.files:
            sent = socket.send_fds(self._socket, [message.unsent], message.files)
            _close(message.files)
        else:
            sent = self._socket.send(message.unsent)
        message.unsent = message.unsent[sent:]
        if not message.unsent:
            self._outgoing.popleft()

    def wait(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until something can be received. Raises `ClosedError` if
        the channel was closed, perhaps by another thread."""
        if timeout <= 0:
            return
        descriptor = self._socket.fileno()
        if descriptor < 0:
            raise ClosedError("the channel is closed")
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(timeout * 1000)

    def receive(self, timeout: float | None) -> Any:
        """The next message, waiting at most `timeout` seconds for it (None: any time). Raises
        `ClosedError` or, if no whole message came in time, `TimeoutError`."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if len(self._received) >= _HEADER.size:
                size, in_file, has_tensors = _HEADER.unpack_from(self._received)
                if len(self._received) >= _HEADER.size + size:
                    return self._take(size, bool(in_file), bool(has_tensors))
            self.flush()
            remaining = None if end is None else max(0.0, end - time.monotonic())
            self._fill(remaining)

    def _take(self, size: int, in_file: bool, has_tensors: bool) -> Any:
        pickled = bytes(self._received[_HEADER.size : _HEADER.size + size])
        del self._received[: _HEADER.size + size]
        if in_file:
            with open(self._files.pop(0), "rb") as file:
                file.seek(0)
                pickled = file.read()
        return unpack(Parcel(pickled, self._files.pop(0) if has_tensors else None))

    def _fill(self, timeout: float | None) -> None:
        try:
            self._socket.settimeout(timeout)
            received, files, _, _ = socket.recv_fds(self._socket, _CHUNK, 8)
        except (TimeoutError, BlockingIOError) as error:
            raise TimeoutError("no message came") from error
        except OSError as error:
            raise ClosedError("the other side has gone") from error
        if not received:
            raise ClosedError("the other side has gone")
        self._received += received
        self._files += files

    def close(self) -> None:
        """Close the socket, and the files of messages that were not sent or not taken."""
        self._socket.close()
        _close(self._files)
        self._received.clear()
        self._drop_outgoing()

    def _drop_outgoing(self) -> None:
        while self._outgoing:
            _close(self._outgoing.popleft().files)


def _close(files: list[int]) -> None:
    while files:
        os.close(files.pop())
