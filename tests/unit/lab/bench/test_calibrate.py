"""Calibration on an engine that answers as told: every clip at every mass, and the best of the
curve."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from draftlens_lab.bench.calibrate import (
    MASSES,
    SHARES,
    CalibratedOption,
    Calibration,
    calibrate,
    check_calibration,
    subject_of,
)

from draftlens import SpecVLM
from draftlens.core.errors import ConfigError
from draftlens.methods.base import from_dict, to_dict, with_option
from draftlens.pruning.attention import SpecVLMPruner
from draftlens.pruning.similarity import UVPruner

METHOD = SpecVLM(
    prune_ratio=0.7,
    pruner={"name": "specvlm", "attention_mass": 0.25},
    tree=[[0], [0, 0]],
    sampling_rule="rejection",
)


@dataclass
class Told:
    """Stands in for an engine: its acceptance length depends on clip and mass, and it writes down
    what it is asked.

    Args:
        lengths: by clip and mass.
        asked: (clip, method, options) of each answer that was run.
    """

    lengths: dict[tuple[str, float], float]
    asked: list[tuple[str, SpecVLM, dict[str, Any]]] = field(default_factory=list)

    def answer(self, inputs: str, *, method: SpecVLM, **options: Any) -> Any:
        def run() -> Any:
            self.asked.append((inputs, method, options))
            length = self.lengths[inputs, method.pruner.attention_mass]
            return SimpleNamespace(stats=SimpleNamespace(mean_acceptance_length=length))

        return SimpleNamespace(run=run)


def found(engine: Any, clips: list[Any], masses: tuple[float, ...], **options: Any) -> Calibration:
    subject = CalibratedOption("pruner.attention_mass", "attention_mass", "masses", masses)
    return calibrate(engine, clips, METHOD, subject, **options)


def test_every_clip_is_answered_at_every_mass_and_nothing_else_changes() -> None:
    clips, masses = ["a", "b", "c"], (0.0, 0.4, 1.0)
    engine = Told({(clip, mass): 1.0 for clip in clips for mass in masses})
    heard: list[int] = []
    found(
        engine, clips, masses, max_new_tokens=7, on_answer=lambda: heard.append(len(engine.asked))
    )
    assert [(clip, method.pruner.attention_mass) for clip, method, _ in engine.asked] == [
        (clip, mass) for mass in masses for clip in clips
    ]
    assert {
        with_option(method, "pruner.attention_mass", 0.25) for _, method, _ in engine.asked
    } == {METHOD}
    assert all(
        options == {"max_new_tokens": 7, "do_sample": False} for _, _, options in engine.asked
    )
    assert heard == list(range(1, 10))


def test_the_curve_is_the_mean_over_the_clips_and_the_best_is_its_top() -> None:
    """No clip alone decides: the first likes 0.2 best, the second 0.8, both together 0.5."""
    engine = Told(
        {
            ("a", 0.2): 5.0,
            ("a", 0.5): 4.5,
            ("a", 0.8): 1.0,
            ("b", 0.2): 1.0,
            ("b", 0.5): 3.5,
            ("b", 0.8): 4.0,
        }
    )
    chosen = found(engine, ["a", "b"], (0.2, 0.5, 0.8))
    assert chosen.values == (0.2, 0.5, 0.8)
    assert chosen.lengths == ((5.0, 1.0), (4.5, 3.5), (1.0, 4.0))
    assert chosen.curve == pytest.approx([3.0, 4.0, 2.5])
    assert chosen.best == 0.5


def test_of_equals_the_smallest_mass_is_the_best() -> None:
    chosen = Calibration((0.1, 0.3, 0.6, 0.9), ((2.0,), (4.0,), (4.0,), (4.0,)))
    assert chosen.best == 0.3
    assert Calibration((0.0, 0.5), ((0.0,), (0.0,))).best == 0.0


def test_masses_are_tenths_from_nothing_to_all() -> None:
    assert MASSES == (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
    engine = Told({("a", mass): mass for mass in MASSES})
    clip: Any = "a"
    asked: Any = engine
    assert calibrate(asked, [clip], METHOD, subject_of(METHOD, 20)).best == 1
    assert len(engine.asked) == len(MASSES)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"prune_ratio": 0}, "prune_ratio 0 leaves nothing to choose"),
        ({"prune_ratio": 1.0}, "prune_ratio 1 leaves nothing to choose"),
        ({"pruner": "grid"}, "the attention_mass of pruner specvlm"),
    ],
)
def test_methods_without_a_best_mass_are_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_calibration(replace(METHOD, **fields))


def test_a_method_without_a_pruner_is_refused() -> None:
    for pruners in ([], ["uv"]):
        with pytest.raises(
            ConfigError, match="the layer of the pruners uv and uv-sampled, or one of several"
        ):
            check_calibration(from_dict({"method": "plain"}), pruners)


def test_layers_that_are_the_same_to_the_target_are_tried_once() -> None:
    """A target of 20 layers is read after 14 at most."""
    method = replace(METHOD, pruner={"name": "uv", "text": "after"})
    assert subject_of(method, 20) == CalibratedOption(
        "pruner.layer", "layer", "layers", (5, 10, 14)
    )
    assert subject_of(method, 80).values == (5, 10, 15, 20)
    assert subject_of(method, 2).values == (1,)
    check_calibration(method)


def test_pruners_are_compared_with_their_default_options() -> None:
    names = ["uv", "specvlm"]
    check_calibration(replace(METHOD, pruner="grid"), names)
    subject = subject_of(METHOD, 20, names)
    assert subject == CalibratedOption("pruner", "pruner", "pruners", ("uv", "specvlm"))
    tried: list[Any] = []

    def answer(inputs: str, *, method: SpecVLM, **options: Any) -> Any:
        tried.append(method.pruner)
        stats = SimpleNamespace(mean_acceptance_length=len(tried))
        return SimpleNamespace(run=lambda: SimpleNamespace(stats=stats))

    engine: Any = SimpleNamespace(answer=answer)
    clip: Any = "a"
    assert calibrate(engine, [clip], METHOD, subject).best == "specvlm"
    assert tried == [UVPruner(), SpecVLMPruner()]
    with pytest.raises(ConfigError, match="unknown pruner 'best'"):
        check_calibration(METHOD, ["uv", "best"])
    with pytest.raises(ConfigError, match="prune_ratio 0 leaves nothing to choose"):
        check_calibration(replace(METHOD, prune_ratio=0), names)


def test_the_automatic_tree_which_depends_on_times_is_replaced_by_that_of_eagle() -> None:
    asked: Any = Told({("a", mass): 1.0 for mass in MASSES})
    clip: Any = "a"
    method = from_dict({"method": "specvlm", "pruner": "specvlm"})
    assert to_dict(method)["tree"] == "auto"
    calibrate(asked, [clip], method, subject_of(method, 20))
    assert {to_dict(used)["tree"] for _, used, _ in asked.asked} == {"eagle"}


def test_what_is_calibrated_of_an_order_sample() -> None:
    """The share of the attention; of `uv-sampled` the layer, as of `uv`."""
    method = from_dict({"method": "specvlm"})
    assert subject_of(method, 20) == CalibratedOption("pruner.share", "share", "shares", SHARES)
    method = from_dict({"method": "specvlm", "pruner": "uv-sampled"})
    assert subject_of(method, 20).option == "pruner.layer"


def test_a_value_is_clearly_best_only_if_it_is_on_most_clips() -> None:
    """The intervals are those of a bootstrap over the clips."""
    clear = Calibration((1, 2), ((2.0, 3.0, 2.5, 2.2), (3.0, 4.0, 3.5, 3.2)))
    assert clear.best == 2
    assert clear.is_clear
    low, high = clear.intervals[1]
    assert 3.0 <= low < clear.curve[1] < high <= 4.0
    mixed = Calibration((1, 2), ((2.0, 3.0, 2.5, 2.2), (3.0, 2.0, 2.5, 2.3)))
    assert not mixed.is_clear
    alone = Calibration((1, 2), ((2.0,), (3.0,)))
    assert alone.intervals == []
    assert not alone.is_clear
