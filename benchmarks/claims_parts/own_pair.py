"""The claims that depend on a pair of models, on a pair of one's own."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftlens_lab.measure.tables import markdown_table

from draftlens.core.files import write_text

from .claim import FAILS, HOLDS, MISSING, OPEN, RESULTS, Claim, Judged, Paper
from .page import PAPERS, expected, seen
from .quick import all_answered, small_verdict

MEASURED = (
    "benchmarks/specvlm.py --parts",
    "benchmarks/parallel.py idle",
    "benchmarks/parallel.py guidance",
    "benchmarks/parallel.py pair ",
    "benchmarks/parallel.py first-token",
    "benchmarks/tabed.py acceptance",
    "benchmarks/tabed.py captions",
    "benchmarks/spava.py fidelity",
    "benchmarks/spava.py selection",
)
"""Beginnings of commands that take a pair."""

LONGEST = {"long", "probe", "step", "self"}
"""Parts of SpecVLM whose prompt is longer than most models take, unless `--long-frames` says so."""

COLUMNS = ("", "claim", "paper", "expected", "seen", "verdict")


@dataclass(frozen=True)
class OwnPair:
    """What is measured.

    Args:
        target, draft: folders or Hub ids.
        device: of both models.
        videos: folder of clips to caption; None for clips of the world.
        is_small: whether the small versions of the commands run.
        long_frames: frames of the longest prompts.
    """

    target: str
    draft: str = "auto"
    device: str = "cpu"
    videos: Path | None = None
    is_small: bool = False
    long_frames: int = 64

    @property
    def folder(self) -> Path:
        """Of its results."""
        names = "-".join(Path(name).name for name in (self.target, self.draft))
        return Path("runs/claims") / re.sub(r"[^\w.-]+", "-", names + "-small" * self.is_small)


def run(pair: OwnPair, folder: Path | None = None) -> int:
    """Run what is missing in a folder, and write its page of verdicts, which is printed, too.

    Args:
        pair: what is measured.
        folder: of the results; that of the pair by default.

    Returns:
        1 if a command fails, else 0.
    """
    folder = folder or pair.folder
    folder.mkdir(parents=True, exist_ok=True)
    succeeded = all_answered(commands(pair, folder), folder)
    text = page(pair, folder)
    write_text(folder / "claims.md", text)
    print(text)
    return int(not succeeded)


def claims_of(paper: Paper) -> list[Claim]:
    """The claims of a paper that depend on the pair. Those with a draft of their own do not."""
    return [
        claim
        for claim in paper.claims
        if any(start in claim.command for start in MEASURED) and "--draft" not in claim.command
    ]


def commands(pair: OwnPair, folder: Path) -> list[str]:
    """Each once, in the order of the page."""
    claims = [claim for paper in PAPERS for claim in claims_of(paper)]
    small: dict[str, str] = {}
    for claim in claims:
        small.setdefault(claim.command, claim.quick)
        small[claim.command] = small[claim.command] or claim.quick
    chosen = [small[claim.command] if pair.is_small else claim.command for claim in claims]
    return [adapted(command, pair, folder) for command in dict.fromkeys(chosen) if command]


def adapted(command: str, pair: OwnPair, folder: Path) -> str:
    """A command of the page for this pair, which writes into the folder."""
    moved = re.sub(r"\bOUT\b", str(folder), command.replace(str(RESULTS), str(folder)))
    words = shlex.split(moved)
    if "--keep" in words:
        words[words.index("--keep") + 1] = str(folder / "kept")
    if "--parts" in words and words[words.index("--parts") + 1] in LONGEST:
        if "--long-frames" not in words:
            words += ["--long-frames", ""]
        words[words.index("--long-frames") + 1] = str(pair.long_frames)
    words += ["--target", pair.target, "--draft", pair.draft, "--device", pair.device]
    if pair.videos is not None:
        words += ["--videos", str(pair.videos)]
    return shlex.join(words)


def page(pair: OwnPair, folder: Path) -> str:
    """The verdicts as Markdown."""
    clips = f"captions of the clips in {pair.videos}" if pair.videos else "clips of the world"
    lines = [
        f"# Claims on {pair.target} with draft {pair.draft}",
        "",
        f"Measured on {pair.device}, {clips}. Rules and words are those of `docs/claims.md`; rows "
        "that do not depend on the pair are left out."
        + " These are the small versions of the commands: their intervals are of few clips."
        * pair.is_small,
        "",
    ]
    tables: list[str] = []
    rows: list[list[str]] = []
    for paper in PAPERS:
        judged = [verdict_of(claim, folder) for claim in claims_of(paper)]
        if judged:
            counts = Counter(each.verdict for each in judged)
            numbers = [str(counts[verdict]) for verdict in (HOLDS, FAILS, OPEN, MISSING)]
            rows.append([paper.title, *numbers])
            tables += [f"## {paper.title}", "", *table_of(judged), ""]
    lines += markdown_table(["rows", HOLDS, FAILS, OPEN, MISSING], rows)
    return "\n".join([*lines, "", *tables])


def verdict_of(claim: Claim, folder: Path) -> Judged:
    """The verdict from the results in the folder."""
    found = small_verdict(claim, folder)
    return found or Judged(claim, MISSING, "", (None,) * len(claim.checks))


def table_of(judged: Sequence[Judged]) -> list[str]:
    cells = [
        [
            each.claim.number,
            each.claim.says,
            each.claim.place,
            expected(each),
            "; ".join(seen(each)),
            f"{each.verdict}: {each.reason}" if each.reason else each.verdict,
        ]
        for each in judged
    ]
    return markdown_table(COLUMNS, cells, text_columns=range(len(COLUMNS)))
