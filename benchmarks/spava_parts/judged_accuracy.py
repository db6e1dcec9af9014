"""Claims about accuracy, and about what is passed on."""

from __future__ import annotations

from spava_parts.verdicts import (
    FAILS,
    HOLDS,
    NOT_HERE,
    OPEN,
    Cell,
    Reports,
    Verdict,
    compared,
    decides,
    keeps_and_drops,
    loses,
)


def accuracy(reports: Reports) -> list[Verdict]:
    """Claims 2 and 4, and the half of 3 that can be tested."""
    sparse = ("xattention", "spargeattn")
    blocks = ("spava, 4 blocks", "spava", "spava, 64 blocks")
    steady = [reports.cell("ordering", way) for way in blocks]
    verdict = OPEN
    if decides(reports.cell("ordering", "full")) and all(steady):
        verdict = FAILS if any(loses(cell) for cell in steady if cell is not None) else HOLDS
    slow = keeps_and_drops(reports, "retrieval", "spava", "slowfast")
    return [
        Verdict(
            "2a",
            "ordering: SPAVA keeps most of Full's answers, Star few (53.8, 48.9, 13.3)",
            keeps_and_drops(reports, "ordering", "spava", "star"),
            compared(reports, "ordering", ("spava", "star", "nothing passed")),
        ),
        Verdict(
            "2b",
            "ordering: XAttention and SpargeAttn lose more than SPAVA (42.7, 20.0)",
            keeps_and_drops(reports, "ordering", "spava", "xattention"),
            compared(reports, "ordering", ("spava", *sparse)) + work_of(reports, sparse),
        ),
        Verdict(
            "2c",
            "retrieval hardly moves (74.2, 73.1; Star 73.3), but for SlowFast (43.6)",
            slow,
            compared(reports, "retrieval", ("spava", "star", "slowfast")),
        ),
        Verdict(
            "2d",
            "APB is below SPAVA (43.9, 50.7)",
            NOT_HERE,
            "its retaining heads are trained. With its sizes and the question's choice, "
            + compared(reports, "ordering", ("8 blocks, passing n/64",)),
        ),
        Verdict(
            "3a",
            "no loss on real videos (LongVideoBench)",
            NOT_HERE,
            "the embedded target knows the world's clips only; facts of their captions: "
            + compared(reports, "caption", ("spava", "star", "slowfast")),
        ),
        Verdict(
            "3b",
            "steady over the number of hosts (53.2, 53.6, 54.4, 54.3)",
            verdict,
            compared(reports, "ordering", blocks),
        ),
        Verdict(
            "4a",
            "counting: without passing 17.3 instead of 30.0",
            keeps_and_drops(reports, "counting", "spava", "nothing passed"),
            compared(reports, "counting", ("spava", "nothing passed"))
            + "; "
            + compared(reports, "ordering", ("spava", "nothing passed")),
        ),
        Verdict(
            "4b",
            "counting: without the anchor 25.3 instead of 30.0",
            keeps_and_drops(reports, "counting", "spava", "no anchor"),
            compared(reports, "counting", ("spava", "no anchor")),
        ),
    ]


def work_of(reports: Reports, ways: tuple[str, ...]) -> str:
    """FLOPs of attention in relation to Full."""
    parts = []
    for way in ways:
        for visual in (1025, 4097):
            cell = reports.cell("ordering", way, visual)
            if cell is not None:
                parts.append(f"{way} {100 * cell['flops']:.0f}% at {visual:,}")
    return f"; FLOPs of full: {', '.join(parts)}" if parts else ""


def lengths(reports: Reports) -> list[Verdict]:
    """Claim 6: trends of l_p and l_a, by KL where answers saturate."""
    passing = ("nothing passed", "passing n/256", "spava", "passing n/64", "passing n/32")
    anchors = ("no anchor", "anchor n/128", "spava", "anchor n/32", "anchor n/16")
    return [
        Verdict("6a", "more passing keys help (12.7, 34.0, 37.3, 40.0)", *trend(reports, passing)),
        Verdict("6b", "the anchor's length matters less", *sensitivity(reports, passing, anchors)),
    ]


def swept(reports: Reports, ways: tuple[str, ...]) -> list[Cell]:
    """Cells of a sweep, on the same prompts."""
    report = reports.of("fidelity") or {"cells": []}
    cells = {cell["way"]: cell for cell in report["cells"] if cell.get("set") == "lengths"}
    return [cells[way] for way in ways if way in cells]


def trend(reports: Reports, ways: tuple[str, ...]) -> tuple[str, str]:
    """Whether KL falls from the first to the last, beyond the intervals, with its figures."""
    cells = swept(reports, ways)
    words = ", ".join(f"{cell['way']} {cell['kl']:.4f}" for cell in cells)
    if len(cells) < len(ways):
        return OPEN, f"KL: {words or 'not measured'}"
    falls = cells[-1]["kl interval"][1] < cells[0]["kl interval"][0]
    return (HOLDS if falls else FAILS), f"KL, ordering, {cells[0]['prompts']} prompts: {words}"


def sensitivity(
    reports: Reports, passing: tuple[str, ...], anchors: tuple[str, ...]
) -> tuple[str, str]:
    """Whether the range of KL over anchors is smaller than that over passing keys."""
    first, second = swept(reports, passing), swept(reports, anchors)
    words = ", ".join(f"{cell['way']} {cell['kl']:.4f}" for cell in second)
    if len(first) < len(passing) or len(second) < len(anchors):
        return OPEN, f"KL: {words or 'not measured'}"
    ranges = [
        max(c["kl"] for c in cells) - min(c["kl"] for c in cells) for cells in (first, second)
    ]
    return (HOLDS if ranges[1] < ranges[0] else FAILS), f"KL, ordering: {words}"


def passed_on(reports: Reports) -> list[Verdict]:
    """Figure 8."""
    said = "the answer's tokens are passed on more often than others (figure 8)"
    report = reports.of("selection")
    if report is None:
        return [Verdict("8b", said, OPEN, "not measured")]
    words = []
    for name, found in report["choices"].items():
        low, high = found["interval"]
        words.append(f"{name} {found['ratio']:.2f} ({low:.2f} to {high:.2f})")
    low, high = report["choices"]["query"]["interval"]
    verdict = OPEN
    if low > 1:
        verdict = HOLDS
    elif high < 1:
        verdict = FAILS
    prompts = report["choices"]["query"]["prompts"]
    return [Verdict("8b", said, verdict, f"times as often, {prompts} needles: {', '.join(words)}")]


def others(reports: Reports) -> list[Verdict]:
    """Claim 9."""
    families = ("ordering", "retrieval", "counting")
    words = [compared(reports, family, ("spava", "fastv")) for family in families]
    return [
        Verdict(
            "9a",
            "FastV is below SPAVA (36.3 beside 43.3)",
            keeps_and_drops(reports, "ordering", "spava", "fastv"),
            "; ".join(words),
        ),
        Verdict(
            "9b",
            "RULER: 80.7 beside 80.0",
            NOT_HERE,
            "a benchmark of texts; the embedded target knows the world's, and rows without "
            "pictures are read exactly",
        ),
    ]
