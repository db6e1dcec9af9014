"""The tables of ParallelVLM as data, with their numbers in the paper.

Times are in seconds, windows and accepted lengths in tokens. "Pruning ratio" is the share of visual
tokens that the draft does not read (the paper's α).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One method in Table 1.

    Args:
        lengths: M on each of `DATASETS`. In rows of serial methods it is the number of tokens a
            pass; in the rows of ParallelVLM it is the run length between corrections.
        speedups: over plain decoding on each of `DATASETS`, decode time only.
        mean: the printed mean of the speedups.
    """

    lengths: tuple[float, ...]
    speedups: tuple[float, ...]
    mean: float

    @property
    def length(self) -> float:
        """The mean of M."""
        return sum(self.lengths) / len(self.lengths)


@dataclass(frozen=True)
class Pair:
    """A target and its draft.

    Args:
        target: seconds of a target forward (Table 5, column T_p).
        draft: seconds of a draft step by pruning ratio (Table 5, columns T_q).
        window: γ of ParallelVLM at a ratio of 0.9 (caption of Table 1).
        rows: of Table 1 by method.
    """

    target: float
    draft: Mapping[float, float]
    window: int
    rows: Mapping[str, Row]


BASELINE_WINDOWS: Mapping[str, int] = {
    "Vanilla SD": 5,
    "OnSD": 5,
    "SD-Tree": 5,
    "SpecVLM": 5,
    "STD": 9,
}
"""Tokens in a row that the serial methods draft (caption of Table 1)."""

PAIRS: Mapping[str, Pair] = {
    "OV 0.5B & 7B": Pair(
        0.0783,
        {0.0: 0.0461, 0.5: 0.0325, 0.9: 0.0258},
        3,
        {
            "Vanilla SD": Row((4.26, 4.34, 4.18, 4.22, 4.32), (1.08, 1.10, 1.05, 1.05, 1.01), 1.06),
            "OnSD": Row((3.73, 3.67, 3.78, 3.56, 3.76), (1.40, 1.38, 1.32, 1.29, 1.36), 1.35),
            "SD-Tree": Row((5.08, 5.05, 4.97, 4.90, 5.12), (1.28, 1.28, 1.25, 1.24, 1.26), 1.26),
            "SpecVLM": Row((4.89, 4.83, 4.76, 4.71, 4.92), (1.83, 1.82, 1.77, 1.76, 1.86), 1.81),
            "ParallelVLM": Row(
                (8.47, 7.86, 8.64, 8.24, 8.35), (2.12, 2.06, 2.15, 2.14, 2.10), 2.11
            ),
        },
    ),
    "OV 7B & 72B": Pair(
        0.420,
        {0.0: 0.0783, 0.5: 0.0575, 0.9: 0.0466},
        9,
        {
            "Vanilla SD": Row((4.14, 4.26, 3.98, 4.06, 4.27), (1.98, 2.06, 1.92, 2.01, 2.10), 2.01),
            "OnSD": Row((3.67, 3.65, 3.48, 3.69, 3.74), (2.14, 2.27, 2.09, 2.23, 2.13), 2.17),
            "SD-Tree": Row((4.64, 4.62, 4.70, 4.53, 4.78), (2.18, 2.33, 2.26, 2.17, 2.36), 2.26),
            "SpecVLM": Row((4.51, 4.49, 4.46, 4.26, 4.39), (2.76, 2.80, 2.68, 2.62, 2.82), 2.74),
            "ParallelVLM": Row(
                (6.82, 6.85, 6.81, 6.72, 6.93), (3.43, 3.38, 3.28, 3.24, 3.46), 3.36
            ),
        },
    ),
    "Qwen 7B & 32B": Pair(
        0.203,
        {0.0: 0.0637, 0.5: 0.0482, 0.9: 0.0398},
        5,
        {
            "Vanilla SD": Row((3.37, 3.44, 3.38, 3.21, 3.47), (1.26, 1.24, 1.23, 1.23, 1.31), 1.25),
            "OnSD": Row((2.76, 2.84, 2.67, 2.69, 2.89), (1.38, 1.32, 1.27, 1.34, 1.36), 1.33),
            "SD-Tree": Row((4.21, 4.32, 4.17, 4.09, 4.23), (1.60, 1.54, 1.53, 1.52, 1.55), 1.55),
            "SpecVLM": Row((4.18, 4.31, 4.12, 4.06, 4.28), (2.11, 2.13, 2.02, 2.13, 2.18), 2.11),
            "ParallelVLM": Row(
                (4.23, 4.37, 4.24, 4.15, 4.43), (2.40, 2.42, 2.41, 2.41, 2.45), 2.42
            ),
        },
    ),
    "OV 7B & itself": Pair(
        0.0783,
        {0.0: 0.0783, 0.5: 0.0575, 0.9: 0.0466},
        2,
        {
            "OnSD": Row((3.60, 3.64, 3.57, 3.28, 3.12), (0.87, 0.89, 0.84, 0.82, 0.78), 0.84),
            "SpecVLM": Row((4.94, 4.92, 5.06, 4.74, 4.85), (1.21, 1.22, 1.23, 1.18, 1.25), 1.22),
            "STD": Row((8.04, 8.21, 7.71, 8.16, 8.04), (1.25, 1.28, 1.21, 1.26, 1.22), 1.24),
            "ParallelVLM": Row(
                (14.8, 15.6, 13.2, 15.7, 15.0), (1.53, 1.55, 1.49, 1.59, 1.57), 1.55
            ),
        },
    ),
    "Qwen 7B & itself": Pair(
        0.0637,
        {0.0: 0.0637, 0.5: 0.0482, 0.9: 0.0398},
        2,
        {
            "OnSD": Row((3.39, 2.98, 3.34, 3.12, 3.27), (0.82, 0.78, 0.83, 0.74, 0.80), 0.79),
            "SpecVLM": Row((4.80, 4.91, 4.93, 4.98, 4.85), (1.17, 1.20, 1.18, 1.25, 1.24), 1.21),
            "STD": Row((8.03, 7.89, 8.11, 8.02, 8.23), (1.22, 1.25, 1.24, 1.18, 1.27), 1.23),
            "ParallelVLM": Row(
                (14.4, 14.9, 14.8, 14.6, 15.3), (1.52, 1.53, 1.47, 1.50, 1.53), 1.51
            ),
        },
    ),
}
"""The five pairs of Tables 1, 3 and 5; Table 5 has the times of Table 3 and those of the others."""


