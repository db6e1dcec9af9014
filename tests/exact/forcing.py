"""The log probabilities that stock `generate` gives to tokens that it is made to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rotary import renewed
from stock import NEAR_TIE
from torch import Tensor
from transformers import LogitsProcessor

from draftlens.core.result import TokenLogprob

BOUND = 1e-4
"""Most by which log probabilities may differ: in float32, passes of several tokens move logits by
up to 1.5e-5, and a log probability by twice as much."""


class Forced(LogitsProcessor):
    """Leaves one token of each row at each step.

    Args:
        rows: the tokens; shorter rows go on with their last one.
        prompt_length: in tokens, with padding.
    """

    def __init__(self, rows: Sequence[Sequence[int]], prompt_length: int) -> None:
        longest = max(map(len, rows))
        self.table = torch.tensor([[*row, *row[-1:] * (longest - len(row))] for row in rows])
        self.prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt_length
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(1, self.table[:, step : step + 1], 0.0)


def stock_logits(model: Any, given: Mapping[str, Any], rows: Sequence[Sequence[int]]) -> Tensor:
    """Logits before each token of given answers by stock `generate`, float32 ``[B, T, V]``; `given`
    is padded on the left. Rows that are shorter than the longest one have arbitrary logits after
    their ends."""
    output = renewed(model).generate(
        **given,
        logits_processor=[Forced([row or [0] for row in rows], given["input_ids"].shape[1])],
        max_new_tokens=max(1, *map(len, rows)),
        eos_token_id=None,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(output.logits, 1)


def check_row(
    entries: Sequence[TokenLogprob], tokens: Sequence[int], scores: Tensor, top: int
) -> float:
    """The entries of a row are the log probabilities of its tokens by scores ``[>= T, V]``, and of
    the `top` likeliest tokens. Returns the greatest difference."""
    assert [entry.token for entry in entries] == list(tokens)
    greatest = 0.0
    for entry, log_p in zip(entries, scores.log_softmax(-1), strict=False):
        ids = [other.token for other in entry.top]
        ours = torch.tensor([entry.logprob, *(other.logprob for other in entry.top)])
        torch.testing.assert_close(ours, log_p[[entry.token, *ids]], atol=BOUND, rtol=0)
        best = log_p.topk(min(top + 1, len(log_p)))
        torch.testing.assert_close(ours[1:], best.values[:top], atol=BOUND, rtol=0)
        assert len(set(ids)) == len(ids) == min(top, len(log_p))
        gaps = best.values[:-1] - best.values[1:]
        if len(gaps) and gaps.min() > NEAR_TIE:
            assert ids == best.indices[:top].tolist()
        finite = ours.isfinite()
        difference = (ours - log_p[[entry.token, *ids]])[finite].abs()
        greatest = max(greatest, *difference.tolist(), 0.0)
    return greatest
