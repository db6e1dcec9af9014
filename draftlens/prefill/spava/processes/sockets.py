"""Tensors between the processes of one machine, over inherited sockets. Nothing listens: no other
process can take the place of a rank or send it anything."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

HEADER = struct.Struct("<qq")
"""Before each message: its tag, and its size in bytes."""

BUFFER = 4 << 20
"""Bytes requested for the buffer of a socket; the system may grant fewer."""

LONGEST_POLL = 60.0
"""Seconds; `poll` takes no more than some weeks."""


class Transfer:
    """A flat CPU tensor that is sent or received; `tag` is the number of the exchange."""

    def __init__(self, links: SocketLinks, tensor: Tensor, tag: int) -> None:
        numbers: Any = tensor.detach().view(torch.uint8).numpy()
        content = memoryview(numbers)
        self.expected = (tag, len(content))
        self.header = bytearray(HEADER.pack(*self.expected))
        self.left = [memoryview(self.header), content]
        self._links = links

    def advance(self, count: int) -> None:
        """`count` further bytes have been moved."""
        while self.left and count >= len(self.left[0]):
            count -= len(self.left.pop(0))
        if self.left:
            self.left[0] = self.left[0][count:]

    def wait(self, timeout: timedelta) -> None:
        """Wait until it has been moved. Raises `RuntimeError` if the rank ended or is late."""
        self._links.settle(self, timeout.total_seconds())


class SocketLinks:
    """Sends and receives tensors as `ProcessGroupGloo` does. From each rank to each other one,
    tensors arrive in the order in which they were sent; both sides begin them in the same order.

    There is no thread: messages move when one is begun, as far as that needs no waiting, and all of
    them while one is waited for. Use it from one thread at a time. `closed` are the ranks found to
    have ended.
    """

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self.closed: list[int] = []
        self._lines = {rank: _Line(sock) for rank, sock in sockets.items()}

    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Transfer:
        """Begin to send a tensor, to stay unchanged. Raises `RuntimeError` if the rank ended."""
        transfer = Transfer(self, tensors[0], tag)
        self._lines[rank].outgoing.append(transfer)
        self._move(rank)
        return transfer

    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Transfer:
        """Begin to receive into a tensor. Raises `RuntimeError` if the rank ended."""
        transfer = Transfer(self, tensors[0], tag)
        self._lines[rank].incoming.append(transfer)
        return transfer

    def settle(self, transfer: Transfer, seconds: float) -> None:
        end = time.monotonic() + seconds
        while transfer.left:
            remaining = end - time.monotonic()
            if remaining <= 0:
                raise RuntimeError("another rank does not take part in time")
            for rank in self._ready(min(remaining, LONGEST_POLL)):
                self._move(rank)

    def close(self) -> None:
        for line in self._lines.values():
            line.socket.close()

    def _ready(self, seconds: float) -> list[int]:
        """The ranks with sockets that became ready."""
        poll = select.poll()
        ranks = {}
        for rank, line in self._lines.items():
            events = line.events
            if events:
                poll.register(line.socket, events)
                ranks[line.socket.fileno()] = rank
        return [ranks[descriptor] for descriptor, _ in poll.poll(seconds * 1000)]  # milliseconds

    def _move(self, rank: int) -> None:
        try:
            self._lines[rank].move()
        except OSError as error:
            self.closed.append(rank)
            raise RuntimeError("another rank has ended") from error


class _Line:
    """The socket to one other rank, and its pending transfers."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.outgoing: deque[Transfer] = deque()
        self.incoming: deque[Transfer] = deque()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)

    @property
    def events(self) -> int:
        """Event mask for `poll`."""
        receiving = select.POLLIN if self.incoming else 0
        return receiving | (select.POLLOUT if self.outgoing else 0)

    def move(self) -> None:
        """Send and receive what is possible without waiting. Raises `OSError` if the other side has
        gone, `RuntimeError` if it has sent another tensor than is expected."""
        with _without_waiting():
            while self.outgoing:
                self._send(self.outgoing[0])
                self.outgoing.popleft()
        with _without_waiting():
            while self.incoming:
                self._receive(self.incoming[0])
                self.incoming.popleft()

    def _send(self, transfer: Transfer) -> None:
        while transfer.left:
            transfer.advance(self.socket.sendmsg(transfer.left))

    def _receive(self, transfer: Transfer) -> None:
        while transfer.left:
            count = self.socket.recv_into(transfer.left[0])
            if not count:
                raise ConnectionResetError("the other side has gone")
            transfer.advance(count)
            if len(transfer.left) == 1 and HEADER.unpack(transfer.header) != transfer.expected:
                raise RuntimeError("another rank makes other exchanges")


@contextmanager
def _without_waiting() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        return


def mesh(size: int) -> list[dict[int, socket.socket]]:
    """For each rank the sockets to all others, by their ranks."""
    sockets: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for rank in range(size):
        for peer in range(rank + 1, size):
            sockets[rank][peer], sockets[peer][rank] = socket.socketpair()
    return sockets
