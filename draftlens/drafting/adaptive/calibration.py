"""How long a model's forwards take, measured in a few of them on scratch cache rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.tree import chain
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.drafting.adaptive.round_plan import MAX_NODES
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache

WIDTHS = (1, 3, 6, 2, 26, 4, 49, 9, 13, 5, 8, 17, 37, 98, 196, 392)
"""Widths of the first forwards, the most useful ones first: the time may end after any of them. The
largest are those of batches of fast models."""

CONTEXT = 256
"""Cached tokens after which the widths are measured."""

LONG_CONTEXT = 2048
"""Cached tokens of the two further forwards that tell how the cost grows with the context."""

PASSES = 3
"""Counted forwards of each width, of which the fastest counts."""

Forward = Callable[[int, int], float]
"""Maps a width and a number of cached tokens to the seconds of one forward."""


@dataclass
class Deadline:
    """A point in time.

    Args:
        seconds: time left at first.
    """

    seconds: float

    def __post_init__(self) -> None:
        self._end = time.perf_counter() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until then; negative afterwards."""
        return self._end - time.perf_counter()


@torch.inference_mode()
def measure_curve(backbone: Backbone, seconds: float) -> CostCurve:
    """Measure the forwards of a model.

    The first forward of every width does not count, since it includes the choice of kernels. The
    fastest of the others does, since slow ones are accidents.

    Args:
        backbone: the model.
        seconds: time after which no further width is begun. A forward over one token is always
            measured.

    Returns:
        The curve of one row, after `CONTEXT` cached tokens.
    """
    times = _Times(_Scratch(backbone).forward_seconds, Deadline(seconds))
    times.measure()
    slopes = times.context_slopes()
    costs = times.rising()
    return CostCurve(tuple(costs), tuple(costs.values()), CONTEXT, *slopes)


def forward_seconds(backbone: Backbone, width: int) -> float:
    """Seconds of one forward of a model after `CONTEXT` cached tokens, the second of its kind."""
    scratch = _Scratch(backbone)
    scratch.forward_seconds(width, CONTEXT)
    return scratch.forward_seconds(width, CONTEXT)


class _Times:
    """The shortest time of each width so far.

    Args:
        forward: measures one forward.
        deadline: nothing is begun that would take longer.
    """

    def __init__(self, forward: Forward, deadline: Deadline) -> None:
        self.forward = forward
        self.deadline = deadline
        self.shortest: dict[int, float] = {}

    def measure(self) -> None:
        """Measure `WIDTHS` in turn, `PASSES` times, until the time does not suffice."""
        for _ in range(PASSES):
            for width in WIDTHS:
                if self.shortest and self.deadline.left < 2 * self._expected(width):
                    return
                if width not in self.shortest:
                    self.forward(width, CONTEXT)
                seconds = self.forward(width, CONTEXT)
                self.shortest[width] = min(seconds, self.shortest.get(width, inf))

    def rising(self) -> dict[int, float]:
        """The times by rising width, where none is longer than that of a larger width."""
        widths = sorted(self.shortest)
        times = [self.shortest[width] for width in widths]
        return {width: min(times[index:]) for index, width in enumerate(widths)}

    def context_slopes(self) -> tuple[float, float]:
        """Seconds per cached token, and per pair of a new and a cached token; zeros if the time
        does not suffice."""
        widest = max(self.shortest)
        if self.deadline.left < 4 * (self.shortest[1] + self.shortest[widest]):
            return 0.0, 0.0
        slopes = {}
        for width in {1, widest}:
            self.forward(width, LONG_CONTEXT)  # the first time allocates
            seconds = min(self.forward(width, LONG_CONTEXT) for _ in range(PASSES))
            slopes[width] = (seconds - self.shortest[width]) / (LONG_CONTEXT - CONTEXT)
        narrow = max(slopes[1], 0.0)
        per_pair = max(slopes[widest] - narrow, 0.0) / max(widest - 1, 1)
        return max(narrow - per_pair, 0.0), per_pair

    def _expected(self, width: int) -> float:
        """The time of the largest measured width up to this one; beyond those of trees in
        proportion."""
        known = max(known for known in self.shortest if known <= width)
        factor = width / known if width > MAX_NODES + 1 else 1.0
        return factor * self.shortest[known]


class _Scratch:
    """A model with a cache of one row whose contents do not matter.

    Args:
        backbone: the model.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.prompt = backbone.text_prompt(
            torch.ones(1, 1, dtype=torch.long, device=backbone.device)
        )
        layers = backbone.text_config.num_hidden_layers
        self.cache = KVCache(layers, 1, CONTEXT + max(WIDTHS), grows=True)

    def forward_seconds(self, width: int, context: int) -> float:
        """Seconds of one forward."""
        self._wait()
        began = time.perf_counter()
        self.forward(width, context)
        self._wait()
        return max(time.perf_counter() - began, 1e-9)

    def forward(self, width: int, context: int) -> Tensor:
        """One forward of a chain after some cached tokens."""
        self.cache.truncate([context])
        device = self.backbone.device
        tokens = torch.ones(1, width, dtype=torch.long, device=device)
        steps = trees.depths(chain(width - 1), device)[None]
        mask = trees.attention_mask([context], trees.ancestors(chain(width - 1), device))
        return self.backbone.forward(tokens, self.prompt.positions(steps), self.cache, mask)

    def _wait(self) -> None:
        if self.backbone.device.type == "cuda":
            torch.cuda.synchronize(self.backbone.device)
