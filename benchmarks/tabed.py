"""One draft, several views of the prompt (TABED): what the views and their weights are worth.

    python benchmarks/tabed.py acceptance --prompts 60
    python benchmarks/tabed.py steps
    python benchmarks/tabed.py endtoend --prompts 8
    python benchmarks/tabed.py captions

Every part is a module of `tabed_parts` with a `BENCHMARK` that reads the options after its name and
writes its own report, `benchmarks/results/tabed_PART.json` and `.md`.
"""

from __future__ import annotations

from shared import run_part

PARTS = {
    "acceptance": "tabed_parts.acceptance",
    "steps": "tabed_parts.steps",
    "endtoend": "tabed_parts.end_to_end",
    "captions": "tabed_parts.captions",
}
"""Modules by name."""

if __name__ == "__main__":
    run_part(__doc__, PARTS)
