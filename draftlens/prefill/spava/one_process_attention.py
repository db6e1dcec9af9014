"""Attention in blocks that share an anchor and pass few keys on (SPAVA, eq. 4 and 5), in one
process. It is the reference for several ranks (`prefill.spava.rank_attention`): both attend to the
same keys, for any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.models.attention.scores import AttentionProbe
from draftlens.prefill.spava.blocks import Blocks
from draftlens.prefill.spava.flops import Attend, Work
from draftlens.prefill.spava.lse_merge import merge_parts, merge_running
from draftlens.prefill.spava.passing_keys import Choose, keys_by_query

UNKNOWN_TERMS = ("sliding_window", "softcap", "s_aux", "position_bias", "block_mask")
"""Arguments that request more than a softmax of scaled products over all earlier keys."""


class BlockAttention:
    """An `AttentionPass` that reads some rows in blocks, and those without a division exactly.

    Args:
        lengths: tokens of each row; padding follows them.
        probe: reads attention scores in the same pass, as if all tokens saw all earlier ones; the
            query does.
    """

    def __init__(
        self,
        rows: Sequence[Blocks | None],
        lengths: Sequence[int],
        choose: Choose = keys_by_query,
        probe: AttentionProbe | None = None,
    ) -> None:
        self.work = Work()
        self._rows = list(rows)
        self._lengths = list(lengths)
        self._choose = choose
        self._probe = probe
        self.num_layers = 0

    def __call__(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        scaling = scaling_of(query, kwargs)
        if self._probe is not None:
            self._probe.add(query, key, scaling)
        attend = partial(self.work.attend, scaling=scaling)
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        for row, blocks in enumerate(self._rows):
            real = slice(self._lengths[row])
            states = (query[row, :, real], key[row, :, real], value[row, :, real])
            if blocks is None:
                output[row, :, real] = attend(*states, causal=True).out
            else:
                output[row, :, real] = attend_in_blocks(
                    *states, blocks, attend, self.num_layers, self._choose
                )
        self.num_layers += 1
        return output.transpose(1, 2), None


def scaling_of(query: Tensor, kwargs: dict[str, Any]) -> float:
    """The factor of the products, from transformers' arguments. Raises `UnsupportedModelError` if
    the layer needs more than a softmax of scaled products."""
    unknown = [name for name in UNKNOWN_TERMS if kwargs.get(name) is not None]
    if unknown:
        raise UnsupportedModelError(
            f"the model's attention uses {', '.join(unknown)}, which attention in blocks does not "
            "know: use prefill 'full'"
        )
    scaling = kwargs.get("scaling")
    return query.shape[-1] ** -0.5 if scaling is None else float(scaling)


def attend_in_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    blocks: Blocks,
    attend: Attend,
    layer: int,
    choose: Choose = keys_by_query,
) -> Tensor:
    """One layer of one row, ``[H, L, E]``: what all ranks compute together.

    The anchor is causal. Block j attends to the anchor, to the passing keys of the blocks before
    it, and to itself causally. The query attends to every key once.

    Args:
        query: rotated, ``[H, L, D]``.
        key: rotated, ``[H', L, D]`` with H' dividing H.
        value: ``[H', L, E]``.
        attend: attention with its log-sum-exp (`prefill.spava.kernels.attend` without its scaling).
        layer: number of the layer, from 0.
    """
    output = query.new_empty(*query.shape[:2], value.shape[-1])

    anchor = slice(blocks.anchor)
    output[:, anchor] = attend(query[:, anchor], key[:, anchor], value[:, anchor], causal=True).out
    shared = _Shared(key, value, blocks)
    shared.add(key[:, anchor], value[:, anchor])

    selection_query = query[:, blocks.context : blocks.length]
    for block in range(blocks.count):
        span = blocks.span(block)
        diagonal = attend(query[:, span], key[:, span], value[:, span], causal=True)
        earlier = attend(query[:, span], *shared.states)
        output[:, span] = merge_running(earlier, diagonal).out
        count = blocks.passed(block)
        if count:
            places = choose(selection_query, key[:, span], count, layer, block)
            shared.add(taken(key[:, span], places), taken(value[:, span], places))

    # The query, and the answer where it is read together with the prompt.
    context = slice(blocks.context)
    query_span = slice(blocks.context, blocks.length)
    context_part = attend(query[:, query_span], key[:, context], value[:, context])
    query_part = attend(query[:, query_span], key[:, query_span], value[:, query_span], causal=True)
    output[:, query_span] = merge_parts([context_part, query_part]).out
    return output


class _Shared:
    """Keys ``[H', K, D]`` and values ``[H', K, E]`` that later blocks attend to: the anchor's, and
    those that blocks pass on. Each is copied once, for any number of blocks."""

    def __init__(self, key: Tensor, value: Tensor, blocks: Blocks) -> None:
        room = blocks.anchor + sum(blocks.passed(block) for block in range(blocks.count))
        self._keys = key.new_empty(key.shape[0], room, key.shape[-1])
        self._values = value.new_empty(value.shape[0], room, value.shape[-1])
        self._count = 0

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """All states so far, ``[H', K, D]`` and ``[H', K, E]``."""
        return self._keys[:, : self._count], self._values[:, : self._count]

    def add(self, key: Tensor, value: Tensor) -> None:
        """Append ``[H', P, D]`` and ``[H', P, E]``."""
        added = slice(self._count, self._count + key.shape[1])
        self._keys[:, added] = key
        self._values[:, added] = value
        self._count = added.stop


def taken(states: Tensor, places: Tensor) -> Tensor:
    """From ``[H', K, D]`` by indices int64 ``[H', P]`` to ``[H', P, D]``."""
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[-1]))
