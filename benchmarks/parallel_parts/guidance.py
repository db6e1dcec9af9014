"""UV-Prune on the embedded pair: what its tokens are worth to the draft, and where they lie.

    PYTHONPATH=benchmarks python -m parallel_parts.guidance [--clips 30] [--long-clips 8]

Clips are held-out ones of the world. A greedy draft's ranks of the target's answer determine the
passes of a serial chain of 5, so every figure is a count and none depends on the load of the
machine; on the first clips the engine itself decodes and its passes are compared. Writes OUT.json
and OUT.md. The claims are those of ParallelVLM's figures 4, 7 and 9.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from draftlens_lab.evaluate.ranks import draft_ranks
from draftlens_lab.evaluate.samples import question_samples
from draftlens_lab.measure.statistics import central_interval, resampled_ratios, resamples
from draftlens_lab.world.samples import Sample
from numpy.typing import NDArray
from shared import PAIR, Benchmark, Report, backbones, caption_sample, grid, pair_of
from specvlm_parts.guidance import FAMILIES, ScorePruner
from specvlm_parts.scenes import TREES, Scene, check, passes, read_scene
from torch import Tensor

from draftlens.core.prefill_readings import ATTENTION, FeatureSpec
from draftlens.decoding.observer import Observer
from draftlens.drafting.pruning import Pruning
from draftlens.engine import Engine
from draftlens.models.attention.similarities import similarity
from draftlens.pruning import Choice, Pruner, make_pruner
from draftlens.pruning.similarity import UVPruner

RATIOS = (0.5, 0.9, 0.95)
CLAIM_RATIO = 0.9
DRAWS = 3
QUESTION_SEED = 8
DEPTHS = (1, 15, 20)
"""Layers at which similarities are read at any depth, beside those that the pruner may read."""

CHAIN = TREES["chain"]

FIRST_END = 1 / 128
LAST_END = 4 / 128
"""The 4% of the width that the paper looks at: frames 1 and 125 to 128 of 128."""

UV = "uv, L = 20"
ATTENDED = "attention, all layers"
PLAIN = "similarity, L = 20"
ATTENTION_VARIATION = "attention, variation, L = 20"
ATTENTION_PLAIN = "attention, L = 20"
UNPRUNED = "unpruned"

Rows = list[list[int]]
"""Per sample the counts of `COLUMNS`, over all draws of a case."""

COLUMNS = ("tokens", "proposed", "passes", "kept", "kept at the ends", "kept in the end frames")


def depths_of(engine: Engine) -> tuple[int, ...]:
    """Those of `DEPTHS` that the target has."""
    config = engine.target.backbone.model.config.get_text_config()
    return tuple(layer for layer in DEPTHS if layer <= config.num_hidden_layers)


def readings(engine: Engine) -> FeatureSpec:
    """What all cases need of the target's prefill."""
    spec = ATTENTION | FeatureSpec(hidden_layers=(0, *depths_of(engine)))
    for pruner in pruners().values():
        spec = spec | pruner.readings
    return spec


def pruners() -> dict[str, Pruner]:
    """The pruners of the library that are compared, by name of the case; `random` is drawn several
    times beside them."""
    return {
        UV: UVPruner(),
        **{f"uv, L = {layer}": UVPruner(layer=layer) for layer in (5, 10)},
        "uv, L = 20, text behind": UVPruner(text="after"),
        PLAIN: UVPruner(variation=False),
        ATTENDED: make_pruner("attention"),
        ATTENTION_PLAIN: UVPruner(criterion="attention", variation=False),
        ATTENTION_VARIATION: UVPruner(criterion="attention"),
        "uniform": make_pruner("uniform"),
    }


