"""Calibration of a pruner on a few clips, as in appendix A of SpecVLM: the value with the longest
mean acceptance.

What is chosen is λ of pruner `specvlm`, the share of pruner `attention-sampled`, the layer L of the
pruners `uv` and `uv-sampled`, or the pruner itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import early_layer
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.methods.base import Method, has_option, to_dict, with_option
from draftlens_lab.measure.statistics import central_interval, resamples

MASSES = tuple(step / 10 for step in range(11))
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
LAYERS = (5, 10, 15, 20)


@dataclass(frozen=True)
class CalibratedOption:
    """What a calibration chooses."""

    option: str
    name: str
    plural: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Calibration:
    """Acceptance by value."""

    values: tuple[Any, ...]
    lengths: tuple[tuple[float, ...], ...]

    @property
    def curve(self) -> list[float]:
        """Mean acceptance length over the clips, by value."""
        return [mean(row) for row in self.lengths]

    @property
    def best(self) -> Any:
        """The value with the longest mean acceptance; of equal ones the first, which is the
        smallest of several masses (it spreads the most tokens evenly) or layers."""
        curve = self.curve
        return self.values[curve.index(max(curve))]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """The 95% bootstrap interval over the clips of each value's mean acceptance length; empty
        with a single clip."""
        if len(self.lengths[0]) < 2:
            return []
        draws = resamples(len(self.lengths[0]), seed=0)
        return [central_interval(np.asarray(row)[draws].mean(1)) for row in self.lengths]

    @property
    def is_clear(self) -> bool:
        """Whether the best value is longer than each other one by more than chance: the 95%
        interval of the difference, clip by clip, is above zero. A single clip shows nothing."""
        if not self.intervals:
            return False
        best = self.curve.index(max(self.curve))
        draws = resamples(len(self.lengths[0]), seed=0)
        for index, row in enumerate(self.lengths):
            gains = np.asarray(self.lengths[best]) - np.asarray(row)
            if index != best and central_interval(gains[draws].mean(1))[0] <= 0:
                return False
        return True


def check_calibration(method: Method, pruners: Sequence[str] = ()) -> None:
    """Refuse what cannot be calibrated.

    Args:
        pruners: names of pruners to choose from; none to choose an option of the method's own.
    """
    if not has_option(method, "pruner"):
        raise _nothing_to_choose()
    if not pruners:
        _option_of_pruner(method)
    for name in pruners:
        with_option(method, "pruner", name)
    prune_ratio = to_dict(method)["prune_ratio"]
    if prune_ratio in (0, 1):
        raise ConfigError(
            f"prune_ratio {prune_ratio:g} leaves nothing to choose, so nothing is best: use one "
            "between 0 and 1"
        )


def subject_of(method: Method, num_layers: int, pruners: Sequence[str] = ()) -> CalibratedOption:
    """What is calibrated, and the values to try."""
    if pruners:
        return CalibratedOption("pruner", "pruner", "pruners", tuple(pruners))
    option = _option_of_pruner(method)
    if option == "pruner.attention_mass":
        return CalibratedOption(option, "attention_mass", "masses", MASSES)
    if option == "pruner.share":
        return CalibratedOption(option, "share", "shares", SHARES)
    layers = sorted({early_layer(layer, num_layers) for layer in LAYERS})
    return CalibratedOption(option, "layer", "layers", tuple(layers))


def calibrate(
    engine: Engine,
    clips: Sequence[Inputs],
    method: Method,
    subject: CalibratedOption,
    max_new_tokens: int = 256,
    on_answer: Callable[[], None] = lambda: None,
) -> Calibration:
    """Answer every clip greedily with every value.

    Args:
        clips: two to four prompts that are not used for measurements afterwards.
        method: all its fields but the subject are used as they are. Instead of the automatic tree,
            which depends on measured times, EAGLE's is used.
    """
    if to_dict(method)["tree"] == "auto":
        method = with_option(method, "tree", "eagle")
    table = []
    for value in subject.values:
        row = []
        for inputs in clips:
            variant = with_option(method, subject.option, value)
            result = engine.answer(
                inputs, method=variant, max_new_tokens=max_new_tokens, do_sample=False
            ).run()
            row.append(result.stats.mean_acceptance_length)
            on_answer()
        table.append(tuple(row))
    return Calibration(subject.values, tuple(table))


def _option_of_pruner(method: Method) -> str:
    """The option that is calibrated: λ, L or the share, the first that the method's pruner has."""
    for option in ("pruner.attention_mass", "pruner.layer", "pruner.share"):
        if has_option(method, option):
            return option
    raise _nothing_to_choose()


def _nothing_to_choose() -> ConfigError:
    return ConfigError(
        "calibrate chooses the share of pruner attention-sampled, the attention_mass of pruner "
        "specvlm, the layer of the pruners uv and uv-sampled, or one of several --pruners"
    )
