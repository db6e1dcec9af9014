"""A verdict on each of the paper's claims that acceptance can decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from draftlens_lab.measure.statistics import central_interval, resampled_ratios, resamples
from draftlens_lab.measure.tables import markdown_table
from numpy.typing import NDArray

Counts = Mapping[str, Mapping[str, Sequence[Sequence[float]]]]

VIEWS = ("M", "T", "P", "C")


@dataclass(frozen=True)
class Difference:
    """A relative difference of block efficiencies with its 95% interval over prompts."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


def efficiencies(pairs: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Block efficiency of every resample of the prompts of a kind; the same for all cases."""
    emitted = [int(pair[0]) for pair in pairs]
    passes = [int(pair[1]) for pair in pairs]
    return resampled_ratios(emitted, passes, resamples(len(pairs), 0))


def efficiency(pairs: Sequence[Sequence[float]]) -> float:
    """Tokens a pass."""
    return sum(pair[0] for pair in pairs) / max(1, sum(pair[1] for pair in pairs))


def mean_of_kinds(counts: Counts, name: str) -> tuple[float, NDArray[np.float64]]:
    """The mean over kinds, and that of every resample."""
    values = [efficiency(counts[kind][name]) for kind in counts]
    resampled = np.mean([efficiencies(counts[kind][name]) for kind in counts], axis=0)
    return float(np.mean(values)), resampled


def compare(counts: Counts, name: str, other: str) -> Difference:
    """How much better a case is than another one, in the mean of all kinds."""
    value, resampled = mean_of_kinds(counts, name)
    reference, others = mean_of_kinds(counts, other)
    low, high = central_interval(resampled / others - 1)
    return Difference(value / reference - 1, low, high)


def best_view(counts: Counts, kind: str) -> str:
    """The single view with the highest block efficiency on a kind, in hindsight."""
    return max(VIEWS, key=lambda view: efficiency(counts[kind][view]))


def share_of_best(counts: Counts, kind: str, name: str) -> Difference:
    """The block efficiency of a case as a share of the best view's, less one."""
    return share(counts[kind][name], counts[kind][best_view(counts, kind)])


def share(runs: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Difference:
    """The block efficiency of a case as a share of another one's on the same prompts, less one."""
    low, high = central_interval(efficiencies(runs) / efficiencies(others) - 1)
    return Difference(efficiency(runs) / efficiency(others) - 1, low, high)


def verdicts(counts: Counts) -> list[str]:
    """Claims, figures and verdicts."""
    rows = [
        _no_view_is_best(counts),
        _above("2: equal weights (MT) beat M", counts, "MT", "M"),
        _above("2: equal weights (MT) beat T", counts, "MT", "T"),
        _near_best(counts, "MT*", "3: MT* is best or second of M, T, MT on every kind"),
        _above("3: MT* beats MT", counts, "MT*", "MT"),
        _above("5: MTCP beats MT", counts, "MTCP", "MT"),
        _above("5: MTCP* beats MTCP", counts, "MTCP*", "MTCP"),
        _windows(counts),
        _trust(counts, "MT*"),
        _trust(counts, "MT, Bayes"),
        _above("8: by TV instead of KL", counts, "MTCP*, TV", "MTCP*"),
        _above("ours: Bayes (MT) beats MT*", counts, "MT, Bayes", "MT*"),
        _worst_kind(counts, "MT, Bayes"),
        _worst_kind(counts, "MTCP, Bayes"),
        _above("13: words instead of a picture, not a line break", counts, "W", "T"),
        _above("13: nothing instead of a picture, not a line break", counts, "N", "T"),
        _above("either view right, against M's two best", counts, "M or T right", "M's two best"),
    ]
    return markdown_table(["claim", "figure", "verdict"], rows)


def _verdict(difference: Difference) -> str:
    if difference.low > 0:
        return "holds"
    return "the contrary" if difference.high < 0 else "not seen"


def _above(claim: str, counts: Counts, name: str, other: str) -> list[Any]:
    difference = compare(counts, name, other)
    return [claim, str(difference), _verdict(difference)]


def _no_view_is_best(counts: Counts) -> list[Any]:
    best = {kind: best_view(counts, kind) for kind in counts}
    views = sorted(set(best.values()))
    figure = ", ".join(f"{kind}: {view}" for kind, view in best.items())
    return ["1: no view is best everywhere", figure, "holds" if len(views) > 1 else "fails"]


def _near_best(counts: Counts, name: str, claim: str) -> list[Any]:
    third = [
        kind
        for kind in counts
        if sum(
            efficiency(counts[kind][other]) > efficiency(counts[kind][name])
            for other in ("M", "T", "MT")
        )
        > 1
    ]
    figure = f"third or worse on {', '.join(third) or 'none'}"
    return [claim, figure, "fails" if third else "holds"]


def _windows(counts: Counts) -> list[Any]:
    names = ("MT*, h = 1", "MT*, h = 4", "MT*, h = 16", "MT*")
    values = [mean_of_kinds(counts, name)[0] for name in names]
    spread = max(values) - min(values)
    figure = f"{', '.join(f'{value:.3f}' for value in values)} for h = 1, 4, 16, all"
    return ["6: no window wins (within 0.06)", figure, "holds" if spread <= 0.06 else "fails"]


def _trust(counts: Counts, name: str) -> list[Any]:
    runs = [run for kind in counts for run in counts[kind][name]]
    contested = sum(int(run[4]) for run in runs)
    trusted = sum(run[5] for run in runs) / max(1, contested)
    claim = f"7: where one of M and T is right, {name} trusts it more"
    figure = f"weight of the right one {trusted:.2f}, {contested} tokens"
    return [claim, figure, "holds" if trusted > 0.5 else "fails"]


def _worst_kind(counts: Counts, name: str) -> list[Any]:
    shares = {kind: share_of_best(counts, kind, name) for kind in counts}
    worst = min(shares, key=lambda kind: shares[kind].value)
    figure = f"worst: {worst}, {shares[worst]}"
    claim = f"ours: {name} has 97% of the best view on every kind"
    return [claim, figure, "holds" if shares[worst].value >= -0.03 else "fails"]
