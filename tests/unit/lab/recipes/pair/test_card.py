"""The card of the embedded pair holds the figures of the report in the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.pair import card

ROOT = Path(__file__).resolve().parents[5]


def test_the_card_holds_the_figures_of_the_report() -> None:
    report = json.loads((ROOT / card.REPORT).read_text())
    text = card.CARD.read_text()
    assert card.with_section(text, card.measured(report)) == text


def test_figures_are_those_of_the_report() -> None:
    report = json.loads((ROOT / card.REPORT).read_text())
    section = card.measured(report)
    facts = report["accuracy"]["target"]["captions"]["8"]["facts"]
    share = f"{100 * facts['right'] / facts['total']:.1f}%"
    assert f"| facts right, clips of 8 frames | {share} |" in section
    report["accuracy"]["target"]["captions"]["8"]["facts"]["share"] = 0.123
    assert "| facts right, clips of 8 frames | 12.3% |" in card.measured(report)
    report["agreement"]["acceptance_length"]["5"] = 1.0
    assert "| no |" in card.measured(report)


def test_a_card_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="the card has no lines"):
        card.with_section("# A card", "figures")
