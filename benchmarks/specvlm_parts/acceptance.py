"""What pruning costs in acceptance, by pruner and ratio, and a verdict on each claim of the paper's
figures 6 to 8."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from shared import clip

from draftlens.api import Engine
from draftlens.evaluate.shares import middle, ratio, resamples
from specvlm_parts.seeing import TREES, Scene, check, passes, pruning_of, ranks, scene

RATIOS = (0.5, 0.75, 0.9, 0.95, 0.97)
TEMPORAL = ("frames", "fastvid", "dycoke")
WINDOWS = ("front", "middle", "end")
MASSES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
DRAWS = 3  # of pruner `random`
CALIBRATION, CALIBRATED_AT = range(9000, 9004), 0.9  # clips that nothing else is measured on
SELF = {
    "self, prefill": {"draft": "self"},
    "self, gather": {"draft": "self", "kv": "gather"},
    "self, sparse": {"draft": "self", "kv": "sparse"},
    "self, random": {"draft": "self", "pruner": "random"},
}
Settings = dict[str, Any]
Counts = dict[
    str, list[list[int]]
]  # by case and clip: tokens behind the first, passes of a chain, passes of a tree


def measure(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Counts by case, for each length of clip."""
    return {str(frames): by_length(engine, frames, args) for frames in args.frames}


def by_length(engine: Engine, frames: int, args: argparse.Namespace) -> dict[str, Any]:
    """Counts of every case over the same clips of so many frames."""
    mass, curve = calibrated(engine, frames, args.max_new_tokens)
    chosen, found, selves = cases(mass), Counts(), Counts()
    visual = 0
    for seed in range(args.clips):
        shown = scene(engine, clip(seed), frames, args.max_new_tokens)
        visual = int(shown.prompt.visual.sum())
        for name, draws in chosen.items():
            found.setdefault(name, []).append(count(engine, shown, draws))
        if seed < args.checked:
            for name in ("specvlm 0.9", "random 0.9", "specvlm 0.9 compact"):
                check(engine, shown, chosen[name][0], args.max_new_tokens)
            for name, settings in SELF.items():
                selves.setdefault(name, []).append(
                    decode(engine, shown, settings, args.max_new_tokens)
                )
    return {
        "visual": visual,
        "mass": mass,
        "masses": curve,
        "counts": found,
        "self": selves,
        "checked": args.checked,
    }


def cases(mass: float) -> dict[str, list[Settings]]:
    """Name of a case to the settings of its draws; `mass` is the calibrated λ."""
    table: dict[str, list[Settings]] = {
        "all": [{"prune_ratio": 0.0}],
        "none": [{"prune_ratio": 1.0}],
    }
    for r in RATIOS:
        table[f"specvlm {r}"] = [{"prune_ratio": r, "attention_mass": mass}]
        table[f"specvlm, λ 0.4 {r}"] = [{"prune_ratio": r}]
        for pruner in ("attention", "uniform", "grid", *TEMPORAL):
            table[f"{pruner} {r}"] = [{"prune_ratio": r, "pruner": pruner}]
        for window in WINDOWS:
            table[f"window {window} {r}"] = [
                {"prune_ratio": r, "pruner": "window", "window": window}
            ]
        table[f"random {r}"] = [
            {"prune_ratio": r, "pruner": "random", "seed": seed} for seed in range(DRAWS)
        ]
    table["specvlm 0.9 compact"] = [
        {"prune_ratio": 0.9, "attention_mass": mass, "positions": "compact"}
    ]
    table["random 0.9 compact"] = [{**one, "positions": "compact"} for one in table["random 0.9"]]
    return table


def count(engine: Engine, shown: Scene, draws: Sequence[Settings]) -> list[int]:
    """Tokens and passes of a chain and a tree, over all draws."""
    ranked = [ranks(engine, shown, pruning_of(settings)) for settings in draws]
    return [
        sum(map(len, ranked)),
        *(sum(passes(row, tree) for row in ranked) for tree in TREES.values()),
    ]


