"""Small versions of the commands: do their figures agree with the committed ones?"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from .claim import FAILS, HOLDS, MISSING, OPEN, Claim, Judged, judge
from .commands import Cost, execute, out_of
from .page import PAPERS, seen


def run(folder: Path, workers: int | None = None) -> int:
    """Run what is missing in the folder, and print every row that has a command.

    Args:
        folder: of the small results.
        workers: commands side by side; one for each core by default.

    Returns:
        1 if a verdict is contrary to the committed one or a command fails, else 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with ThreadPoolExecutor(workers or os.cpu_count()) as threads:
        failed = not all(list(threads.map(partial(all_answered, folder=folder), series())))
    files = [done_file(folder, command) for command in commands()]
    costs = [Cost(**json.loads(file.read_text())) for file in files if file.exists()]
    minutes = (time.perf_counter() - began) / 60
    spent = sum(cost.processor for cost in costs) / 60
    print(f"{minutes:.0f} minutes; {spent:.1f} minutes of the processor by {len(costs)} commands")
    print("Labels are those of the page; small runs have fewer frames, prompts and tokens.")
    print("Their intervals are of few clips: they say that commands run, not whether claims hold.")
    claims = [(paper.title, claim) for paper in PAPERS for claim in paper.claims]
    disagree = 0
    for title, claim in claims:
        if claim.command or claim.quick:
            verdict, is_contrary = compared(claim, folder)
            disagree += is_contrary
            print(f"{title} {claim.number}: {verdict}")
    return int(failed or disagree > 0)


def compared(claim: Claim, folder: Path) -> tuple[str, bool]:
    """The verdict from small runs beside that of the page, and whether the two are contrary."""
    usual = judge(claim)
    small = small_verdict(claim, folder)
    if small is None:
        return f"no small run; {usual.verdict} on the page", False
    is_contrary = {small.verdict, usual.verdict} == {HOLDS, FAILS}
    mark = "DISAGREES" if is_contrary else "undecided" if small.verdict == OPEN else "decided"
    if small.verdict == usual.verdict:
        mark = "agrees"
    text = f"{mark}: {small.verdict} in small runs, {usual.verdict} on the page"
    return "; ".join([text, *seen(small)]), is_contrary


def commands() -> list[str]:
    """Each once, in the order of the page."""
    claims = [claim for paper in PAPERS for claim in paper.claims]
    return list(dict.fromkeys(claim.quick for claim in claims if claim.quick))


def series() -> list[list[str]]:
    """The commands by the file that they write: those of one file run one after the other, those
    of different files side by side."""
    found: dict[str, list[str]] = {}
    for command in commands():
        found.setdefault(out_of(command) or command, []).append(command)
    return list(found.values())


def all_answered(commands: list[str], folder: Path) -> bool:
    """Run commands one after the other, also after one that fails; whether none did."""
    return not [command for command in commands if not answered(command, folder)]


def answered(command: str, folder: Path) -> bool:
    """Run a command unless its result is there; False if it failed.

    A command writes one part of its file, so a mark of its own says that it is done, and its cost.
    """
    done = done_file(folder, command)
    if done.exists():
        return True
    code, cost = execute(command.replace("OUT", str(folder)))
    if code == 0:
        done.write_text(json.dumps(asdict(cost)))
    return code == 0


def done_file(folder: Path, command: str) -> Path:
    """The mark that a command is done."""
    return folder / f"{int.from_bytes(command.encode(), 'big') % (2**61 - 1):x}.done"


def small_verdict(claim: Claim, folder: Path) -> Judged | None:
    """The verdict from small runs; None if a figure is not in them."""
    if not claim.checks or any(not (folder / name).exists() for name in files(claim)):
        return None
    try:
        judged = judge(claim, folder)
    except (LookupError, ArithmeticError, ValueError):  # kinds that small runs leave out
        return None
    return None if judged.verdict == MISSING else judged


def files(claim: Claim) -> set[str]:
    return {name if "." in name else f"{name}.json" for name in (c.file for c in claim.checks)}
