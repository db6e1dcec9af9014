"""`draftlens caption FOLDER` on procedural clips, some of which are broken, huge or keep a decoder
busy for ever.

Measured: clips a minute with batches of one and of several, and the memory of the run and its
readers over time. Checked: after the run was killed twice and resumed, every file has exactly one
line, every whole clip is answered, and the answers are those of the run that was not killed.

A huge clip is over a limit on pixels. The clip that hangs repeats one group of pictures so often
that decoding it takes much longer than the time for a clip.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import psutil
from draftlens_lab.world import HELD_OUT, render, sample_scene
from draftlens_lab.world.files import write_clip
from shared import Benchmark, Report, environment, report_of, table

SIDE = 64
HUGE_SIDE = 1024
MAX_PIXELS = 500_000
LIMITS = json.dumps({"max_pixels": MAX_PIXELS})
REPEATED = 4000
"""Groups of 250 pictures in the clip that hangs: a million pictures."""
HANGING = "hanging-"
"""Beginning of the names of clips that keep a decoder busy."""
MEMORY_SECONDS = 0.25
MEMORY_POINTS = 50


@dataclass(frozen=True)
class Album:
    """A folder of clips.

    Args:
        folder: with all files.
        whole: names of the clips that can be answered.
        others: names of those that cannot.
    """

    folder: Path
    whole: frozenset[str]
    others: frozenset[str]


@dataclass
class Outcome:
    """A run of the command.

    Args:
        seconds: wall time.
        status: exit status.
        memory: bytes of the process and its readers, every `MEMORY_SECONDS` from the first answer
            on.
        lines: of the file of answers.
    """

    seconds: float
    status: int
    memory: list[int] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)


def make_album(folder: Path, count: int, broken: int, huge: int, hanging: int) -> Album:
    """Clips of the procedural world, of three lengths, and files that cannot be answered."""
    folder.mkdir(parents=True)
    names = []
    for number in range(count - broken - huge - hanging):
        name = f"clip-{number:04}.mp4"
        frames = render(sample_scene(HELD_OUT + number), 16 * (1 + number % 3), SIDE)
        write_clip(folder / name, frames)
        names.append(name)
    content = (folder / names[0]).read_bytes()
    damages = (b"", b"no clip", content[: len(content) // 2], content[len(content) // 2 :])
    others = []
    for number in range(broken):
        others.append(f"broken-{number:04}.mp4")
        (folder / others[-1]).write_bytes(damages[number % len(damages)])
    for number in range(huge):
        others.append(f"huge-{number:04}.mp4")
        write_clip(folder / others[-1], np.zeros((8, HUGE_SIDE, HUGE_SIDE, 3), np.uint8))
    for number in range(hanging):
        others.append(f"{HANGING}{number:04}.mp4")
        write_endless(folder / others[-1])
    return Album(folder, frozenset(names), frozenset(others))


def write_endless(path: Path) -> None:
    """A clip that keeps a decoder busy: one group of pictures, again and again."""
    with TemporaryDirectory() as folder:
        group = Path(folder) / "group.h264"
        with av.open(str(group), "w", format="h264") as file:
            stream: Any = file.add_stream("libx264", rate=25)
            stream.width = stream.height = 16
            stream.pix_fmt = "yuv420p"
            for _ in range(250):
                picture = np.zeros((16, 16, 3), np.uint8)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            file.mux(stream.encode())
        content = group.read_bytes()
    with path.open("wb") as output:
        for _ in range(REPEATED):
            output.write(content)


def command_of(album: Album, out: Path, batch: int, args: argparse.Namespace) -> list[str]:
    """The command line of a run."""
    return [
        *(sys.executable, "-m", "draftlens", "caption", str(album.folder), "--out", str(out)),
        *("--batch", str(batch), "--clip-seconds", str(args.clip_seconds), "--limits", LIMITS),
        *("--max-new-tokens", str(args.max_new_tokens), "--device", "cpu", "--no-calibrate"),
        *("--speculative-config", json.dumps({"num_speculative_tokens": 5})),
    ]


def run(command: Sequence[str], out: Path, kill_at: int | None = None) -> Outcome:
    """Run a command and watch its memory; with `kill_at`, kill it once the file has so many lines
    more."""
    before = count_lines(out)
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    outcome = Outcome(0.0, 0)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        # Loading is not of interest: only what answering adds.
        if count_lines(out) > before:
            outcome.memory.append(memory_of(watched))
        if kill_at is not None and count_lines(out) - before >= kill_at:
            process.kill()
        time.sleep(MEMORY_SECONDS)
    outcome.seconds = time.perf_counter() - began
    outcome.status = process.returncode
    content = out.read_bytes() if out.exists() else b""
    outcome.lines = [json.loads(line) for line in content.split(b"\n")[:-1]]
    return outcome


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def memory_of(process: psutil.Process) -> int:
    """Bytes of a process and its children that no other process has."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().uss
    except psutil.Error:  # it has just ended
        pass
    return total


def texts_of(outcome: Outcome) -> dict[str, str | None]:
    """The answer about each file; None where there is an error."""
    return {Path(line["file"]).name: line.get("text") for line in outcome.lines}


