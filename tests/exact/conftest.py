"""Profiles of hypothesis for `test_fuzz.py`; other tests keep hypothesis' own settings."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

EXAMPLES = 160
"""Examples of `make test`, all tests of `test_fuzz.py` together."""

EXAMPLES_OF_FAULTS = 300
"""Those of `make mutants`."""

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile(
    "fixed",  # the same examples in every run
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "first failure",  # the same, but the first case that fails is not made smaller
    settings.get_profile("fixed"),
    max_examples=EXAMPLES_OF_FAULTS,
    phases=(Phase.generate,),
)
settings.register_profile(
    "fresh",  # other examples in every run
    settings.get_profile("fixed"),
    max_examples=int(os.environ.get("DRAFTLENS_FUZZ_EXAMPLES", EXAMPLES)),
    derandomize=False,
    print_blob=True,
)
