"""The committed commands whose results are stale or missing, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from draftlens.core.files import write_json

from . import history
from .claim import RESULTS, Claim, Paper, load
from .commands import MINUTES, execute, name_of, out_of, recorded
from .page import PAPERS, minutes


def run(folder: Path) -> int:
    """Say what has to be run and how long it takes, and run it.

    A command whose result is neither missing nor stale is left out, so a run that was stopped goes
    on with the next command.

    Args:
        folder: of the results, `benchmarks/results` or one that starts empty.

    Returns:
        1 if a command fails, else 0.
    """
    commands = due(folder)
    print("\n".join(plan(commands)), flush=True)
    failed = False
    for command in commands:
        code, cost = execute(command.replace(str(RESULTS), str(folder)))
        failed |= code != 0
        if code == 0:
            write_json(MINUTES, {**recorded(), command: round(cost.processor / 60, 1)})
    return int(failed)


def plan(commands: Mapping[str, str]) -> list[str]:
    """Hours of every command and their sum; minutes by command are those of the page."""
    lines = [f"{hours(commands[command]):>14}  {command}" for command in commands]
    known = [float(minutes.strip("> ")) for minutes in commands.values() if minutes]
    total = f"{sum(known) / 60:.2f} h"
    if missing := len(commands) - len(known):
        total = f"at least {total}; the time of {missing} commands is not recorded"
    return [*lines, f"In all {total}."]


def hours(minutes: str) -> str:
    if not minutes:
        return "not recorded"
    least = "at least " if minutes.startswith(">") else ""
    return f"{least}{float(minutes.strip('> ')) / 60:.2f} h"


def due(folder: Path) -> dict[str, str]:
    """Commands whose own result is missing or stale, in the order of the page, with minutes.

    Those with a FOLDER need a model that is not in the repository.
    """
    return {
        claim.command: minutes(claim)
        for paper in PAPERS
        for claim in paper.claims
        if claim.command and "FOLDER" not in claim.command and any(states(claim, paper, folder))
    }


def states(claim: Claim, paper: Paper, folder: Path) -> Iterator[bool]:
    """For each figure that the command measures, whether it is missing or stale."""
    own = Path(out_of(claim.command)).name
    for check in claim.checks:
        if name_of(check.file) == own:
            report = load(folder, own)
            yield (
                report is None
                or bool(check.part and check.part not in report)
                or bool(history.reasons(claim, paper, history.commit_of(check, report)))
            )
