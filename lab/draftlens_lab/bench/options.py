"""Options of a benchmark, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens_lab.measure.options import options_to_json

DEFAULT_METHODS = ("plain", "speculative", "specvlm")
DEFAULT_PEERS = ("hf-generate", "hf-assisted")


@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark.

    Args:
        workload: `world:8,64`, a file or folder, or `dataset:where` (`workloads.WORKLOADS`).
        clips: largest number of clips, for the world at each length; None uses 4 of the world and
            all clips of other workloads.
        prompt: question about every clip; None uses the workload's own.
        media: folder with a dataset's videos; None searches the folder of its annotations.
        context: numbers of frames at which the draft's step is timed, with and without pruning.
        batch_sizes: numbers of prompts that are answered together.
    """

    workload: str = "world:8,64"
    clips: int | None = None
    frames: int = 8
    prompt: str | None = None
    media: Path | None = None
    methods: tuple[str, ...] = DEFAULT_METHODS
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    peers: tuple[str, ...] = DEFAULT_PEERS
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    context: tuple[int, ...] = ()
    repeats: int = 3
    max_new_tokens: int = 256
    seed: int = 0
    batch_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        numbers = {
            "frames": self.frames,
            "repeats": self.repeats,
            "max_new_tokens": self.max_new_tokens,
        }
        if self.clips is not None:
            numbers["clips"] = self.clips
        for name, counts in (("context", self.context), ("batch size", self.batch_sizes)):
            numbers |= {f"{name} {count}": count for count in counts}
        for name, number in numbers.items():
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, not {number}")

    def plain(self) -> dict[str, Any]:
        return options_to_json(self)
