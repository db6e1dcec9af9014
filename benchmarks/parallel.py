"""Draft and target at the same time (ParallelVLM): what it gains, and the paper's claims.

    python benchmarks/parallel.py pairs          # virtual time: minutes, on any machine
    python benchmarks/parallel.py guidance --clips 30
    python benchmarks/parallel.py lossy --help

Every part is a module of `parallel_parts` with a `BENCHMARK` that reads the options after its name
and writes its own report, `benchmarks/results/parallel_PART.json` and `.md`.
"""

from __future__ import annotations

from shared import run_part

PARTS = {
    "pairs": "parallel_parts.pairs",
    "guidance": "parallel_parts.guidance",
    "lossy": "parallel_parts.lossy",
    "pair": "parallel_parts.pair",
    "robustness": "parallel_parts.robustness",
    "first-token": "parallel_parts.first_token",
    "idle": "parallel_parts.idle",
}
"""Modules by name."""

if __name__ == "__main__":
    run_part(__doc__, PARTS)
