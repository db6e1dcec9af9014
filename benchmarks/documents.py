"""Answers that repeat a document, drafted from what cheap readers find on the page (HSD).

    python benchmarks/documents.py claims --pages 6
    python benchmarks/documents.py repeated

Every part is a module of `documents_parts` with a `BENCHMARK` that reads the options after its name
and writes its own report, `benchmarks/results/documents_PART.json` and `.md`.
"""

from __future__ import annotations

from shared import run_part

PARTS = {
    "speed": "documents_parts.speed",
    "claims": "documents_parts.claims",
    "repeated": "documents_parts.repeated",
    "texts": "documents_parts.texts",
    "shapes": "documents_parts.shapes",
}
"""Modules by name."""

if __name__ == "__main__":
    run_part(__doc__, PARTS)
