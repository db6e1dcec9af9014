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
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world.samples import Sample
from numpy.typing import NDArray
from shared import (
    argument_parser,
    backbones,
    caption_sample,
    configure,
    environment,
    environment_line,
    save,
)
from specvlm_parts.guidance import FAMILIES, ScorePruner
from specvlm_parts.scenes import TREES, Scene, check, passes, read_scene
from torch import Tensor

import draftlens
from draftlens.core.prefill_readings import ATTENTION, FeatureSpec
from draftlens.decoding.observer import Observer
from draftlens.drafting.pruning import Pruning
from draftlens.engine import Engine
from draftlens.models.attention.similarities import similarity
from draftlens.pruning import Choice, Pruner, make_pruner
from draftlens.pruning.similarity import UVPruner

PREDICTION = """Written before the first run of this script; a replay of 30 clips at r = 0.9 was
known (uv 3.73, attention 3.82, random 3.92, uniform 3.97, unpruned 4.25; uv has 42% of its tokens
in the first and last of 16 frames, attention 30%). Captions of 16 frames at r = 0.9: uv is 0.1
below attention and 0.2 below even spreading, and no variant of it beats random. L = 5 is as good as
L = 10, and both are better than L = 14 and more. Text after the pictures alone changes less than
0.05. The variation helps similarity by 0.1 and attention by nothing. At r = 0.5 all are within 0.1
of unpruned, at 0.95 the distances are those of 0.9. At 64 frames uv is 0.3 below unpruned at
r = 0.9, random 0.05. In the 4% of the width at the ends lie 15% of the tokens that attention keeps
and 20% of those that uv keeps. Questions, share of tokens guessed: attention one point above
random, uv not above it.
(A trial of two clips, one long clip and four questions followed, to test the script; the prediction
was not changed.)"""

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
BASELINES = ("random", "uniform")

Rows = list[list[int]]
"""Per sample the counts of `COLUMNS`, over all draws of a case."""

COLUMNS = ("tokens", "proposed", "passes", "kept", "kept at the ends", "kept in the end frames")