def measure_samples(
    engine: Engine,
    samples: Iterable[Sample],
    frames: int,
    ratios: Iterable[float],
    max_new_tokens: int,
    checked: int,
) -> dict[str, Any]:
    """Counts by case and sample, and the share of the target's attention at the ends.

    Args:
        engine: the embedded pair.
        samples: what is asked about.
        frames: of every clip.
        ratios: shares of the visual tokens that are removed.
        max_new_tokens: longest answer.
        checked: number of samples that the engine decodes as well.
    """
    counts: dict[str, Rows] = {}
    attention: list[float] = []
    widths: list[float] = []
    visual = 0
    for number, sample in enumerate(samples):
        scene = read_scene(engine, sample, frames, max_new_tokens, readings(engine))
        scores = attention_of(scene)
        at_ends = ends(len(scores))
        attention.append(float(scores[at_ends].sum() / scores.sum()))
        widths.append(float(at_ends.mean()))
        visual = len(scores)
        counts.setdefault(UNPRUNED, []).append(count(engine, scene, make_pruner("none"), 0.0))
        for ratio in ratios:
            for name, rows in counts_at(engine, scene, ratio).items():
                counts.setdefault(f"{name} {ratio}", []).append(rows)
        if number < checked:
            settings = {"prune_ratio": CLAIM_RATIO, "pruner": "uv"}
            check(engine, scene, settings, max_new_tokens)
    return {
        "visual": visual,
        "frames": frames,
        "ratios": list(ratios),
        "counts": counts,
        "attention_at_ends": attention,
        "width_of_ends": widths,
        "checked": checked,
    }


def counts_at(engine: Engine, scene: Scene, ratio: float) -> dict[str, list[int]]:
    """Counts of every case that prunes, by its name."""
    table = {name: count(engine, scene, pruner, ratio) for name, pruner in pruners().items()}
    for layer in depths_of(engine):
        table[f"any depth, L = {layer}"] = count(
            engine, scene, ScorePruner(variation_of(scene, layer)), ratio
        )
    draws = [
        count(engine, scene, make_pruner({"name": "random", "seed": seed}), ratio)
        for seed in range(DRAWS)
    ]
    table["random"] = np.sum(draws, 0).tolist()
    return table


def variation_of(scene: Scene, layer: int) -> Tensor:
    """Equation 3 at any depth, also where it would hide nothing, float32 ``[n]``."""
    prompt = scene.context.prompt
    states = scene.context.readings.hidden_states
    first, last = (
        similarity(states[place], prompt.visual, prompt.lengths, "all") for place in (0, layer)
    )
    return (last - first)[0, prompt.visual[0]]


def attention_of(scene: Scene) -> NDArray[np.float64]:
    """The target's attention to its visual tokens, over all layers, ``[n]``."""
    scores = scene.context.readings.attention
    assert scores is not None
    return scores[0, scene.context.prompt.visual[0]].double().numpy()


def count(engine: Engine, scene: Scene, pruner: Pruner, ratio: float) -> list[int]:
    """One row of `Rows` for one pruning."""
    target, draft = backbones(engine)
    choices: list[Choice] = []
    context = replace(scene.context, observer=Observer(on_choice=choices.append))
    pruned = Pruning(pruner, ratio).apply(scene.prompt, context).prompt
    ranks = draft_ranks(draft, pruned, [scene.answer], scene.prepared, target.vocab_size)[0]
    kept = choices[0].kept.numpy()
    frame = choices[0].visual.cells[:, 0].numpy()
    in_end_frames = (frame == 0) | (frame == frame.max())
    return [
        len(ranks),
        ranks.count(1),
        passes(ranks, CHAIN),
        len(kept),
        int(ends(len(frame))[kept].sum()),
        int(in_end_frames[kept].sum()),
    ]


def ends(count: int) -> NDArray[np.bool_]:
    """Which of some visual tokens lie in the first 0.8% or the last 3.1% of them, bool ``[n]``."""
    places = (np.arange(count) + 0.5) / count
    return (places < FIRST_END) | (places > 1 - LAST_END)


def measure(args: argparse.Namespace) -> Report:
    """Captions of 16 and 64 frames, and questions about 16."""
    engine = pair_of(args, calibrate=False)
    most = args.max_new_tokens
    captions = [caption_sample(seed) for seed in range(max(args.clips, args.long_clips))]
    questions = [
        sample
        for family in FAMILIES
        for sample in question_samples(family, args.questions, QUESTION_SEED)
    ]
    found = {
        "captions of 16 frames": measure_samples(
            engine, captions[: args.clips], 16, RATIOS, most, args.checked
        ),
        "captions of 64 frames": measure_samples(
            engine, captions[: args.long_clips], 64, RATIOS, most, 0
        ),
        "questions about 16 frames": measure_samples(
            engine, questions, 16, (CLAIM_RATIO,), most, 0
        ),
    }
    return {"found": found}


