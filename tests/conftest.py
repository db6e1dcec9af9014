"""What all tests share: one thread, no network, an empty cache folder, and a GPU only where there
is one."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter, defaultdict
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What draftlens measures on this machine is neither read nor written; subprocesses inherit it.
_CACHE = tempfile.TemporaryDirectory(prefix="draftlens-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

import pytest  # noqa: E402 - the environment comes first
import torch  # noqa: E402
from covering import covering  # noqa: E402

from draftlens.drafting.adaptive import history as records  # noqa: E402
from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts  # noqa: E402
from draftlens.models.model_state import Slot  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all-combinations`."""
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="run every combination of parameters of tests that are marked `pairwise` or `alike`",
    )


def pytest_configure() -> None:
    """Tiny models are slower on two threads than on one."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out what is marked `pairwise` or `alike`, begin with what takes long, and skip what is
    marked `gpu` where there is none."""
    if not config.getoption("--all-combinations"):
        items[:] = [item for item in items if not item.get_closest_marker("alike")]
        _keep_all_pairs(items)
    _put_long_files_first(items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _keep_all_pairs(items: list[pytest.Item]) -> None:
    """Leave so many combinations of a `pairwise` test's parameters that any two values which occur
    together in one of all combinations still do."""
    tests: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairwise"):
            tests[item.nodeid.partition("[")[0]].append(item)
    surplus = set[pytest.Item]()
    for test in tests.values():
        kept = covering([_named(item) for item in test])
        surplus.update(item for number, item in enumerate(test) if number not in kept)
    items[:] = [item for item in items if item not in surplus]


def _named(item: Any) -> dict[str, str]:
    """The parameters of a test."""
    return {name: str(value) for name, value in item.callspec.params.items()}


class _Untimed(ForwardCosts):
    """Costs that no answer changes."""

    def record(self, width: int, predicted: float, seconds: float) -> None:
        """Forget how long a forward took here."""


@pytest.fixture
def steady_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `make_costs_steady`."""
    make_costs_steady(monkeypatch)


def make_costs_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic methods draft by costs of a table, so that neither the speed of this machine nor
    earlier answers decide what they draft: a draft costs a tenth of its target, and a forward over
    64 tokens twice as much as one over a single token."""
    of_target, of_draft = (
        _Untimed(CostCurve((1, 64), (seconds, 2 * seconds))) for seconds in (1e-2, 1e-3)
    )

    def costs(backbone: Any, other: Any = None) -> ForwardCosts:
        return of_target if other is None else of_draft

    monkeypatch.setattr(records, "_live_costs", costs)
    monkeypatch.setattr(records, "_RECORDS", Slot("records"))


def pytest_collection_finish() -> None:
    """Leave what was imported to no further garbage collection, which would read all of it again
    and again: a tenth of the suite's time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let libraries that report what is left at the end find nothing."""
    gc.unfreeze()


def _put_long_files_first(items: list[pytest.Item]) -> None:
    """Files with slow tests, then whole runs, then the others, large ones first.

    Workers take files in this order, so that none of them ends with a long file while the others
    have nothing left to do.
    """
    sizes = Counter(item.path for item in items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        return item.path not in slow, "e2e" not in item.path.parts, -sizes[item.path]

    items.sort(key=place)