def decode(engine: Engine, shown: Scene, settings: Settings, max_new_tokens: int) -> list[int]:
    """The same counted by the engine: a draft that shares the target's cache has no simpler way."""
    counts = [len(shown.answer) - 1]
    for tree in (None, "eagle"):
        method = {"method": "specvlm", "tree": tree, **settings}
        result = engine.answer(
            shown.inputs, method=method, max_new_tokens=max_new_tokens, do_sample=False
        ).run()
        assert result.tokens == [shown.answer], f"{settings}: another answer"
        counts.append(result.stats.passes)
    return counts


def calibrated(engine: Engine, frames: int, max_new_tokens: int) -> tuple[float, dict[str, float]]:
    """The λ that serves best on a few clips (appendix A), by tokens a pass of the tree, and the
    whole curve."""
    totals = {mass: [0, 0, 0] for mass in MASSES}
    for seed in CALIBRATION:
        shown = scene(engine, clip(seed), frames, max_new_tokens)
        for mass, total in totals.items():
            more = count(engine, shown, [{"prune_ratio": CALIBRATED_AT, "attention_mass": mass}])
            total[:] = [a + b for a, b in zip(total, more, strict=True)]
    curve = {mass: total[0] / total[2] for mass, total in totals.items()}
    return max(curve, key=lambda mass: curve[mass]), {
        str(mass): value for mass, value in curve.items()
    }


class Lengths:
    """Mean acceptance lengths of every case, and of resampled clips.

    Args:
        counts: by case.
        tree: "chain" or "tree".
    """

    def __init__(self, counts: Counts, tree: str) -> None:
        self.counts, self.column = counts, 1 + list(TREES).index(tree)
        self.drawn = resamples(len(counts["all"]), 0)

    def mean(self, case: str) -> float:
        """Tokens emitted by passes / passes, over all clips."""
        tokens, _, _ = totals = np.sum(self.counts[case], 0)
        return float(tokens / totals[self.column])

    def resampled(self, case: str) -> NDArray[np.float64]:
        """The same of each resample."""
        table = np.asarray(self.counts[case])
        return ratio(table[:, 0].tolist(), table[:, self.column].tolist(), self.drawn)

    def margin(self, case: str, other: str) -> Verdict:
        """How much longer one case is than another, of the unpruned length."""
        whole = self.mean("all")
        gains = (self.resampled(case) - self.resampled(other)) / whole
        return (self.mean(case) - self.mean(other)) / whole, middle(gains)

    def growth(self, case: str, other: str, low: float, high: float) -> Verdict:
        """How much larger the margin is at the higher of two ratios."""
        at = {r: self.margin(f"{case} {r}", f"{other} {r}")[0] for r in (low, high)}
        gains = {
            r: self.resampled(f"{case} {r}") - self.resampled(f"{other} {r}") for r in (low, high)
        }
        return at[high] - at[low], middle((gains[high] - gains[low]) / self.mean("all"))


Verdict = tuple[float, tuple[float, float]]  # a difference and its 95% interval over clips


def tell(found: dict[str, Any]) -> list[str]:
    """Tables and verdicts."""
    lines = ["## Mean acceptance length", ""]
    for frames, part in found.items():
        clips = len(part["counts"]["all"])
        lines += [
            f"### {clips} held-out clips of {frames} frames, {part['visual']} visual tokens",
            "",
        ]
        for tree, title in (("tree", "EAGLE's tree, 25 nodes"), ("chain", "Chain, γ = 5")):
            lines += [*table(Lengths(part["counts"], tree), title), ""]
        lines += [*others(part), "", *verdicts(Lengths(part["counts"], "tree")), ""]
        lines += [
            f"Counted from the draft's ranks of the answer's tokens; on the first "
            f"{part['checked']} clips the engine "
            "itself said the same tokens in as many passes.",
            "",
        ]
    return lines[:-1]


