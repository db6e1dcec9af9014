"""How far log probabilities are from those of stock `generate` in float32 and in float64.

    PYTHONPATH=.:tests:tests/exact python tests/exact/float64_twin.py

The cases are those of fuzzing with the greatest differences in float32. What differs by the order
of sums alone differs in float64 by a billionth of that. Stock `generate` itself is compared on a
row alone and in a padded batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import transformers.integrations.moe as moe
from forcing import stock_logits
from fuzzing import Case, Options, Prompts
from torch import Tensor
from transformers import logging

import draftlens

CASES = {
    "long rotary factors, draft tokens": Case(
        Prompts("longrope", "image", (1,)),
        "random",
        None,
        (("method", "speculative"), ("num_speculative_tokens", 3)),
        Options(7, repetition_penalty=0.8, bad_words=((0, 9),)),
    ),
    "experts and states, padded rows": Case(
        Prompts("Qwen3_5Moe", "images", (2, 1)), None, None, (("method", "plain"),), Options(4)
    ),
}


def greatest_difference(case: Case) -> float:
    """The greatest difference of a log probability of the answer's tokens, or of the four likeliest
    at their places."""
    target, given = case.prompts.target, in_default_dtype(case.prompts.inputs)
    result = draftlens.generate(
        target,
        given,
        draft=case.draft_model,
        method=case.method_options,
        compile=False,
        logprobs=True,
        top_logprobs=4,
        **case.options.of_generate(case.prompts),
    )
    stock = stock_logits(target, given, result.tokens).log_softmax(-1)
    return max(
        abs(each.logprob - float(stock[row, step, each.token]))
        for row, entries in enumerate(result.logprobs)
        for step, entry in enumerate(entries)
        for each in (entry, *entry.top)
    )


def difference_by_padding(batch: Prompts) -> float:
    """The greatest difference of a log probability of the first token of row 0 by stock `generate`
    on the batch from that on the row alone."""
    rows = [
        stock_logits(prompts.target, in_default_dtype(prompts.inputs), [[0]] * len(prompts.rows))
        for prompts in (batch, replace(batch, rows=batch.rows[:1]))
    ]
    in_batch, alone = (each[0, 0].log_softmax(-1) for each in rows)
    return float((in_batch - alone).abs().max())


def in_default_dtype(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with floating-point values of torch's default dtype."""
    dtype = torch.get_default_dtype()
    return {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in given.items()
    }


def grouped(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """The product of each expert with its rows, for dtypes that torch's own does not take."""
    parts = rows.tensor_split(offs.cpu().long())[: len(weight)]
    return torch.cat([part @ each for part, each in zip(parts, weight, strict=True)])


def use_float64() -> None:
    """Let all of this process compute in float64, also where code names float32."""
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64  # type: ignore[misc]
    Tensor.float = Tensor.double  # type: ignore[method-assign]
    moe._grouped_mm = grouped
    for case in CASES.values():
        for model in (case.prompts.target, case.draft_model):
            if model is not None:
                model.double()


def figures() -> dict[str, float]:
    """All differences in the dtype of the models."""
    padded = CASES["experts and states, padded rows"].prompts
    return {
        **{name: greatest_difference(case) for name, case in CASES.items()},
        "the same, stock in a batch and alone": difference_by_padding(padded),
    }


if __name__ == "__main__":
    logging.set_verbosity_error()
    single = figures()
    use_float64()
    for name, double in figures().items():
        print(f"{name}: float32 {single[name]:.1e}, float64 {double:.1e}")
