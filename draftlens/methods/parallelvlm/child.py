"""The draft worker's process: ``main`` is what it runs."""

from __future__ import annotations

import contextlib
import os
import socket

import torch

from draftlens.methods.parallelvlm.draft_side import Worker
from draftlens.models.adapter import Backbone
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.shared_model import ModelParts


def main(descriptor: int, threads: int) -> None:
    """Draft until the parent has gone.

    Args:
        descriptor: of the inherited socket. The first message is the model.
        threads: of torch.
    """
    torch.set_num_threads(threads)
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ClosedError):
        _serve(channel)
    # The parent has gone. Nothing here is worth an orderly end, which could take a while.
    os._exit(0)


def _serve(channel: Channel) -> None:
    parts: ModelParts = channel.receive(None)
    worker = Worker(Backbone(parts.build()), channel.send)
    channel.send(os.getpid())
    while True:
        channel.flush(None)
        timeout = 0.0 if worker.can_step else None
        try:
            message = channel.receive(timeout)
        except TimeoutError:
            worker.step()
        else:
            worker.handle(message)
