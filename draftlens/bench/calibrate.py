"""Choosing SpecVLM's λ on a few clips, as the paper's appendix A does: the share that keeps most
acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from draftlens.api import Engine, Inputs
from draftlens.core.errors import ConfigError
from draftlens.methods import SpecVLM

MASSES = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Args:
        masses: the values of `attention_mass` that were tried.
        lengths: for each of them, the mean acceptance length of every clip.
    """

    masses: tuple[float, ...]
    lengths: tuple[tuple[float, ...], ...]

    @property
    def curve(self) -> list[float]:
        """Mean acceptance length over the clips, by mass."""
        return [mean(row) for row in self.lengths]

    @property
    def best(self) -> float:
        """The mass with the longest mean acceptance; of equals the smallest, which leaves most to
        be spread evenly."""
        curve = self.curve
        return self.masses[curve.index(max(curve))]


def check(method: SpecVLM) -> None:
    """Refuse a method for which no mass could be found.

    Raises:
        ConfigError: it has no attention mass, what it drafts goes by the clock, or there is nothing
            to choose from.
    """
    if method.pruner != "specvlm":
        raise ConfigError(
            "calibrate chooses the attention_mass of method specvlm with pruner specvlm"
        )
    if method.tree == "auto":
        raise ConfigError(
            "tree 'auto' goes by the clock, and so would the attention_mass: use 'eagle', null "
            "or a list of paths"
        )
    if method.prune_ratio in (0, 1):
        raise ConfigError(
            f"prune_ratio {method.prune_ratio:g} leaves nothing to choose, so no attention_mass "
            f"is best: "
            "use one between 0 and 1"
        )


def calibrate(
    engine: Engine,
    clips: Sequence[Inputs],
    method: SpecVLM,
    masses: Sequence[float] = MASSES,
    max_new_tokens: int = 256,
    on_answer: Callable[[], None] = lambda: None,
) -> Calibration:
    """Answers every clip at every mass, greedily; everything else is as `method` says.

    Args:
        engine: a pair, or a target alone.
        clips: two to four prompts that are not measured with afterwards.
        method: its pruner must be `specvlm` for the mass to matter.
        masses: values of `attention_mass`.
        max_new_tokens: longest answer.
        on_answer: called after each.

    Raises:
        ConfigError: `check` refuses the method.
    """
    check(method)
    table = []
    for mass in masses:
        row = []
        for inputs in clips:
            chosen = replace(method, attention_mass=mass)
            result = engine.answer(
                inputs, method=chosen, max_new_tokens=max_new_tokens, do_sample=False
            ).run()
            row.append(result.stats.mean_acceptance_length)
            on_answer()
        table.append(tuple(row))
    return Calibration(tuple(masses), tuple(table))
