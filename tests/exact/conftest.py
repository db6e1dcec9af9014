"""Profiles of hypothesis: the same examples in every run of `make test`, fresh ones in `make fuzz`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = 330
"""Examples of `make test`, all tests of `test_fuzz.py` together."""

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile(
    "fixed",
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "fresh",
    max_examples=int(os.environ.get("DRAFTLENS_FUZZ_EXAMPLES", EXAMPLES)),
    derandomize=False,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile("fresh" if "DRAFTLENS_FUZZ_EXAMPLES" in os.environ else "fixed")
