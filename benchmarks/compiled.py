"""Compiled passes (`compile=True`): what a pass, an answer and a start cost with them.

    python benchmarks/compiled.py passes --repeats 40
    python benchmarks/compiled.py decode --repeats 5
    python benchmarks/compiled.py large --layers 8
    python benchmarks/compiled.py engines --layers 24
    python benchmarks/compiled.py quantized
    python benchmarks/compiled.py rounding
    python benchmarks/compiled.py memory
    python benchmarks/compiled.py vision
    python benchmarks/compiled.py reading
    python benchmarks/compiled.py windows
    python benchmarks/compiled.py families
    python benchmarks/compiled.py start
    python benchmarks/compiled.py default

Every part is a module of `compiled_parts` with a `BENCHMARK` that reads the options after its name
and writes its own report, `benchmarks/results/compiled_PART.json` and `.md`.
"""

from __future__ import annotations

from shared import run_part

PARTS = {
    "passes": "compiled_parts.passes",
    "decode": "compiled_parts.decode",
    "large": "compiled_parts.large",
    "engines": "compiled_parts.engines",
    "quantized": "compiled_parts.quantized",
    "rounding": "compiled_parts.rounding",
    "memory": "compiled_parts.memory",
    "vision": "compiled_parts.vision",
    "reading": "compiled_parts.reading",
    "windows": "compiled_parts.windows",
    "families": "compiled_parts.families",
    "start": "compiled_parts.start",
    "default": "compiled_parts.default",
}
"""Modules by name."""

if __name__ == "__main__":
    run_part(__doc__, PARTS)
