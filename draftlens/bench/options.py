"""What is measured, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError

DEFAULT_METHODS = ("plain", "speculative", "specvlm")
DEFAULT_PEERS = ("hf-generate", "hf-assisted")


@dataclass(frozen=True)
class Options:
    """What is measured on what, and how often.

    Args:
        workload: `world:8,64`, a file or folder, or `dataset:where` (`workloads.WORKLOADS`).
        clips: most clips, of the world at each length; None takes 4 of the world and all of
            anything else.
        frames: to sample from each clip that is a file.
        prompt: asked of every clip; None takes the workload's own.
        media: folder with a dataset's videos; None looks beside its annotations.
        methods: names of ours; extra: name to a method's (or peer's) options.
        peers: names of others.
        sweep: fields of methods, each with the values that it takes (`contestants.spread_out`).
        context: numbers of frames at which the draft's step is timed, with and without pruning.
        repeats: measurements of each clip by each method.
        max_new_tokens: longest answer.
        seed: of the order, and of the world's scenes.

    Raises:
        ConfigError: a number is less than 1.
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

    def __post_init__(self) -> None:
        numbers = {
            "clips": 1 if self.clips is None else self.clips,
            "frames": self.frames,
            "repeats": self.repeats,
        }
        numbers |= {"max_new_tokens": self.max_new_tokens} | {
            f"context {n}": n for n in self.context
        }
        for name, number in numbers.items():
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, not {number}")

    def plain(self) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self) | {"media": None if self.media is None else str(self.media)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }
