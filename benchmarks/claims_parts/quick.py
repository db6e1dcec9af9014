"""Small versions of the commands: do their figures agree with the committed ones?"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from .claim import FAILS, HOLDS, Claim, Judged, judge
from .page import PAPERS, seen


def run(folder: Path) -> int:
    """Run what is missing in the folder, and print every row that it has figures of.

    Returns:
        1 if a verdict is contrary to the committed one or a command fails, else 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = False
    for command in commands():
        failed |= not answered(command, folder)
    disagree = 0
    for paper in PAPERS:
        for claim in paper.claims:
            small = small_verdict(claim, folder)
            if small is None:
                continue
            usual = judge(claim)
            is_contrary = {small.verdict, usual.verdict} == {HOLDS, FAILS}
            disagree += is_contrary
            mark = "DISAGREES" if is_contrary else "agrees"
            print(f"{paper.title} {claim.number}: {mark}: {small.verdict} in small runs, ", end="")
            print(f"{usual.verdict} on the page; {'; '.join(seen(small))}")
    return int(failed or disagree > 0)


def commands() -> list[str]:
    """Each once, in the order of the page."""
    claims = [claim for paper in PAPERS for claim in paper.claims]
    return list(dict.fromkeys(claim.quick for claim in claims if claim.quick))


def answered(command: str, folder: Path) -> bool:
    """Run a command unless its result is there; False if it failed.

    A command writes one part of its file, so a mark of its own says that it is done.
    """
    words = shlex.split(command.replace("OUT", str(folder)))
    done = folder / f"{abs(hash_of(command)):x}.done"
    if done.exists():
        return True
    print(f"$ {' '.join(words)}", flush=True)
    began = time.perf_counter()
    paths = [".", "lab", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    code = subprocess.run(
        [sys.executable, *words[1:]], stdout=subprocess.DEVNULL, env=environment, check=False
    ).returncode
    print(f"  {time.perf_counter() - began:.0f} s, exit status {code}", flush=True)
    if code == 0:
        done.touch()
    return code == 0


def hash_of(command: str) -> int:
    """The same in every process, unlike `hash`."""
    return int.from_bytes(command.encode(), "big") % (2**61 - 1)


def small_verdict(claim: Claim, folder: Path) -> Judged | None:
    """The verdict from small runs; None if a figure is not in them."""
    if not claim.checks or any(not (folder / name).exists() for name in files(claim)):
        return None
    try:
        return judge(claim, folder)
    except (KeyError, IndexError):  # a kind or a part that small runs leave out
        return None


def files(claim: Claim) -> set[str]:
    return {name if "." in name else f"{name}.json" for name in (c.file for c in claim.checks)}
