"""The compiling process."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import warnings

import torch

from draftlens.compile.build import compile_to_file
from draftlens.compile.compiler import Built, Order
from draftlens.compile.store import inductor_folder
from draftlens.processes.channel import Channel, ClosedError


def main(descriptor: int, threads: int) -> None:
    """Compile the orders that arrive on the inherited socket until the parent has ended. The code
    is made for `threads`; the compiler itself uses one."""
    torch.set_num_threads(threads)
    os.umask(0o077)  # code that others may change is not loaded
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ClosedError):
        while True:
            channel.send(_carry_out(channel.receive(None)))
            channel.flush(None)
    # The parent has ended. An orderly exit could take long, and nothing here needs it.
    os._exit(0)


def _carry_out(order: Order) -> Built:
    began = time.perf_counter()
    try:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor_folder())
        compile_to_file(order.skeleton, order.shape, order.path)
    except Exception as error:
        return Built(time.perf_counter() - began, _in_one_line(error))
    return Built(time.perf_counter() - began)


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
