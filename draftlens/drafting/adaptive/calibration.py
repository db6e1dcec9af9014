"""How long a model's forwards take, measured in a few of them on scratch cache rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.core import tree as trees
from draftlens.core.tree import chain
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.models.adapter import Backbone, wait_for
from draftlens.models.kv_cache import KVCache

WIDTHS: tuple[int, ...] = (1, 3, 6, 2, 26, 4, 49, 9, 13, 98, 196, 392)
"""Widths of the first forwards, the most useful ones first: the time may end after any of them. The
largest are those of batches of fast models."""

WIDEST_TREE = 49
"""Widths above it are not bisected: a batch passes the edges of steps anyway."""

CONTEXT = 256
"""Cached tokens after which the widths are measured."""

LONG_CONTEXT = 2048
"""Cached tokens of the two further forwards that tell how the cost grows with the context."""

STEP = 1.2
"""Two neighbouring widths whose costs differ by this factor are bisected."""

SLOW_SECONDS = 0.05
"""A model whose forward takes longer is measured by some of its layers."""

FAST_PASSES = 3
"""Counted forwards of each width of a model that is not slow."""

SAMPLED_LAYERS = 4
"""Layers that are measured for all of a slow model: enough to leave the caches of the CPU."""

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
    fastest of the others does, since slow ones are accidents. Where two neighbouring widths differ,
    the widths between them are measured too. A model whose forward takes more than `SLOW_SECONDS`
    is measured by some of its decoder layers and its output head, in a fraction of the time of
    whole forwards, unless they are compiled.

    Args:
        backbone: the model.
        seconds: time after which no further width is begun. A forward over one token is always
            measured.

    Returns:
        The curve of one row, after `CONTEXT` cached tokens.
    """
    deadline = Deadline(seconds)
    scratch = _Scratch(backbone)
    times = _Times(scratch.forward_seconds, deadline, FAST_PASSES)
    widths = WIDTHS
    whole = scratch.forward_seconds(1, CONTEXT)
    if whole > SLOW_SECONDS:  # perhaps only because it was the first
        whole = scratch.forward_seconds(1, CONTEXT)
    if whole > SLOW_SECONDS and scratch.has_layers:
        times = _Times(_LayerTimes(scratch, whole), deadline, 1)
        widths = tuple(width for width in WIDTHS if width <= WIDEST_TREE)
    times.measure(*widths)
    slopes = times.context_slopes()
    while gap := times.gap():
        left, right = gap
        if not times.measure(left, (left + right) // 2, right):
            break
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
        passes: number of counted forwards of each width, in turn with the other widths.
    """

    def __init__(self, forward: Forward, deadline: Deadline, passes: int) -> None:
        self.forward = forward
        self.deadline = deadline
        self.passes = passes
        self.shortest: dict[int, float] = {}

    def measure(self, *widths: int) -> bool:
        """Measure widths; false if the time did not suffice for all of them."""
        for _ in range(self.passes):
            for width in widths:
                is_new = width not in self.shortest
                if self.shortest and self.deadline.left < 2 * self._expected(width):
                    return False
                if is_new:
                    self.forward(width, CONTEXT)
                seconds = self.forward(width, CONTEXT)
                self.shortest[width] = min(seconds, self.shortest.get(width, inf))
        return True

    def rising(self) -> dict[int, float]:
        """The times by rising width, where none is longer than that of a larger width."""
        costs: dict[int, float] = {}
        shortest = inf
        for width in sorted(self.shortest, reverse=True):
            shortest = min(shortest, self.shortest[width])
            costs[width] = shortest
        return dict(sorted(costs.items()))

    def gap(self) -> tuple[int, int] | None:
        """The closest neighbours whose costs differ though there are widths between them."""
        costs = self.rising()
        gaps = [
            (right - left, left, right)
            for left, right in pairwise(costs)
            if right - left > 1 and right <= WIDEST_TREE and costs[right] > STEP * costs[left]
        ]
        return min(gaps)[1:] if gaps else None

    def context_slopes(self) -> tuple[float, float]:
        """Seconds per cached token, and per pair of a new and a cached token; zeros if the time
        does not suffice."""
        widest = max(self.shortest)
        if self.deadline.left < 4 * (self.shortest[1] + self.shortest[widest]):
            return 0.0, 0.0
        slopes = {}
        for width in {1, widest}:
            self.forward(width, LONG_CONTEXT)  # the first time allocates
            seconds = min(self.forward(width, LONG_CONTEXT) for _ in range(self.passes))
            slopes[width] = (seconds - self.shortest[width]) / (LONG_CONTEXT - CONTEXT)
        narrow = max(slopes[1], 0.0)
        if widest == 1:
            return narrow, 0.0
        per_pair = max(slopes[widest] - narrow, 0.0) / (widest - 1)
        return max(narrow - per_pair, 0.0), per_pair

    def _expected(self, width: int) -> float:
        """The time of the largest measured width up to this one; beyond those of trees in
        proportion."""
        known = max(known for known in self.shortest if known <= width)
        factor = width / known if width > WIDEST_TREE else 1.0
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
        self._caches: dict[int, KVCache] = {}

    @property
    def has_layers(self) -> bool:
        """Whether a layer can be called alone: the decoder lists its layers, and its forwards are
        not compiled, which calls none of them."""
        layers = getattr(self.backbone.decoder, "layers", None)
        return isinstance(layers, nn.ModuleList) and not self.backbone.passes.label

    def forward_seconds(self, width: int, context: int) -> float:
        """Seconds of one whole forward."""
        return self._seconds(lambda: self.forward(width, context))

    def forward(self, width: int, context: int) -> Tensor:
        """One forward of a chain after some cached tokens."""
        if context not in self._caches:
            self._caches[context] = self.backbone.new_cache(self.prompt, context + max(WIDTHS))
            self._caches[context].advance(context)
        cache = self._caches[context]
        cache.keep([context], [[]])
        device = self.backbone.device
        tokens = torch.ones(1, width, dtype=torch.long, device=device)
        steps = trees.depths(chain(width - 1), device)[None]
        mask = trees.attention_mask([context], trees.ancestors(chain(width - 1), device))
        return self.backbone.forward(tokens, self.prompt.positions(steps), cache, mask)

    def _seconds(self, call: Callable[[], object]) -> float:
        wait_for(self.backbone.device)
        began = time.perf_counter()
        call()
        wait_for(self.backbone.device)
        return max(time.perf_counter() - began, 1e-9)


class _LayerTimes:
    """Seconds of forwards by those of some layers: a `Forward`.

    The layers are called with the arguments that the decoder gives its first layer, and the output
    head with the hidden states of the last token or tokens. What a whole forward takes beyond them
    (embeddings, norms, launches) is taken to be the same for every width.

    Args:
        scratch: the model.
        whole: seconds of one whole forward over one token, not the first one.
    """

    def __init__(self, scratch: _Scratch, whole: float) -> None:
        self.scratch = scratch
        self.layers = list(scratch.backbone.decoder.layers)
        self.share = len(self.layers) / min(len(self.layers), SAMPLED_LAYERS)
        self.rest = 0.0
        self(1, CONTEXT)
        self.rest = max(whole - self(1, CONTEXT), 0.0)

    def __call__(self, width: int, context: int) -> float:
        with self.scratch.backbone.alone():
            return self._seconds(width, context)

    def _seconds(self, width: int, context: int) -> float:
        arguments, keywords = self._first_layer_call(width, context)
        hidden = arguments[0] if arguments else keywords["hidden_states"]
        sampled = self.layers[:SAMPLED_LAYERS]

        def run() -> None:
            for layer in sampled:
                layer(*arguments, **keywords)

        backbone = self.scratch.backbone
        with backbone.products.of_tokens(torch.empty(1, width)):
            layers = self.scratch._seconds(run)
            head = self.scratch._seconds(lambda: backbone.head(hidden))
        return self.share * layers + head + self.rest

    def _first_layer_call(self, width: int, context: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with self.scratch.backbone.stopping_at(self.layers[0], _stop):
            try:
                self.scratch.forward(width, context)
            except _LayerReached as reached:
                return reached.args, reached.kwargs
        raise AssertionError("a decoder runs its layers")


class _LayerReached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs


def _stop(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _LayerReached(args, kwargs)