def page(report: Report) -> list[str]:
    """Lengths by case, and where the kept tokens lie."""
    blocks = []
    for title, part in report["found"].items():
        samples = len(part["counts"][UNPRUNED])
        blocks.append(f"## {title[0].upper()}{title[1:]}")
        blocks.append(f"{samples} samples, {part['visual']} visual tokens.")
        blocks += questions_page(part) if "questions" in title else captions_page(part)
    return blocks


def captions_page(part: Mapping[str, Any]) -> list[str]:
    """Acceptance lengths and places of one number of frames."""
    headings = {f"r = {ratio}": ratio for ratio in part["ratios"]}
    places = {f"{place}, r = {r}": (column, r) for r in part["ratios"] for place, column in PLACES}

    def length(name: str, heading: str) -> str:
        return with_interval(part, case_of(name, headings[heading]), "tokens", "passes", ".2f")

    def place(name: str, heading: str) -> str:
        column, ratio = places[heading]
        return f"{ratio_of(part, case_of(name, ratio), column, 'kept'):.1%}"

    return [
        "Mean acceptance length of a serial chain of 5, 95% intervals over clips:",
        grid("the draft reads", [UNPRUNED, *names_of(part)], headings, length),
        "The ends are the first 0.8% and the last 3.1% of the visual tokens "
        f"({part['width_of_ends'][0]:.1%} of them here), as the paper's frames 1 and 125 to 128 of "
        f"128. They receive {np.mean(part['attention_at_ends']):.1%} of the attention to visual "
        "tokens. Of the tokens that are kept there lie at the ends, and in the first and the last "
        f"of {part['frames']} frames:",
        grid("kept by", names_of(part), places, place),
        f"The engine confirmed tokens and passes of the first {part['checked']} clips."
        if part["checked"]
        else "",
    ]


PLACES = (("ends", "kept at the ends"), ("end frames", "kept in the end frames"))


def questions_page(part: Mapping[str, Any]) -> list[str]:
    """Share of the answers' tokens that the draft proposes."""

    def proposed(name: str, _: str) -> str:
        return with_interval(part, case_of(name, CLAIM_RATIO), "proposed", "tokens", ".1%")

    names = [UNPRUNED, *names_of(part)]
    return [grid("the draft reads", names, [f"tokens proposed, r = {CLAIM_RATIO}"], proposed)]


def case_of(name: str, ratio: float) -> str:
    """The case of a name at a ratio."""
    return name if name == UNPRUNED else f"{name} {ratio}"


def names_of(part: Mapping[str, Any]) -> list[str]:
    """The cases that prune, without their ratios."""
    pruned = [case for case in part["counts"] if case != UNPRUNED]
    return list(dict.fromkeys(case.rsplit(" ", 1)[0] for case in pruned))


def ratio_of(part: Mapping[str, Any], case: str, above: str, below: str) -> float:
    """The ratio of two columns, over all samples."""
    totals = dict(zip(COLUMNS, np.sum(part["counts"][case], 0), strict=True))
    return float(totals[above] / totals[below])


def with_interval(part: Mapping[str, Any], case: str, above: str, below: str, form: str) -> str:
    """A ratio with its 95% interval over samples."""
    rows = np.asarray(part["counts"][case])
    counts, bases = (rows[:, COLUMNS.index(name)].tolist() for name in (above, below))
    low, high = central_interval(resampled_ratios(counts, bases, resamples(len(rows), 0)))
    return f"{ratio_of(part, case, above, below):{form}} ({low:{form}} to {high:{form}})"


BENCHMARK = Benchmark(
    "parallel_guidance",
    __doc__,
    "UV-Prune on the embedded pair",
    measure,
    page,
    {
        **PAIR,
        "--clips": {"type": int, "default": 30, "help": "clips of 16 frames"},
        "--long-clips": {"type": int, "default": 8, "help": "clips of 64 frames"},
        "--questions": {"type": int, "default": 20, "help": "questions of each family"},
        "--checked": {"type": int, "default": 4, "help": "clips that the engine decodes"},
    },
)
