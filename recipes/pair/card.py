"""``python -m recipes.pair.card``: the figures of the pair's card, from a report of `draftlens
evaluate`.

It replaces the section "Measured" up to its first line that begins with "Decode"; all other text of
the card is written by hand.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table

from recipes.pair.goals import goals
from recipes.pair.recipe import EMBEDDED

REPORT = Path("benchmarks/results/evaluate.json")  # relative to the working directory
CARD = EMBEDDED / "README.md"
START = "## Measured\n"
END = "\nDecode of one token"
INTRODUCTION = """
`draftlens evaluate` on 100 held-out clips (20 at other lengths than the first), pictures and
questions of each family, greedy, through the processor; the whole report is in
[benchmarks/results/evaluate.md](../../benchmarks/results/evaluate.md), and that of the first
edition of the pair in [evaluate_first.json](../../benchmarks/results/evaluate_first.json).
"""
SHOWN = {
    "all": "everything",
    "frames": "only the frames that carry the answer",
    "evidence": "only the cells that carry the answer",
    "others": "only the other frames",
    "tenth": "a random tenth of all visual tokens",
}
KEPT = {
    0.0: "all",
    0.5: "half",
    0.75: "a quarter",
    0.9: "a tenth",
    0.95: "a twentieth",
    1.0: "none",
}
"""Share of removed visual tokens to the name of what is kept."""

QUESTIONS = {
    "ordering": "ordering questions",
    "counting": "counting questions",
    "attribute": "questions about places, looks and motions",
    "difference": "difference between two pictures",
    "text only": "talk without media",
}
PARTS = (
    ("facts right, focus questions, 16 frames", "focus", "16"),
    ("facts right, focus questions, 64 frames", "focus", "64"),
    ("facts right, focus questions, 256 frames", "focus", "256"),
    ("needles in one frame, 16 frames", "needle", "16"),
    ("needles in one frame, 64 frames", "needle", "64"),
    ("needles in one frame, 256 frames", "needle", "256"),
    ("second questions of chats, 16 frames", "chat", "16"),
    ("facts right, two pictures described and compared", "pairs", "2"),
)

Figures = dict[str, Any]


def measured(report: Figures) -> str:
    """The section as markdown.

    Args:
        report: that of `draftlens evaluate`, finished, of a target and a draft.
    """
    forms = report["accuracy"]["target"]["parts"]["focus"]["16"]["forms"]
    by_form = ", ".join(f"{form} {percent(figures['facts'])}" for form, figures in forms.items())
    lines = [
        INTRODUCTION,
        *markdown_table(("goal", "figure", "required", "met"), goal_rows(report)),
        "",
        *markdown_table(("", "target", "chance", "draft"), accuracy_rows(report["accuracy"])),
        "",
        f"Focus questions at 16 frames by form: {by_form}.",
        "",
        *shown_table(report["evidence"]["focus"]["shown"]),
        "",
        *kept_table(report["visual"]["kept"]),
        "",
    ]
    return "\n".join(lines)


def goal_rows(report: Figures) -> list[tuple[str, ...]]:
    """Each goal with its figure; lengths are numbers, all others shares."""
    rows: list[tuple[str, ...]] = []
    for goal in goals(report):
        is_length = "length" in goal["goal"]
        figure = f"{goal['figure']:.2f}" if is_length else f"{goal['figure']:.1%}"
        rows.append((goal["goal"], figure, goal["asked"], "yes" if goal["met"] else "no"))
    return rows


def accuracy_rows(accuracy: Figures) -> list[tuple[str, ...]]:
    """The accuracy of both models, and that of blind guessing."""
    target, draft = accuracy["target"], accuracy["draft"]
    rows: list[tuple[str, ...]] = []
    for frames in target["captions"]:
        name = f"facts right, clips of {frames} frames"
        facts = [percent(model["captions"][frames]["facts"]) for model in (target, draft)]
        rows.append((name, facts[0], "", facts[1]))
    facts = [percent(model["pictures"]["facts"]) for model in (target, draft)]
    rows.append(("facts right, pictures", facts[0], "", facts[1]))
    for family, name in QUESTIONS.items():
        right = [percent(model["questions"][family]["right"]) for model in (target, draft)]
        rows.append((name, right[0], percent(target["questions"][family]["chance"]), right[1]))
    for name, family, frames in PARTS:
        parts = [model["parts"].get(family, {}).get(frames) for model in (target, draft)]
        facts = [percent(part["facts"]) if part else "" for part in parts]
        rows.append((name, facts[0], "", facts[1]))
    return rows


def shown_table(shown: Figures) -> list[str]:
    """The acceptance of focus answers by what the draft is shown."""
    rows = []
    for key, name in SHOWN.items():
        length, fall = shown[key]["acceptance_length"], shown[key]["fall"]
        change = f"{-100 * fall:+.1f}%" if fall else "as it is"
        rows.append((name, f"{length:.2f} ({change})"))
    columns = ("what the draft is shown of a focus question", "mean acceptance length at γ = 5")
    return markdown_table(columns, rows)


def kept_table(kept: list[Figures]) -> list[str]:
    """The acceptance of captions by the share of visual tokens that the draft reads."""
    chosen = [row for row in kept if row["removed"] in KEPT]
    columns = [KEPT[row["removed"]] for row in chosen]
    lengths = [f"{row['acceptance_length']:.2f}" for row in chosen]
    head = "visual tokens that the draft reads of a clip, chosen at random"
    return markdown_table((head, *columns), [("mean acceptance length at γ = 5", *lengths)])


def percent(share: Figures) -> str:
    """A share in percent."""
    return f"{share['share']:.1%}"


def with_section(card: str, section: str) -> str:
    """A card with another section of figures.

    Raises:
        ValueError: the card has no such section.
    """
    before, start, rest = card.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(
            f"the card has no lines that begin with {START.strip()!r} and {END.strip()!r}"
        )
    return before + start + section + end + after


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.pair.card", description="Write the figures of the pair's card."
    )
    parser.add_argument("report", type=Path, nargs="?", default=REPORT, help="evaluate.json")
    parser.add_argument("--card", type=Path, default=CARD, help="the file to change")
    options = parser.parse_args()
    section = measured(json.loads(options.report.read_text()))
    options.card.write_text(with_section(options.card.read_text(), section))


if __name__ == "__main__":
    main()