def readings() -> FeatureSpec:
    """What all cases need of the target's prefill."""
    spec = ATTENTION | FeatureSpec(hidden_layers=(0, *DEPTHS))
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


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Captions of 16 and 64 frames, and questions about 16."""
    most = args.max_new_tokens
    captions = [caption_sample(seed) for seed in range(max(args.clips, args.long_clips))]
    questions = [
        sample
        for family in FAMILIES
        for sample in question_samples(family, args.questions, QUESTION_SEED)
    ]
    return {
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
        scene = read_scene(engine, sample, frames, max_new_tokens, readings())
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
    for layer in DEPTHS:
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


class Outcome:
    """The counts of one kind of samples.

    Args:
        part: figures of `measure_samples`.
    """

    def __init__(self, part: Mapping[str, Any]) -> None:
        self.part = part
        self.counts: dict[str, Rows] = part["counts"]
        self.samples = len(self.counts[UNPRUNED])
        self.indices = resamples(self.samples, 0)

    def ratio(self, case: str, above: str, below: str) -> float:
        """The ratio of two columns, over all samples."""
        totals = dict(zip(COLUMNS, np.sum(self.counts[case], 0), strict=True))
        return float(totals[above] / totals[below])

    def resampled(self, case: str, above: str, below: str) -> NDArray[np.float64]:
        """The same of each resample."""
        table = np.asarray(self.counts[case])
        counts, bases = (table[:, COLUMNS.index(name)].tolist() for name in (above, below))
        return resampled_ratios(counts, bases, self.indices)

    def with_interval(self, case: str, above: str, below: str, form: str) -> str:
        """A ratio with its 95% interval over samples."""
        low, high = central_interval(self.resampled(case, above, below))
        return f"{self.ratio(case, above, below):{form}} ({low:{form}} to {high:{form}})"

    def difference(self, case: str, baseline: str, above: str, below: str) -> list[float]:
        """A ratio minus that of another case, with the ends of its 95% interval."""
        resampled = self.resampled(case, above, below) - self.resampled(baseline, above, below)
        value = self.ratio(case, above, below) - self.ratio(baseline, above, below)
        return [value, *central_interval(resampled)]

    def excess(self, case: str) -> list[float]:
        """Share of the kept tokens at the ends minus the ends' share of all tokens, with the ends
        of its 95% interval."""
        width = self.part["width_of_ends"][0]
        columns = ("kept at the ends", "kept")
        low, high = central_interval(self.resampled(case, *columns))
        return [self.ratio(case, *columns) - width, low - width, high - width]


def verdict(difference: Iterable[float]) -> str:
    """Whether a difference is above zero."""
    _, low, high = difference
    if low > 0:
        return "holds"
    return "the contrary" if high < 0 else "not seen"


def report(figures: Mapping[str, Any]) -> list[str]:
    """Tables and verdicts as lines of Markdown."""
    lines = []
    for title, part in figures.items():
        outcome = Outcome(part)
        lines += [f"## {title[0].upper()}{title[1:]}", ""]
        lines += [f"{outcome.samples} samples, {part['visual']} visual tokens.", ""]
        if "questions" in title:
            lines += [*question_table(outcome), ""]
            continue
        lines += ["Mean acceptance length of a serial chain of 5, 95% intervals over clips:", ""]
        lines += [*length_table(outcome), ""]
        lines += [*place_lines(outcome), ""]
        lines += [*place_table(outcome), ""]
        if part["checked"]:
            number = part["checked"]
            lines += [
                f"On the first {number} clips the engine itself, with pruner uv at r = "
                f"{CLAIM_RATIO}, said the same tokens in as many passes.",
                "",
            ]
    lines += [
        "## Claims of the paper",
        "",
        "A claim holds if the whole interval lies above zero, whatever the size of the difference; "
        "L = 20, and any L from 14 on, means after 14 layers of this target.",
        "",
    ]
    lines += claim_table({title: Outcome(part) for title, part in figures.items()})
    return lines


def names_of(outcome: Outcome) -> list[str]:
    """The cases that prune, without their ratios."""
    return list(
        dict.fromkeys(case.rsplit(" ", 1)[0] for case in outcome.counts if case != UNPRUNED)
    )


def length_table(outcome: Outcome) -> list[str]:
    """Mean acceptance lengths by case and ratio."""
    columns = ("tokens", "passes")
    ratios = outcome.part["ratios"]
    whole = outcome.with_interval(UNPRUNED, *columns, ".2f")
    rows = [[UNPRUNED, *[whole] * len(ratios)]]
    for name in names_of(outcome):
        cells = [outcome.with_interval(f"{name} {ratio}", *columns, ".2f") for ratio in ratios]
        rows.append([name, *cells])
    return markdown_table(["the draft reads", *(f"r = {ratio}" for ratio in ratios)], rows)


def place_lines(outcome: Outcome) -> list[str]:
    """Where attention goes."""
    part = outcome.part
    share = float(np.mean(part["attention_at_ends"]))
    width = part["width_of_ends"][0]
    return [
        f"The ends are the first 0.8% and the last 3.1% of the visual tokens ({width:.1%} of them "
        f"here), as the paper's frames 1 and 125 to 128 of 128. They receive {share:.1%} of the "
        f"attention to visual tokens. Of the tokens that are kept there lie at the ends, and in "
        f"the first and the last of {part['frames']} frames:"
    ]


def place_table(outcome: Outcome) -> list[str]:
    """Where the kept tokens lie, by case and ratio."""
    ratios = outcome.part["ratios"]
    headings = ["kept by"]
    for ratio in ratios:
        headings += [f"ends, r = {ratio}", "end frames"]
    rows = []
    for name in names_of(outcome):
        cells = [name]
        for ratio in ratios:
            for place in COLUMNS[-2:]:
                cells.append(f"{outcome.ratio(f'{name} {ratio}', place, 'kept'):.1%}")
        rows.append(cells)
    return markdown_table(headings, rows)


def question_table(outcome: Outcome) -> list[str]:
    """Share of the answers' tokens that the draft proposes."""
    columns = ("proposed", "tokens")
    rows = [[UNPRUNED, outcome.with_interval(UNPRUNED, *columns, ".1%")]]
    for name in names_of(outcome):
        case = f"{name} {CLAIM_RATIO}"
        rows.append([name, outcome.with_interval(case, *columns, ".1%")])
    return markdown_table(["the draft reads", f"tokens proposed, r = {CLAIM_RATIO}"], rows)


