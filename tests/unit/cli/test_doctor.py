"""What the doctor says of measured forwards."""

from __future__ import annotations

import pytest

from draftlens.cli.doctor import describe_window
from draftlens.drafting.adaptive.costs import CostCurve


@pytest.mark.parametrize(
    ("draft_seconds", "ratio", "window"), [(0.1, "5.0", 5), (0.115, "4.3", 4), (1.5, "0.3", 1)]
)
def test_the_window_is_the_ratio_of_a_pass_to_a_draft_step(
    draft_seconds: float, ratio: str, window: int
) -> None:
    target = CostCurve((1, 6), (0.5, 3.0))
    text = describe_window(target, CostCurve((1, 6), (draft_seconds, 2 * draft_seconds)))
    assert f"T_p / T_q = {ratio};" in text
    assert text.endswith(f"num_speculative_tokens={window}")
