"""Two checkouts of draftlens side by side: is the new one as fast as the old one?

    git worktree add ../old COMMIT
    python benchmarks/versions.py ../old --out benchmarks/results/versions

One process per checkout loads the embedded pair. The processes answer in turn, so that machine
noise hits both alike, and the order changes from repeat to repeat. Tokens must be equal. The ratio
of a configuration is the median over all pairs of runs of old seconds / new seconds: above 1 the
new checkout is faster. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from shared import Benchmark, Report, grid

CONFIGURATIONS: dict[str, Any] = {
    "plain": "plain",
    "chain of 5": {"num_speculative_tokens": 5},
    "EAGLE's tree": {"tree": "eagle"},
    "default": None,
    "automatic tree": "speculative",
    "specvlm": "specvlm",
    "lookup": "lookup",
    "mixed": "mixed",
}
CLIPS = ("shapes.mp4", "drift.mp4")


WORKER = """
import json, sys, time
import torch, transformers
import draftlens
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
compile = {"no": False, "yes": True}.get(sys.argv[1], sys.argv[1])
engine = draftlens.load(device="cpu", compile=compile)
inputs = {}
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    clip, method = json.loads(line)
    if clip not in inputs:
        inputs[clip] = engine.read("Describe the video.", video=clip)
    start = time.perf_counter()
    result = engine.answer(inputs[clip], method=method).run()
    seconds = time.perf_counter() - start
    answer = {"seconds": seconds, "decode": result.stats.decode, "tokens": result.tokens}
    print(json.dumps(answer), flush=True)
"""


class Worker:
    """A process that answers with one checkout.

    Args:
        checkout: its folder.
        compile: what computes the passes: `no`, `yes` or the name of an engine.
    """

    def __init__(self, checkout: Path, compile: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, compile],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self._read() == "ready"

    def answer(self, clip: str, method: Any) -> dict[str, Any]:
        """Seconds and tokens of one answer."""
        assert self.process.stdin is not None
        print(json.dumps([clip, method]), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = self._read()
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def measure(args: argparse.Namespace) -> Report:
    """Ratios old / new of every configuration, end to end and of decoding alone."""
    workers = {
        name: Worker(folder.resolve(), args.compile)
        for name, folder in (("old", args.old), ("new", args.new))
    }
    clips = [str(args.new.resolve() / "draftlens" / "embedded" / "clips" / clip) for clip in CLIPS]
    found: dict[str, dict[str, list[float]]] = {
        name: {"seconds": [], "decode": []} for name in CONFIGURATIONS
    }
    for repeat in range(args.repeats + 1):
        for clip in clips:
            for name, method in CONFIGURATIONS.items():
                order = ("old", "new") if repeat % 2 else ("new", "old")
                answers = {version: workers[version].answer(clip, method) for version in order}
                assert answers["old"]["tokens"] == answers["new"]["tokens"], (clip, name)
                if repeat:  # the first round warms up
                    for key, values in found[name].items():
                        values.append(answers["old"][key] / answers["new"][key])
    for worker in workers.values():
        worker.close()
    commits = {"old": commit_of(args.old), "new": commit_of(args.new)}
    return {
        "commits": commits,
        "compile": args.compile,
        "repeats": args.repeats,
        "ratios": found,
    }


def commit_of(checkout: Path) -> str:
    """The short commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def page(report: Report) -> list[str]:
    """Ratios by configuration."""
    found, commits = report["ratios"], report["commits"]
    columns = {"end to end": "seconds", "decode": "decode"}

    def spread(name: str, column: str) -> str:
        low, middle, high = statistics.quantiles(found[name][columns[column]], n=4)
        return f"{middle:.3f} ({low:.3f} to {high:.3f})"

    return [
        f"Seconds of {commits['old']} / seconds of {commits['new']}: median (quartiles) of "
        f"{report['repeats']} repeats of {len(CLIPS)} clips, one thread each; compiled passes: "
        f"{report.get('compile', 'no')}. Above 1 the new commit is faster. All tokens are equal.",
        grid("", found, columns, spread),
    ]


BENCHMARK = Benchmark(
    "versions",
    __doc__,
    "Old commit against new",
    measure,
    page,
    {
        "old": {"type": Path},
        "--new": {"type": Path, "default": Path(__file__).resolve().parents[1]},
        "--compile": {"default": "no", "help": "no, yes or the name of an engine"},
        "--repeats": 15,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
