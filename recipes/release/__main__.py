"""Checks the wheels of a release in an environment of their own, and writes `release.json`.

    python -m recipes.release dist
    python -m recipes.release dist --before torch==2.13.0+cpu --before torchvision==0.28.0

The report is written to the folder of the wheels. The packages come from the index that pip is set
up for; afterwards the commands run without a network.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from recipes.release.commands import ALL, DEFAULT, Command, environment, page_pdf, run, serve
from recipes.release.wheels import NAMES, Wheel, problems, read_wheel

CLIPS = Path(__file__).parents[2] / "draftlens" / "embedded" / "clips"
LISTED = ("draftlens", "draftlens-lab", "torch", "torchvision", "transformers", "openvino")
"""Packages whose versions the report has."""


class Environment:
    """A virtual environment that is made for the check."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.folder = folder
        self.launcher = [str(folder / "bin" / "draftlens")]

    def install(self, requirements: Sequence[str]) -> float:
        """Install with pip; return the seconds."""
        started = time.perf_counter()
        python = str(self.folder / "bin" / "python")
        words = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *requirements]
        subprocess.run(words, check=True, env=environment())
        return time.perf_counter() - started

    def megabytes(self) -> float:
        """Size on disk in 10^6 bytes; files with several names count once."""
        stats = [path.lstat() for path in self.folder.rglob("*")]
        return sum({stat.st_ino: stat.st_blocks * 512 for stat in stats}.values()) / 1e6

    def versions(self) -> dict[str, str]:
        (site,) = self.folder.glob("lib/python*/site-packages")
        found = {dist.name: dist.version for dist in distributions(path=[str(site)])}
        return {name: found[name] for name in LISTED if name in found}


def check(wheels: Sequence[Wheel], before: Sequence[str], work: Path) -> dict[str, Any]:
    """Install wheels, first alone and then with all extras, and run the commands of both.

    Args:
        wheels: those of a release.
        before: requirements that are installed before them, such as a build of torch.
        work: an empty folder for the environment and the files of the commands.

    Returns:
        Versions, megabytes and seconds.

    Raises:
        RuntimeError: a command fails.
        subprocess.CalledProcessError: pip fails.
    """
    by_name = {wheel.name: str(wheel.path.resolve()) for wheel in wheels}
    package, lab = (by_name[name] for name in NAMES)
    folder = work / "folder"
    folder.mkdir()
    for name in ("shapes.mp4", "shapes.png"):
        shutil.copy(CLIPS / name, folder)
    (folder / "page.pdf").write_bytes(page_pdf("Speculative decoding of one page."))
    made = Environment(work / "environment")
    report: dict[str, Any] = {"python": platform.python_version(), "before": list(before)}
    seconds = made.install(before) if before else 0.0
    report["install_seconds"] = round(seconds + made.install([package]), 1)
    report["megabytes"] = round(made.megabytes())
    report["seconds"] = _run_all(made, DEFAULT, folder)
    report["install_all_seconds"] = round(made.install([f"{package}[all]", lab]), 1)
    report["megabytes_all"] = round(made.megabytes())
    report["seconds"] |= _run_all(made, ALL, folder)
    report["seconds"]["serve"] = round(serve(made.launcher, folder, environment()), 1)
    report["versions"] = made.versions()
    return report


def _run_all(made: Environment, commands: Sequence[Command], folder: Path) -> dict[str, float]:
    seconds = {}
    for command in commands:
        seconds[command.words[0]] = round(run(made.launcher, command, folder, environment()), 1)
        print(f"draftlens {' '.join(command.words)}: {seconds[command.words[0]]} s", flush=True)
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 for wheels that are no release or commands that fail."""
    parser = argparse.ArgumentParser(prog="python -m recipes.release")
    parser.add_argument("folder", type=Path, help="the folder with the wheels")
    parser.add_argument(
        "--before", action="append", default=[], help="a requirement installed first"
    )
    parser.add_argument("--name", default="release", help="name of the report, without .json")
    given = parser.parse_args(arguments)
    wheels = [read_wheel(path) for path in sorted(given.folder.glob("*.whl"))]
    if sentences := problems(wheels):
        print("\n".join(sentences), file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as work:
        try:
            report = check(wheels, given.before, Path(work))
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(error, file=sys.stderr)
            return 1
    text = json.dumps(report, indent=2)
    (given.folder / f"{given.name}.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
