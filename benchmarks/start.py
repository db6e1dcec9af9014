"""How long it takes until something happens: `--help`, the first token of the demo and of a server
that is asked about a picture, and the refusal of a name that the Hub does not have.

Each command is run several times as a process of its own, by the wall clock and by the CPU time of
its processes. The refusal is
measured without a network (no address is known) and with a Hub that takes connections and never
answers. `--package` names another checkout to measure in its place, such as one of an earlier
commit.
"""

from __future__ import annotations

import argparse
import base64
import os
import pty
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

WRONG = "nobody/no-such-model"
SECONDS = 400.0
"""Time after which a command is given up."""

PREDICTION = """Written before the first run of the server: its first token takes 3 s of CPU more
than that of the demo, 1 s for the modules of the server and 2 s for those of the process that reads
the picture; by the wall clock of an idle machine also 3 s."""

CLIPS = Path("draftlens/embedded/clips")

CASES = {
    "help": "`--help`",
    "token": "first token of the demo",
    "server": "first token of the server",
    "offline": "refusal without a network",
    "silent": "refusal by a Hub that does not answer",
}


def seconds_of(words: Sequence[str], package: Path, variables: Mapping[str, str]) -> float:
    """Wall time of a command."""
    began = time.perf_counter()
    subprocess.run(
        command_of(words),
        cwd=package,  # `python -m` looks there first
        env=environment_of(package, variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=SECONDS,
        check=False,
    )
    return time.perf_counter() - began


def seconds_to_first_token(package: Path) -> float:
    """Wall time until the demo has printed a word of the first answer on a terminal."""
    terminal, inside = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(
        command_of(["demo", "--device", "cpu", "--no-calibrate"]),
        cwd=package,
        env=environment_of(package, {"TERM": "dumb"}),
        stdout=inside,
        stderr=subprocess.DEVNULL,
    )
    os.close(inside)
    printed = b""
    # The headline ends with the name of the target and a colon; the answer is on the next line.
    while not printed.partition(b"embedded:")[2].strip():
        printed += os.read(terminal, 4096)
    seconds = time.perf_counter() - began
    process.kill()
    process.wait()
    os.close(terminal)
    return seconds


def seconds_to_first_answer(package: Path) -> float:
    """Wall time until a server has sent a word of its first answer."""
    picture = base64.b64encode((package / CLIPS / "shapes.png").read_bytes()).decode()
    content = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}},
        {"type": "text", "text": "Describe the image."},
    ]
    body = {"messages": [{"role": "user", "content": content}], "stream": True}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    words = ["-q", "serve", "--port", str(port), "--no-calibrate"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command_of(words), cwd=package, env=environment_of(package, {}), stderr=subprocess.DEVNULL
    )
    seconds = None
    while seconds is None:
        try:
            with httpx.stream("POST", url, json=body, timeout=SECONDS) as response:
                if any(re.search('"content":"[^"]', line) for line in response.iter_lines()):
                    seconds = time.perf_counter() - began
        except httpx.ConnectError:  # it does not listen yet
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)
    process.terminate()  # it waits for its own processes, whose time counts
    process.wait()
    return seconds


def cpu_seconds() -> float:
    """CPU time of the commands that have ended, with their processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def command_of(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "draftlens", *words]


def environment_of(package: Path, variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(package), **variables}


def measure(
    package: Path, repeats: int, cases: Sequence[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and CPU seconds of each case."""
    refused = ["caption", str(CLIPS / "shapes.mp4"), "--target", WRONG]
    nowhere = {"HF_ENDPOINT": "http://no-such-host.invalid"}
    with socket.create_server(("127.0.0.1", 0)) as hub:
        silent = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        measures: dict[str, Callable[[], float]] = {
            "help": lambda: seconds_of(["--help"], package, {}),
            "token": lambda: seconds_to_first_token(package),
            "server": lambda: seconds_to_first_answer(package),
            "offline": lambda: seconds_of(refused, package, nowhere),
            "silent": lambda: seconds_of(refused, package, silent),
        }
        seconds: dict[str, list[float]] = {CASES[case]: [] for case in cases}
        cpu: dict[str, list[float]] = {CASES[case]: [] for case in cases}
        for _ in range(repeats):
            for case in cases:
                before = cpu_seconds()
                seconds[CASES[case]].append(measures[case]())
                cpu[CASES[case]].append(cpu_seconds() - before)
    return seconds, cpu


def page_of(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    rows = []
    for name, seconds in report["seconds"].items():
        cpu = f"{median(report['cpu_seconds'][name]):.2f}"
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        rows.append([name, f"{median(seconds):.2f}", spread, cpu])
    table = "\n".join(markdown_table(["until", "seconds", "range", "CPU seconds"], rows))
    return "\n\n".join(["# Start", PREDICTION, table, environment_line(report["environment"])])


def main() -> None:
    """Run the commands, print and save the report."""
    parser: argparse.ArgumentParser = argument_parser(__doc__, "benchmarks/results/start", 3)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES))
    parser.add_argument("--package", type=Path, default=Path(__file__).resolve().parents[1])
    args = parser.parse_args()
    configure(args.threads)
    seconds, cpu = measure(args.package.resolve(), args.repeats, args.cases)
    report = {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "environment": environment(args),
    }
    page = page_of(report)
    save(args.out, report, page)
    print(page)


if __name__ == "__main__":
    main()
