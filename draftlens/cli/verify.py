"""Plain against accelerated on the user's own input: tier 3 of the exactness tiers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from draftlens.api import Engine, Inputs
from draftlens.cli.show import console, exactness
from draftlens.core.errors import ConfigError
from draftlens.core.result import Result
from draftlens.measure.stock import Divergence, StockRun, first_divergence, run_stock
from draftlens.methods import PlainDecoding


@dataclass(frozen=True)
class Verification:
    """What a comparison showed.

    Args:
        name: of the input.
        reference: stock `generate` for greedy answers; our plain decoding with the same seed for
            sampled ones, since stock sampling draws from torch's generator.
        tokens: compared.
        divergence: the first difference, None if there is none.
        dtype: what the target computes in.
        result: the accelerated answer.
    """

    name: str
    reference: str
    tokens: int
    divergence: Divergence | None
    dtype: torch.dtype
    result: Result

    @property
    def failed(self) -> bool:
        """A difference in float32 is an error of ours; below it, near-ties may fall otherwise."""
        return self.divergence is not None and self.dtype in (torch.float32, torch.float64)

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        found = None if self.divergence is None else vars(self.divergence)
        exact = {"lossless": self.result.lossless, "approximate": list(self.result.approximate)}
        facts = {"input": self.name, "reference": self.reference, "tokens": self.tokens}
        return {**facts, "identical": found is None, "first_divergence": found, **exact}


def verify_engine(
    engine: Engine, inputs: Inputs, name: str, options: dict[str, Any]
) -> Verification:
    """Run both and compare.

    Raises:
        ConfigError: the method draws other tokens by design (`rejection` sampling).
    """
    do_sample = options.get("do_sample", False)
    if do_sample and engine.method.sampling_rule == "rejection":
        raise ConfigError(
            "rejection sampling draws other tokens by design; verify with the coupled rule"
        )
    result = engine.answer(inputs, **options).run()
    if do_sample:
        plain = engine.answer(inputs, method=PlainDecoding(), **options).run()
        reference = StockRun(plain.tokens, plain.stats.e2e, plain.stats.ttft)
    else:
        stock = {name: value for name, value in options.items() if name != "seed"}
        reference = run_stock(engine.target.backbone, inputs.target, keep_logits=True, **stock)
    divergence = first_divergence(reference, result.tokens)
    kind = "plain decoding with the same seed" if do_sample else "stock generate"
    return Verification(
        name,
        kind,
        sum(map(len, reference.tokens)),
        divergence,
        engine.target.backbone.dtype,
        result,
    )


def show_verification(verification: Verification) -> None:
    """Say what was found."""
    divergence, result = verification.divergence, verification.result
    dtype = str(verification.dtype).removeprefix("torch.")
    told = f"{verification.name}: {verification.tokens} tokens against {verification.reference} in {dtype}"
    console.print(told, markup=False)
    if divergence is None:
        console.print(f"identical: [bold green]yes[/] ({exactness(result)})")
        return
    margin = "" if divergence.margin is None else f", by a logit margin of {divergence.margin:.3g}"
    console.print(
        f"identical: [bold red]no[/]; first at token {divergence.index} of row {divergence.row}: "
        f"the reference says {divergence.stock}, accelerated {divergence.ours}{margin}"
    )
