"""What the doctor says of measured forwards."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from draftlens.cli.doctor import CHANCES, describe_window
from draftlens.cli.plan import method_facts
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


@pytest.mark.parametrize("share", [0.05, 0.3, 2.0])
def test_what_drafts_may_gain_where_passes_read_the_weights(share: float) -> None:
    """(1 - p^(γ+1)) / (1 - p) tokens in the time of γ passes of the draft and one of the target."""
    facts = method_facts(None, share)
    assert facts["default"] == "mixed"
    for key, cost in (("drafting", share), ("copying", 0.0)):
        shown = [float(factor) for factor in re.findall(r"\(([\d.]+)x plain\)", facts[key])]
        best = [
            max((1 - p ** (n + 1)) / (1 - p) / (1 + n * cost) for n in range(21)) for p in CHANCES
        ]
        assert shown == pytest.approx(best, abs=0.006)


@pytest.mark.parametrize(("kind", "name"), [("default", "lookup"), ("longrope", "plain")])
def test_the_method_without_a_draft(kind: str, name: str) -> None:
    rope = {"rope_type": kind, "original_max_position_embeddings": 4096}
    text: Any = SimpleNamespace(rope_parameters=rope)
    config = SimpleNamespace(get_text_config=lambda decoder: text)
    facts = method_facts(config, None)
    assert facts["default"] == name
    assert "drafting" not in facts