def check(album: Album, outcome: Outcome) -> None:
    """Every file has one line, and exactly the whole clips are answered."""
    texts = texts_of(outcome)
    assert len(texts) == len(outcome.lines) == len(album.whole | album.others)
    assert {name for name, text in texts.items() if text is not None} == album.whole
    for line in outcome.lines:
        if Path(line["file"]).name.startswith(HANGING):
            assert "its decoder did not end within" in line["error"]


def growth_of(memory: Sequence[int]) -> float:
    """Memory in the last quarter of the answering by that in the second, each a median.

    In the first quarter the memory pools of torch and of the C library fill up.
    """
    quarter = max(1, len(memory) // 4)
    return median(memory[-quarter:]) / max(1, median(memory[quarter : 2 * quarter]))


def measure_speed(album: Album, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Runs with batches of one and of several, checked."""
    runs: dict[str, Outcome] = {}
    for batch in (1, args.batch):
        out = folder / f"batch-{batch}.jsonl"
        outcome = run(command_of(album, out, batch, args), out)
        check(album, outcome)
        runs[f"batch of {batch}"] = outcome
    alone, together = runs.values()
    assert texts_of(alone) == texts_of(together)
    figures = {name: figures_of(outcome, len(album.whole)) for name, outcome in runs.items()}
    speeds = [figure["speed"] for figure in figures.values()]
    return {"runs": figures, "gain": speeds[1] / speeds[0], "answers": digest_of(alone)}


def measure_kills(album: Album, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """A run that is killed several times and resumed, checked."""
    out = folder / "killed.jsonl"
    command = command_of(album, out, args.batch, args)
    kills = []
    for kill in range(args.kills):
        words = [*command, "--resume"] if kill else command
        kills.append(run(words, out, kill_at=max(1, args.clips // (2 * args.kills + 1))))
        assert kills[-1].status == -9
    resumed = run([*command, "--resume"], out)
    check(album, resumed)
    return {
        "lines at the kills": [len(outcome.lines) for outcome in kills],
        "lines": len(resumed.lines),
        "answers": digest_of(resumed),
        "memory": thinned(resumed.memory),
    }


PARTS = {"speed": measure_speed, "kills": measure_kills}


def digest_of(outcome: Outcome) -> str:
    """A digest of all answers."""
    return sha256(json.dumps(texts_of(outcome), sort_keys=True).encode()).hexdigest()


def figures_of(outcome: Outcome, whole: int) -> dict[str, Any]:
    return {
        "seconds": outcome.seconds,
        "speed": 60 * whole / outcome.seconds,
        "largest memory": max(outcome.memory),
        "growth": growth_of(outcome.memory),
        "memory": thinned(outcome.memory),
    }


def thinned(memory: Sequence[int]) -> list[int]:
    """MiB at `MEMORY_POINTS` moments at most, in equal steps."""
    step = max(1, len(memory) // MEMORY_POINTS)
    return [count // 2**20 for count in memory[::step]]


def measured(album: Album, folder: Path, args: argparse.Namespace) -> Report:
    """The parts that are asked for, beside those of an earlier run on the same clips."""
    report = report_of(args) if len(args.parts) < len(PARTS) else {}
    for name in args.parts:
        report[name] = PARTS[name](album, folder, args)
    answers = {part["answers"] for name, part in report.items() if name in PARTS}
    assert len(answers) == 1, "the answers of a run that was killed are others"
    return report


def measure(args: argparse.Namespace) -> Report:
    """Make the clips and run the command."""
    folder = args.out.parent / "folders-clips"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        album = make_album(folder / "album", args.clips, args.broken, args.huge, args.hanging)
        return {**measured(album, folder, args), "environment": environment(args)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def page(report: Report) -> list[str]:
    """Clips a minute and memory, and what a killed run left."""
    blocks = []
    if "speed" in report:
        rows = [{"run": name, **figures} for name, figures in report["speed"]["runs"].items()]
        columns = {
            "run": "{run}",
            "seconds": "{seconds:.1f}",
            "clips a minute": "{speed:.1f}",
            "largest MiB": "{largest memory:.0MiB}",
            "last / second quarter": "{growth:.2f}",
        }
        gain = f"Batches give {report['speed']['gain']:.2f} times the clips a minute."
        blocks += [table(rows, columns), gain]
    if "kills" in report:
        kills = report["kills"]
        blocks.append(
            f"Killed by SIGKILL at {kills['lines at the kills']} lines and resumed: "
            f"{kills['lines']} lines, one for each file, with the answers of a run that was not "
            "killed."
        )
    return blocks


BENCHMARK = Benchmark(
    "folders",
    __doc__,
    "Folders",
    measure,
    page,
    {
        "--parts": {"nargs": "+", "choices": tuple(PARTS), "default": list(PARTS)},
        "--clips": 200,
        "--broken": 20,
        "--huge": 5,
        "--hanging": 1,
        "--batch": 4,
        "--kills": 2,
        "--clip-seconds": 5.0,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
