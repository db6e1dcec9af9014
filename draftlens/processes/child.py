"""Child processes that end when their parent ends, however that happens."""

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
import os, select, shutil, sys, threading

def end_with_the_parent():
    poll = select.poll()
    poll.register({descriptor}, 0)  # reports only that the other side has gone
    poll.poll()
    if {folder!r}:
        shutil.rmtree({folder!r}, ignore_errors=True)
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
    folder: str = "",
) -> subprocess.Popen[bytes]:
    """Start a process that runs ``main(descriptor, threads)`` of a module of draftlens.

    It is no fork and no spawned copy of the caller's main module, so scripts without a main guard,
    notebooks and daemonic parents work.

    Args:
        descriptor: of a socket; this process keeps its other end. The child inherits it, and ends
            at once when the other end has gone.
        threads: of torch and its libraries.
        farewell: printed then by the child on standard error. With one its status is 2, else 0.
        further: more descriptors that the child inherits.
        folder: for its temporary files, instead of that of the system. The child removes it when
            this process has gone; otherwise the caller does.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if folder:
        environment["TMPDIR"] = folder
    code = _START.format(
        path=[str(Path(entry).absolute()) for entry in sys.path],
        descriptor=descriptor,
        module=module,
        threads=threads,
        folder=folder,
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
    """This process' end of a new socket, and the child, which `start` gives the other end. Raises
    `OSError` if no process can be started."""
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
    """Block Ctrl-C, which reaches every process of the terminal, in children started here: the
    parent decides when they end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