FIGURE_6: Mapping[str, tuple[float, float]] = {
    "OV 7B & 72B": (2.94, 3.36),
    "Qwen 7B & 32B": (2.08, 2.42),
}
"""Speedups at pruning ratios of 0 and 0.9, as the text beside Fig. 6 states them. The values
between and the accepted lengths at a ratio of 0 stand only in the picture."""

ROUNDED_WINDOWS: Mapping[str, Mapping[float, int]] = {
    "OV 7B & 72B": {0.0: 5, 0.5: 7, 0.9: 9},
    "Qwen 7B & 32B": {0.0: 3, 0.5: 4, 0.9: 5},
}
"""Table 3's c by pruning ratio, which the paper takes as γ."""


@dataclass(frozen=True)
class Extreme:
    """A column of Table 7 (OV 7B & 72B, VideoDetailCaption).

    Args:
        ratio: the pruning ratio.
        length: the accepted length M.
        rate: the acceptance rate τ.
        speedup: over plain decoding.
    """

    ratio: float
    length: float
    rate: float
    speedup: float


TABLE_7 = (
    Extreme(0.90, 6.82, 0.41, 3.43),
    Extreme(0.95, 6.53, 0.37, 3.28),
    Extreme(0.99, 5.74, 0.33, 2.90),
    Extreme(1.00, 4.53, 0.27, 2.53),
)


@dataclass(frozen=True)
class Breakdown:
    """A column of Table 6 (OV 7B & 72B, 512 tokens); seconds and gigabytes.

    Args:
        memory: peak memory.
        draft_prefill, target_prefill, draft_decode, target_decode: of the phases; 0 where the
            table has a stroke.
        tokens_per_second, total: as printed.
    """

    memory: float
    draft_prefill: float
    target_prefill: float
    draft_decode: float
    target_decode: float
    tokens_per_second: float
    total: float

    @property
    def decode(self) -> float:
        """Seconds after the prefill."""
        return self.draft_decode + self.target_decode


TABLE_6: Mapping[str, Breakdown] = {
    "plain": Breakdown(198.85, 7.92, 44.23, 0.0, 228.14, 2.25, 280.29),
    "SD": Breakdown(225.19, 7.92, 44.23, 58.14, 54.85, 4.53, 165.15),
    "ParallelVLM": Breakdown(225.34, 0.0, 44.23, 0.0, 67.85, 7.55, 112.08),
}
OUTPUT_TOKENS = 512
"""Length of the answers (Table 6 and Section 5.1)."""

VISUAL_TOKENS = 25_088
"""Visual tokens of 128 frames (Section 5.1)."""
