"""ParallelVLM: draft and target at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.methods.parts import check_number
from draftlens.methods.specvlm.config import SpecVLM


@dataclass(frozen=True)
class ParallelVLM(SpecVLM):
    """The draft reads a part of the visual tokens and guesses ahead while the target reads and
    checks (ParallelVLM).

    Args:
        num_speculative_tokens: γ; with `"parallel"`, most guesses in one check (by measured times
            if left out); with `"lockstep"`, the guesses of one round (5 if left out).
        schedule: `"parallel"`: a target that is free takes the guesses that are there.
            `"lockstep"`: both lanes wait for each other after every round, as in the paper, so that
            passes and guesses do not depend on time. `"serial"`: one after the other.
        wait: with `"parallel"`, how many guesses the target waits for where there are none, as
            behind a correction. None chooses by measured times.
        sampling_rule, prune_ratio, pruner, draft, prefill: as for `SpecVLM`. The paper's
            pruner is `"uv"`.
        tree, kv: of `SpecVLM`, for the serial schedule.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.ParallelVLM().schedule
        'parallel'
        >>> draftlens.ParallelVLM(schedule="lockstep", num_speculative_tokens=3).pruner
        UVPruner(layer=20, text='all', criterion='similarity', variation=True)
    """

    pruner: Any = "uv"
    schedule: str = "parallel"
    wait: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wait is not None:
            check_number("wait", self.wait, least=0)

    @property
    def _wait(self) -> int | None:
        return self.wait
