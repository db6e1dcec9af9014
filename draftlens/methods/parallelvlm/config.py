"""ParallelVLM: draft and target at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.methods.specvlm.config import SpecVLM


@dataclass(frozen=True)
class ParallelVLM(SpecVLM):
    """The draft reads a part of the visual tokens, and writes ahead while the target reads and
    checks (ParallelVLM).

    Args:
        num_speculative_tokens: γ, the draft tokens of a round; with them, passes and proposals do
            not depend on time. None chooses γ by measured times, and stops the draft where plain
            decoding is faster.
        schedule: `"parallel"`: in every round the draft writes while the target checks, then each
            waits for the other. `"serial"`: one after the other.
        sampling_rule, prune_ratio, pruner, draft, prefill: as for `SpecVLM`. The paper's
            pruner is `"uv"`; `"uv-sampled"` makes an order sample by its scores. `"rejection"`
            without γ takes a γ of 5.
        tree: of `SpecVLM`, for the serial schedule.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.ParallelVLM().schedule
        'parallel'
        >>> draftlens.ParallelVLM(num_speculative_tokens=3).pruner
        SampledUVPruner(layer=20, text='all', criterion='similarity', variation=True, share=0.5)
    """

    mixes_as: ClassVar[str] = ""

    pruner: Any = "uv-sampled"
    schedule: str = "parallel"
