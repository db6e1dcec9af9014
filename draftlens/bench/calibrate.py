"""Calibration of SpecVLM's λ on a few clips, as in appendix A of the paper: the value with the
longest mean acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from draftlens.api import Engine, Inputs
from draftlens.core.errors import ConfigError
from draftlens.methods import Method, to_dict, with_option

MASSES = tuple(step / 10 for step in range(11))


@dataclass(frozen=True)
class Calibration:
    """Acceptance by attention mass.

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
        """The mass with the longest mean acceptance; of equal ones the smallest, which spreads the
        most tokens evenly."""
        curve = self.curve
        return self.masses[curve.index(max(curve))]


def check(method: Method) -> None:
    """Refuse a method for which no mass could be found.

    Raises:
        ConfigError: the method has no attention mass, or it prunes no token or every token.
    """
    options = to_dict(method)
    pruner = options.get("pruner")
    if pruner is None or pruner["name"] != "specvlm":
        raise ConfigError(
            "calibrate chooses the attention_mass of method specvlm with pruner specvlm"
        )
    prune_ratio = options["prune_ratio"]
    if prune_ratio in (0, 1):
        raise ConfigError(
            f"prune_ratio {prune_ratio:g} leaves nothing to choose, so no attention_mass is best: "
            "use one between 0 and 1"
        )


def calibrate(
    engine: Engine,
    clips: Sequence[Inputs],
    method: Method,
    masses: Sequence[float] = MASSES,
    max_new_tokens: int = 256,
    on_answer: Callable[[], None] = lambda: None,
) -> Calibration:
    """Answer every clip greedily with every mass.

    Args:
        engine: a pair, or a target alone.
        clips: two to four prompts that are not used for measurements afterwards.
        method: all its fields but `attention_mass` are used as they are. Instead of the automatic
            tree, which depends on measured times, EAGLE's is used.
        masses: values of `attention_mass`.
        max_new_tokens: longest answer in tokens.
        on_answer: called after each answer.

    Raises:
        ConfigError: `check` refuses the method.
    """
    check(method)
    if to_dict(method)["tree"] == "auto":
        method = with_option(method, "tree", "eagle")
    table = []
    for mass in masses:
        row = []
        for inputs in clips:
            variant = with_option(method, "pruner.attention_mass", mass)
            result = engine.answer(
                inputs, method=variant, max_new_tokens=max_new_tokens, do_sample=False
            ).run()
            row.append(result.stats.mean_acceptance_length)
            on_answer()
        table.append(tuple(row))
    return Calibration(tuple(masses), tuple(table))
