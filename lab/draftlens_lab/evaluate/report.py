"""The report of an evaluation as tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftlens_lab.measure.tables import Table, format_number, markdown_page

Figures = Mapping[str, Any]

MISSING = "–"

TEXT_NAMES = {
    "secret": "secret word",
    "all": "all of them",
    "named": "named rightly, of all named",
}
"""Names of rows for kinds of text that are not named as they are."""

EVIDENCE_NAMES = {
    "all": "everything",
    "frames": "the frames with the answer",
    "evidence": "the cells with the answer",
    "others": "the other frames",
    "tenth": "a random tenth",
}
"""Names of rows for `draftlens_lab.evaluate.parts.SHOWN`."""


def evaluation_tables(report: Figures) -> Iterator[Table]:
    """Tables of all sections that the report holds."""
    for role, figures in report.get("accuracy", {}).items():
        yield from _accuracy(role, figures)
    if "agreement" in report:
        yield from _agreement(report["agreement"])
    if "visual" in report:
        yield _visual_dependence(report["visual"])
    for family, figures in report.get("evidence", {}).items():
        yield _evidence(family, figures)


def evaluation_page(report: Figures) -> str:
    return markdown_page("draftlens evaluate", about_evaluation(report), evaluation_tables(report))


def about_evaluation(report: Figures) -> str:
    """One paragraph on models, options and environment of the report."""
    models = ", ".join(_model(role, facts) for role, facts in report["models"].items())
    options = report["arguments"]
    environment = report["environment"]
    packages = ", ".join(
        f"{name} {environment['packages'][name]}" for name in ("draftlens", "torch", "transformers")
    )
    commit = f", commit {environment['commit']}" if environment["commit"] else ""
    sentences = [
        f"{models[0].upper()}{models[1:]}; {options['clips']} held-out clips, seed "
        f"{options['seed']}; {environment['machine']}, {packages}{commit}."
    ]
    if not report["finished"]:
        sentences.append("Not finished: only these sections were measured.")
    sentences.append("Intervals are 95%.")
    return " ".join(sentences)


def percent(share: Figures) -> str:
    """A share in percent; a dash if nothing was counted."""
    return MISSING if share["share"] is None else f"{100 * share['share']:.1f}%"


def percent_interval(share: Figures) -> str:
    """A share in percent with its interval; a dash if nothing was counted."""
    if share["share"] is None:
        return MISSING
    return f"{percent(share)} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def _model(role: str, facts: Figures) -> str:
    size = f"{facts['parameters'] / 1e6:.2f}M parameters"
    return f"{role} {facts['name']} ({facts['class']}, {size}, {facts['dtype']})"


def _accuracy(role: str, figures: Figures) -> Iterator[Table]:
    captions = {
        f"clips, {frames} frames": section
        for frames, section in figures.get("captions", {}).items()
    }
    if "pictures" in figures:
        captions["pictures"] = figures["pictures"]
    if captions:
        yield _captions(role, captions)
        yield _facts(role, captions)
        yield _texts(role, captions)
    if "questions" in figures:
        yield _questions(role, figures["questions"])
    if "parts" in figures:
        yield _parts(role, figures["parts"])


def _captions(role: str, captions: Figures) -> Table:
    columns = ("", "asked", "visual tokens", "right word for word", "facts right")
    rows = []
    for name, section in captions.items():
        counts = (str(section["asked"]), str(section["visual_tokens"]))
        exact = percent_interval(section["exact"])
        rows.append((name, *counts, exact, percent_interval(section["facts"])))
    return Table(f"Captions of the {role}", columns, rows)


def _facts(role: str, captions: Figures) -> Table:
    rows = []
    for kind in _keys(section["kinds"] for section in captions.values()):
        shares = [section["kinds"].get(kind) for section in captions.values()]
        rows.append((kind, *(_fact_cell(share) for share in shares)))
    note = "Right of all stated or to be stated: what a caption invents counts as wrong."
    return Table(f"Facts by kind, {role}", ("fact", *captions), rows, note)


def _texts(role: str, captions: Figures) -> Table:
    rows = []
    for kind in _keys(section["texts"] for section in captions.values()):
        shares = [section["texts"][kind] for section in captions.values()]
        rows.append((TEXT_NAMES.get(kind, kind), *(_text_cell(share) for share in shares)))
    columns = ("named in the caption", *captions)
    return Table(f"Text on the screen, {role}", columns, rows)


def _keys(sections: Iterator[Figures]) -> list[str]:
    """Keys of all sections, without repetition."""
    return list(dict.fromkeys(key for section in sections for key in section))


def _fact_cell(share: Figures | None) -> str:
    if share is None or share["share"] is None:
        return MISSING
    return f"{percent(share)} of {share['total']}"


def _text_cell(share: Figures) -> str:
    if share["share"] is None:
        return MISSING
    return f"{percent_interval(share)} of {share['total']}"


def _questions(role: str, families: Figures) -> Table:
    rows = []
    for family, figures in families.items():
        rows.append(_question(family, figures))
        for question, part in figures.get("wordings", {}).items():
            rows.append(_question(f"· {question}", part))
    columns = ("family", "asked", "right word for word", "chance", "above chance")
    note = (
        "Chance is the accuracy of the best constant answer to each question, learned from "
        "training scenes."
    )
    return Table(f"Questions to the {role}", columns, rows, note)


def _parts(role: str, families: Figures) -> Table:
    rows = []
    for family, lengths in families.items():
        for frames, figures in lengths.items():
            rows.append(_part(family, frames, figures))
            for form, part in figures["forms"].items():
                if len(figures["forms"]) > 1:
                    rows.append(_part(f"· {form}", frames, part))
    columns = ("family", "frames", "right word for word", "facts right")
    note = "Answers about a part of what is seen; of a secret word, the answer is the fact."
    return Table(f"Questions about a part to the {role}", columns, rows, note)


def _part(name: str, frames: str, figures: Figures) -> tuple[str, ...]:
    exact = f"{percent_interval(figures['exact'])} of {figures['exact']['total']}"
    return name, frames, exact, percent_interval(figures["facts"])


def _question(name: str, figures: Figures) -> tuple[str, ...]:
    above = MISSING if figures["above"] is None else f"{100 * figures['above']:+.1f}"
    right = figures["right"]
    return name, str(right["total"]), percent_interval(right), percent(figures["chance"]), above


def _agreement(figures: Figures) -> Iterator[Table]:
    yield _rank_table(figures)
    yield _length_table(figures)
    yield _depth_table(figures)


def _rank_table(figures: Figures) -> Table:
    rows = [("ranked first", percent_interval(figures["agreed"]))]
    for rank, share in figures["top"].items():
        if rank != "1":
            rows.append((f"among the first {rank}", percent_interval(share)))
    for name, key in (
        ("tokens that state something visible", "seen"),
        ("connecting words", "connecting"),
    ):
        rows.append((f"ranked first, of {name}", percent_interval(figures[key])))
    note = (
        f"Of {figures['agreed']['total']} tokens of the target's captions of {figures['clips']} "
        f"clips; the last two rows count the {figures['right_captions']} captions that are right "
        f"word for word."
    )
    return Table("The draft's ranks of the target's tokens", ("", "share"), rows, note)


def _length_table(figures: Figures) -> Table:
    lengths = [
        (gamma, format_number(length, 2, MISSING))
        for gamma, length in figures["acceptance_length"].items()
    ]
    note = "Tokens emitted by verification passes / passes, bonus token included."
    return Table("Mean acceptance length", ("γ", "length"), lengths, note)


def _depth_table(figures: Figures) -> Table:
    depths = [(depth, percent_interval(share)) for depth, share in figures["by_depth"].items()]
    note = (
        "Share of draft tokens accepted where all before them in the pass were, "
        f"at γ = {len(depths)}."
    )
    return Table("Acceptance by depth", ("depth", "accepted"), depths, note)


def _visual_dependence(figures: Figures) -> Table:
    columns = (
        "visual tokens left to the draft",
        "ranked first",
        "mean acceptance length",
        "lower by",
    )
    rows = []
    for row in figures["kept"]:
        low, high = row["length_interval"]
        length = f"{row['acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"
        remaining = f"{100 * (1 - row['removed']):g}%"
        rows.append((remaining, percent(row["agreed"]), length, _fall(row)))
    draws = max(row["draws"] for row in figures["kept"])
    note = (
        f"Chosen at random, {draws} draws each, at γ = {figures['gamma']}; intervals over "
        f"{figures['clips']} clips."
    )
    return Table("Visual dependence of the draft", columns, rows, note)


def _evidence(family: str, figures: Figures) -> Table:
    columns = ("the draft is shown", "ranked first", "mean acceptance length", "lower by")
    rows = []
    for shown, row in figures["shown"].items():
        low, high = row["length_interval"]
        length = f"{row['acceptance_length']:.2f} [{low:.2f}, {high:.2f}]"
        rows.append((EVIDENCE_NAMES[shown], percent(row["agreed"]), length, _fall(row)))
    note = (
        f"{figures['asked']} answers about clips of {figures['frames']} frames, at γ = "
        f"{figures['gamma']}; the target sees everything."
    )
    return Table(f"What the draft must be shown, {family}", columns, rows, note)


def _fall(row: Figures) -> str:
    if row["fall"] is None:
        return MISSING
    low, high = row["fall_interval"]
    return f"{100 * row['fall']:z.1f}% [{100 * low:z.1f}, {100 * high:z.1f}]"
