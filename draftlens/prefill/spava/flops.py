"""What a pass computed and exchanged, counted rather than timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from draftlens.prefill.spava.kernels import attend
from draftlens.prefill.spava.lse_merge import Part

Attend = Callable[..., Part]
"""`Work.attend` with its `scaling` filled in."""


@dataclass
class Work:
    """Counters of one pass of one process.

    Attributes:
        flops: 2 (D + E) for each query, head and key that the query attends to.
        received: elements that arrived from other processes.
        waits: exchanges that the pass waited for.
    """

    flops: int = 0
    received: int = 0
    waits: int = 0

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, causal: bool = False
    ) -> Part:
        """`prefill.spava.kernels.attend`, counted."""
        heads, num_queries, width = query.shape
        num_keys = key.shape[1]
        pairs = num_queries * num_keys
        if causal:
            pairs = num_queries * (num_queries + 1) // 2
        self.flops += 2 * heads * pairs * (width + value.shape[-1])
        return attend(query, key, value, scaling, causal)
