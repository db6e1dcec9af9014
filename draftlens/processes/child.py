"""Processes that end with the one that started them, whatever that one dies of."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_START = """
import os, select, sys, threading

def end_with_the_parent():
    poll = select.poll()
    poll.register({descriptor}, 0)  # reports only that the other side has gone
    poll.poll()
    if {farewell!r}:
        os.write(2, {farewell!r})
    os._exit({status})

# The end of the parent interrupts whatever takes long: libraries that load, a pass, a decoder.
threading.Thread(target=end_with_the_parent, daemon=True).start()
sys.path[:] = {path!r}
from {module} import main
main({descriptor}, {threads})
"""


def start_child(
    descriptor: int,
    module: str,
    threads: int,
    farewell: str = "",
    further: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a process that runs ``main(descriptor, threads)`` of a module.

    It is no fork and no spawned copy of the caller's main module, so scripts without a main guard,
    notebooks and daemonic parents work.

    Args:
        descriptor: of a socket whose other end this process keeps. The child inherits it, and ends
            at once when the other end has gone.
        module: of draftlens.
        threads: of torch and its libraries.
        farewell: what the child says then, on standard error. With one its status is 2, else 0.
        further: descriptors that the child inherits, too.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    code = _START.format(
        path=[str(Path(entry).absolute()) for entry in sys.path],
        descriptor=descriptor,
        module=module,
        threads=threads,
        farewell=farewell.encode(),
        status=2 if farewell else 0,
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[descriptor, *further],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def connected(
    start: Callable[[int], subprocess.Popen[bytes]],
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """This process' end of a new socket, and the child that has inherited the other end.

    Args:
        start: starts the child; receives the descriptor of its end.

    Raises:
        OSError: no process can be started.
    """
    ours, theirs = socket.socketpair()
    try:
        with no_interrupts():
            return ours, start(theirs.fileno())
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Ctrl-C reaches every process of the terminal. A child inherits that its signal is blocked;
    the parent decides when the child ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
