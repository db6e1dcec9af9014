"""Every claim of the papers and of this package with a verdict: writes docs/claims.md.

    python -m benchmarks.claims [--check] [--quick [FOLDER]] [--run [FOLDER]]
    python -m benchmarks.claims --target NAME [--draft NAME] [--clips FOLDER] [--small]

The table of claims is data in `claims_parts`, one module for each paper; verdicts are computed from
the result files. Runs from the root of the repository.
"""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    # The parts import each other by relative names, so they need their package.
    sys.exit(importlib.import_module("benchmarks.claims_parts.main").main())