def claim_table(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Every claim with its figures on each kind of samples, and a verdict for each."""
    rows = []
    for title, outcome in outcomes.items():
        if "questions" in title:
            columns = ("proposed", "tokens")
            form = "+.1%"
        else:
            columns = ("tokens", "passes")
            form = "+.2f"
            rows += place_rows(title, outcome)
        for claim, case, baseline in DIFFERENCES:
            names = (f"{case} {CLAIM_RATIO}", f"{baseline} {CLAIM_RATIO}")
            difference = outcome.difference(*names, *columns)
            rows.append([claim, title, text_of(difference, form), verdict(difference)])
    rows.append(
        [
            "(6) fig. 9: converged at L = 20",
            "all",
            "of 20 layers, 4 of them trained, 14 at most are read; see the rows of L",
            "cannot be tested here",
        ]
    )
    headings = ["claim", "samples", f"difference at r = {CLAIM_RATIO}", "here"]
    return markdown_table(headings, rows, text_columns=(0, 1, 3))


DIFFERENCES = (
    ("(5) fig. 7b: uv above attention by 0.2", UV, ATTENDED),
    ("(5) fig. 7b: uv above random by 0.3 to 0.5", UV, "random"),
    ("(5) fig. 7b: uv above uniform by 0.3 to 0.5", UV, "uniform"),
    ("(6) fig. 9: variation helps similarity", UV, PLAIN),
    ("(6) fig. 9: variation helps attention", ATTENTION_VARIATION, ATTENTION_PLAIN),
    ("(6) fig. 9: L = 20 above L = 5", UV, "uv, L = 5"),
    ("(6) fig. 9: L = 20 above L = 10", UV, "uv, L = 10"),
    ("(6) fig. 9: similarity above attention, plain", PLAIN, ATTENTION_PLAIN),
    ("(6) fig. 9: similarity above attention, variation", UV, ATTENTION_VARIATION),
)
"""Claim, case and baseline; the difference should be above zero."""


def place_rows(title: str, outcome: Outcome) -> list[list[str]]:
    """The claims on where the kept tokens lie."""
    attended = outcome.excess(f"{ATTENDED} {CLAIM_RATIO}")
    kept = outcome.excess(f"{UV} {CLAIM_RATIO}")
    has_none = {"holds": "the contrary"}.get(verdict(kept), "holds")
    return [
        [
            "(3) fig. 4: attention keeps too many at the ends (+17%)",
            title,
            text_of(attended, "+.1%"),
            verdict(attended),
        ],
        ["(4) fig. 7a: uv does not", title, text_of(kept, "+.1%"), has_none],
    ]


def text_of(difference: Iterable[float], form: str) -> str:
    """A difference with its interval."""
    value, low, high = difference
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/parallel_guidance", repeats=1)
    parser.add_argument("--clips", type=int, default=30, help="clips of 16 frames")
    parser.add_argument("--long-clips", type=int, default=8, help="clips of 64 frames")
    parser.add_argument("--questions", type=int, default=20, help="questions of each family")
    parser.add_argument("--checked", type=int, default=4, help="clips that the engine decodes")
    args = parser.parse_args()
    configure(args.threads)
    engine = draftlens.load("embedded", device="cpu", calibrate=False)
    figures = measure(engine, args)
    facts = environment(args)
    prediction = " ".join(PREDICTION.split())
    written = {
        "prediction": prediction,
        "found": figures,
        "environment": facts,
    }
    lines = ["# UV-Prune on the embedded pair", "", *report(figures), ""]
    lines += [f"<sub>{environment_line(facts)}</sub>", ""]
    lines += ["Prediction. " + prediction, ""]
    page = "\n".join(lines)
    save(args.out, written, page)
    print(page)


if __name__ == "__main__":
    main()
