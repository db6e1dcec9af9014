"""Small versions of the commands: do their figures agree with the committed ones?"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from .claim import FAILS, HOLDS, MISSING, Claim, Judged, judge
from .page import PAPERS, seen


def run(folder: Path) -> int:
    """Run what is missing in the folder, and print every row that it has figures of.

    Returns:
        1 if a verdict is contrary to the committed one or a command fails, else 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        failed = not all(list(threads.map(partial(all_answered, folder=folder), series())))
    print(f"{(time.perf_counter() - began) / 60:.0f} minutes", flush=True)
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


def series() -> list[list[str]]:
    """The commands by the file that they write: those of one file run one after the other, those
    of different files side by side, on a core each."""
    found: dict[str, list[str]] = {}
    for command in commands():
        words = shlex.split(command)
        out = words[words.index("--out") + 1] if "--out" in words else command
        found.setdefault(out, []).append(command)
    return list(found.values())


def all_answered(commands: list[str], folder: Path) -> bool:
    """Run commands one after the other, also after one that fails; whether none did."""
    return not [command for command in commands if not answered(command, folder)]


def answered(command: str, folder: Path) -> bool:
    """Run a command unless its result is there; False if it failed.

    A command writes one part of its file, so a mark of its own says that it is done.
    """
    words = shlex.split(command.replace("OUT", str(folder)))
    done = folder / f"{abs(hash_of(command)):x}.done"
    if done.exists():
        return True
    began = time.perf_counter()
    paths = [".", "lab", os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    code = subprocess.run(
        [sys.executable, *words[1:]], stdout=subprocess.DEVNULL, env=environment, check=False
    ).returncode
    seconds = time.perf_counter() - began
    print(f"$ {' '.join(words)}\n  {seconds:.0f} s, exit status {code}", flush=True)
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
        judged = judge(claim, folder)
    except (KeyError, IndexError):  # a kind or a part that small runs leave out
        return None
    return None if judged.verdict == MISSING else judged


def files(claim: Claim) -> set[str]:
    return {name if "." in name else f"{name}.json" for name in (c.file for c in claim.checks)}
