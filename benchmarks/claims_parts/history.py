"""Which commit a result is of, and whether it is stale: made by other code or with another model.

Without git, or without the commit in a shallow clone, nothing is said of staleness.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache

from .claim import Check, Claim, Paper, Report, part_of

SECOND_EDITION = "b956151"
"""The commit that brought the second edition of the embedded pair."""


@cache
def git(*words: str) -> str | None:
    """What git prints; None if it fails."""
    try:
        run = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def commit_of(check: Check, report: Report) -> str:
    """The commit that a result names; empty if it names none."""
    part = part_of(check, report) or report
    named = part.get("environment", {}).get("commit")
    if named is None:
        found = re.search(r"commit ([0-9a-f]{7,40}\+?)", str(report.get("about", "")))
        named = found[1] if found else ""
    return str(named).rstrip("+")[:7]


def processor_of(check: Check, report: Report) -> str:
    """The machine of a result; empty if it names none."""
    part = part_of(check, report) or report
    name = str(part.get("environment", {}).get("processor", ""))
    return name.replace("(R)", "").replace(" Processor", "").split(" @")[0]


def marks(claim: Claim, paper: Paper, commit: str) -> str:
    """Date of a commit, and why its figures are stale."""
    date = git("show", "-s", "--format=%cs", commit)
    if not commit or date is None:
        return ""
    found = reasons(claim, paper, commit)
    return f"{date}; **stale**: {' and '.join(found)}" if found else date


def reasons(claim: Claim, paper: Paper, commit: str) -> list[str]:
    """Why figures of a commit are stale: other code or other weights; none if nothing is known."""
    if not commit or git("show", "-s", "--format=%cs", commit) is None:
        return []
    found = []
    weights = paper.weights if claim.weights is None else claim.weights
    if weights and is_other_model(commit, weights):
        is_first = git("merge-base", "--is-ancestor", SECOND_EDITION, commit) is None
        pair = "the first edition of the pair" if is_first else "an earlier model"
        found.append(pair if "embedded" in weights else "an earlier model")
    code = (claim.code or paper.code).split()
    if any(
        git("rev-parse", f"{commit}:{each}") != git("rev-parse", f"HEAD:{each}") for each in code
    ):
        found.append(
            f"other code, now {git('log', '-1', '--abbrev=7', '--format=%h', '--', *code)}"
        )
    return found


def is_other_model(commit: str, weights: str) -> bool:
    """Whether the weights of today were nowhere in the tree of a commit."""
    blob = git("rev-parse", f"HEAD:{weights}")
    files = git("ls-tree", "-r", commit)
    return blob is not None and files is not None and blob not in files
