"""A streamer that writes down what it receives."""

from __future__ import annotations

import torch
from transformers.generation.streamers import BaseStreamer


class Recorder(BaseStreamer):
    """Records what is put into it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.puts = self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        """Prompt first, then tokens."""
        assert not self.ends
        self.puts += 1
        self.ids += value.flatten().tolist()

    def end(self) -> None:
        """Nothing comes after."""
        self.ends += 1
