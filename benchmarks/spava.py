"""Long videos read in blocks, by one process or several (SPAVA): what it saves, and what it costs.

    python benchmarks/spava.py fidelity --minutes 60
    python benchmarks/spava.py fidelity --choices --minutes 60 \
        --rows benchmarks/results/spava_choices_rows.jsonl --out benchmarks/results/spava_choices
    python benchmarks/spava.py selection
    python benchmarks/spava.py counts
    python benchmarks/spava.py firsttoken --repeats 5
    python benchmarks/spava.py answers --lengths 4097 16001
    python benchmarks/spava.py texts
    python benchmarks/spava.py optimizations
    python benchmarks/spava.py model

Every part is a module of `spava_parts` with a `BENCHMARK` that reads the options after its name and
writes its own report, `benchmarks/results/spava_PART.json` and `.md`.
"""

from __future__ import annotations

from shared import run_part

PARTS = {
    "fidelity": "spava_parts.fidelity",
    "selection": "spava_parts.selection",
    "counts": "spava_parts.counts",
    "firsttoken": "spava_parts.first_token",
    "answers": "spava_parts.answers",
    "texts": "spava_parts.texts",
    "optimizations": "spava_parts.optimizations",
    "model": "spava_parts.cost_model",
}
"""Modules by name."""

if __name__ == "__main__":
    run_part(__doc__, PARTS)