def table(lengths: Lengths, title: str) -> list[str]:
    """By pruner and ratio."""
    whole, none = lengths.mean("all"), lengths.mean("none")
    lines = [f"{title}: all visual tokens {whole:.2f}, none {none:.2f}.", ""]
    lines += [
        "| pruner | " + " | ".join(f"r = {r}" for r in RATIOS) + " |",
        "|---|" + "---:|" * len(RATIOS),
    ]
    names = dict.fromkeys(
        name.rsplit(" ", 1)[0] for name in lengths.counts if name.endswith(f" {RATIOS[0]}")
    )
    for name in names:
        lines.append(
            f"| {name} | " + " | ".join(f"{lengths.mean(f'{name} {r}'):.2f}" for r in RATIOS) + " |"
        )
    return lines


def others(part: dict[str, Any]) -> list[str]:
    """λ, positions and self-speculation."""
    lengths = Lengths(part["counts"], "tree")
    curve = ", ".join(f"{mass}: {value:.2f}" for mass, value in part["masses"].items())
    lines = [
        f"λ by the tree's length at r = {CALIBRATED_AT} on {len(CALIBRATION)} other clips: "
        f"{curve}. "
    ]
    lines[-1] += f"`specvlm` has the best of them, {part['mass']}."
    compact = ", ".join(
        f"{n} {lengths.mean(f'{n} 0.9 compact'):.2f}" for n in ("specvlm", "random")
    )
    lines += ["", f"Compact positions at r = 0.9, tree: {compact}."]
    selves = {name: np.sum(rows, 0) for name, rows in part["self"].items()}
    told = ", ".join(f"{name} {row[0] / row[2]:.2f}" for name, row in selves.items())
    return [
        *lines,
        "",
        f"Self-speculation at r = 0.9, tree, the first {part['checked']} clips: {told}.",
    ]


def claims(lengths: Lengths) -> list[tuple[str, Verdict]]:
    """What the paper says, as differences that should be above zero."""

    def margin(a: str, b: str, r: float) -> Verdict:
        return lengths.margin(f"{a} {r}", f"{b} {r}")

    rows = [
        (f"fig. 6: specvlm beats random at r = {r}", margin("specvlm", "random", r)) for r in RATIOS
    ]
    rows.append(
        (
            "fig. 6: its margin grows from r = 0.5 to 0.97",
            lengths.growth("specvlm", "random", 0.5, 0.97),
        )
    )
    rows += [
        (f"fig. 7a: attention beats the {w} window", margin("attention", f"window {w}", 0.9))
        for w in WINDOWS
    ]
    for pruner in TEMPORAL:
        rows.append((f"fig. 7b: uniform beats {pruner}", margin("uniform", pruner, 0.9)))
        rows.append((f"fig. 7b: random beats {pruner}", margin("random", pruner, 0.9)))
    rows.append(
        ("fig. 8: with stage I better than without (uniform)", margin("specvlm", "uniform", 0.9))
    )
    rows.append(
        (
            "fig. 8: with stage II better than without (attention)",
            margin("specvlm", "attention", 0.9),
        )
    )
    return rows


def verdicts(lengths: Lengths) -> list[str]:
    """Each claim with its difference; r = 0.9 where none is named."""
    kept = lengths.mean("specvlm 0.9") / lengths.mean("all")
    low, high = middle(lengths.resampled("specvlm 0.9") / lengths.resampled("all"))
    lines = [
        f"At r = 0.9 `specvlm` keeps {kept:.1%} ({low:.1%} to {high:.1%}) of the unpruned "
        f"length (tree).",
        "",
    ]
    lines += [
        "| claim of the paper (tree, r = 0.9) | difference, of the unpruned length | here |",
        "|---|---:|---|",
    ]
    for claim, (value, (low, high)) in claims(lengths):
        verdict = "holds" if low > 0 else "the contrary" if high < 0 else "not seen"
        lines.append(f"| {claim} | {value:+.1%} ({low:+.1%} to {high:+.1%}) | {verdict} |")
    return lines
