"""Claims about time, work and links."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from spava_parts.verdicts import FAILS, HOLDS, NOT_HERE, OPEN, Reports, Verdict


def speed(reports: Reports) -> list[Verdict]:
    """Claim 1 and table 5."""
    found = [
        Verdict(
            "1a",
            "64 frames of 1440p on 8 A800: 12.72 times Full, 1.70 times ring, 1.18 times APB",
            NOT_HERE,
            "no GPUs, no such model; APB needs trained heads. " + first_tokens(reports),
        )
    ]
    model = reports.of("model")
    if model is None:
        return found
    gains: dict[int, list[float]] = {}
    for table in model["tables"]:
        by_hosts = {row["hosts"]: row["ring"] / row["spava"] for row in table["rows"]}
        gains[table["context"]] = [by_hosts[hosts] for hosts in (2, 8)]
    rising = list(gains.values())
    grows = all(first[1] < second[1] for first, second in pairwise(rising))
    words = [f"{n:,} tokens {two:.2f} and {eight:.2f}" for n, (two, eight) in gains.items()]
    found.append(
        Verdict(
            "1b",
            "the gain over the ring grows with length (H = 8: 1.10 to 1.21)",
            HOLDS if grows else FAILS,
            f"cost model, gain at 2 and 8 hosts: {', '.join(words)}",
        )
    )
    scaling = []
    for table in model["tables"]:
        rows = {row["hosts"]: row for row in table["rows"]}
        ours, other = (rows[2][name] / rows[8][name] for name in ("spava", "ring"))
        scaling.append((table["context"], ours, other))
    holds = all(ours > other for _, ours, other in scaling)
    words = [f"{n:,} tokens {ours:.2f} and {other:.2f}" for n, ours, other in scaling]
    found.append(
        Verdict(
            "1c",
            "from 2 to 8 hosts SPAVA gains 3.52, the ring 3.17",
            HOLDS if holds else FAILS,
            f"cost model, SPAVA and ring: {', '.join(words)}",
        )
    )
    return found


def first_tokens(reports: Reports) -> str:
    """Measured ratios to the full prefill."""
    report = reports.of("first_token")
    if report is None:
        return "First tokens were not measured."
    parts = []
    for row in report["rows"]:
        if "2 processes" in row["case"]:
            ratio = row["speedup"]["median"]
            parts.append(f"{row['case']} at {row['length']:,} tokens {ratio:.2f}")
    return f"Here, over full by one process: {', '.join(parts)}"


def system(reports: Reports) -> list[Verdict]:
    """Claim 5: what each optimization gives."""
    here = "one process a core: the core that copies a message is the one that computes"
    found = [
        Verdict("5a", "overlap gives at most 1%", NOT_HERE, here),
        Verdict(
            "5b",
            "the fused query gives 4 to 11%",
            NOT_HERE,
            "it saves reading the weights twice, which counts for large models on GPUs; there is "
            "no second pass here to compare with",
        ),
    ]
    counts = reports.of("counts")
    if counts is not None:
        words = []
        for row in counts["rows"]:
            if row["hosts"] == 8:
                share = f"{100 * row['spread']:.1f}% and {100 * row['spread of neighbours']:.0f}%"
                words.append(f"{row['context']:,} tokens {share}")
        found.append(
            Verdict(
                "5c",
                "zigzag gives 2 to 8%",
                NOT_HERE,
                f"eight hosts. Spread of attention's FLOPs with and without: {', '.join(words)}",
            )
        )
    first = reports.of("first_token")
    words = []
    for row in [] if first is None else first["rows"]:
        if row["case"] == "full":
            share = 100 * row["vision"] / row["first"]
            words.append(f"{share:.0f}% at {row['length']:,} tokens")
    figures = f"vision is of the first token of full: {', '.join(words) or 'not measured'}"
    found.append(Verdict("5d", "frame parallelism gives about 4 times", NOT_HERE, figures))
    return found


def links(reports: Reports) -> list[Verdict]:
    """Claim 7: slow links."""
    said = "a slower link costs SPAVA less than the ring (0.75%, 3.44%)"
    model = reports.of("model")
    if model is None:
        return [Verdict("7", said, OPEN, "not modeled")]
    costs = [slowed(table) for table in model["tables"]]
    words = [f"{n:,} tokens {ours:.1f}% and {ring:.1f}%" for n, ours, ring in costs]
    holds = all(ours <= ring for _, ours, ring in costs)
    figures = f"cost model, 8 hosts, links ten times slower, SPAVA and ring: {', '.join(words)}"
    return [Verdict("7", said, HOLDS if holds else FAILS, figures)]


def slowed(table: Mapping[str, Any]) -> tuple[int, float, float]:
    """Length, and what a slow link costs SPAVA and the ring at 8 hosts, in percent."""
    row = next(row for row in table["rows"] if row["hosts"] == 8)
    costs = [100 * (row[f"{name}, slow link"] / row[name] - 1) for name in ("spava", "ring")]
    return table["context"], costs[0], costs[1]


def work(reports: Reports) -> list[Verdict]:
    """Equation 7, and what the issue says of the method."""
    counts = reports.of("counts")
    if counts is None:
        return [Verdict("8a", "equation 7: equal work on every host", OPEN, "not counted")]
    rows = counts["rows"]
    large = [row for row in rows if row["context"] > 1025]
    spread = max(row["spread"] for row in large)
    worst = max(row["spread"] for row in rows)
    error = max(row["error"] for row in large)
    short = max(1 - row["equation 7"] / max(row["flops"]) for row in rows)
    received = max(row.get("error of received", 0.0) for row in rows)
    near = []
    for row in rows:
        if row["hosts"] == 64:
            ratio = row["received"] / row["received by the ring"]
            near.append(f"{row['context']:,} tokens {ratio:.2f}")
    crossing = [row for row in rows if row["ring"] <= row["with omitted terms"]]
    fewest = {row["context"]: row["hosts"] for row in reversed(crossing)}
    words = [f"{n:,} tokens {hosts} hosts" for n, hosts in sorted(fewest.items())]
    return [
        Verdict(
            "8a",
            "equation 7: equal work on every host",
            HOLDS if spread < 0.05 else FAILS,
            f"spread at most {100 * spread:.1f}% from 4,097 tokens on, {100 * worst:.1f}% at 1,025",
        ),
        Verdict(
            "M1",
            "equation 7 leaves out blocks on the anchor, and the query",
            HOLDS if error < 0.01 and short > error else FAILS,
            f"with these terms within {100 * error:.2f}% of the count from 4,097 tokens on; alone "
            f"up to {100 * short:.0f}% too low; elements received within {100 * received:.1f}%",
        ),
        Verdict(
            "M2",
            "at 64 hosts SPAVA receives as many keys as the ring",
            HOLDS if near else OPEN,
            f"received, in relation to the ring: {', '.join(near) or 'not counted'}",
        ),
        Verdict(
            "M3",
            "at 64 hosts the ring needs fewer FLOPs",
            HOLDS if 64 in fewest.values() else OPEN,
            f"from: {', '.join(words) or 'not counted'}; powers of two",
        ),
    ]
