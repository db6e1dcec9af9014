"""What all tests share: one thread, no network, an empty cache folder, and a GPU only where there
is one."""

from __future__ import annotations

import gc
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What draftlens measures on this machine is neither read nor written; subprocesses inherit it.
_CACHE = tempfile.TemporaryDirectory(prefix="draftlens-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

import pytest  # noqa: E402 - the environment comes first
from covering import covering, halved  # noqa: E402

# Other imports of the conftests of whole folders stand in their functions: the process that only
# hands out tests to workers, which wait for it, needs none of these libraries.


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all-combinations`."""
    parser.addoption(
        "--all-combinations",
        action="store_true",
        help="run every combination of parameters of tests that are marked `pairwise` or `alike`, "
        "or that have a parameter `family`",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out what is marked `pairwise` or `alike`, begin with what takes long, and skip what is
    marked `gpu` where there is none."""
    if not config.getoption("--all-combinations"):
        items[:] = [item for item in items if not item.get_closest_marker("alike")]
        _keep_all_pairs(items)
        _keep_half_of_the_families(items)
    _put_long_files_first(items)
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _keep_all_pairs(items: list[pytest.Item]) -> None:
    """Leave so many combinations of a `pairwise` test's parameters that any two values which occur
    together in one of all combinations still do. Tests of a file whose markers have the same name
    are one test, and which of them is one more parameter."""
    tests: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("pairwise"):
            test = item.nodeid.partition("[")[0]
            tests[(str(item.path), *marker.args) if marker.args else (test,)].append(item)
    surplus = set[pytest.Item]()
    for test in tests.values():
        kept = covering([_named(item) for item in test])
        surplus.update(item for number, item in enumerate(test) if number not in kept)
    items[:] = [item for item in items if item not in surplus]


def _keep_half_of_the_families(items: list[pytest.Item]) -> None:
    """Leave every second family of a test for each combination of its other parameters; see
    `halved`. Of `pairwise` tests all families are left."""
    tests: defaultdict[str, list[Any]] = defaultdict(list)
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and "family" in parameters.params:
            tests[item.nodeid.partition("[")[0]].append(item)
    surplus = set[pytest.Item]()
    for test in tests.values():
        if not test[0].get_closest_marker("pairwise"):
            kept = halved([_named(item) for item in test], "family")
            surplus.update(item for number, item in enumerate(test) if number not in kept)
    items[:] = [item for item in items if item not in surplus]


def _named(item: Any) -> dict[str, str]:
    """The name of a test and its parameters, sorted, so that tests which are grouped agree."""
    values = {name: str(value) for name, value in item.callspec.params.items()}
    return {"": item.originalname, **dict(sorted(values.items()))}


@pytest.fixture
def steady_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """See `make_costs_steady`."""
    make_costs_steady(monkeypatch)


def make_costs_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Automatic methods draft by costs of a table, so that neither the speed of this machine nor
    earlier answers decide what they draft: a draft costs a tenth of its target, and a forward over
    64 tokens twice as much as one over a single token. What a round takes is what they expect of
    it. Every round looks for copies."""
    from draftlens.drafting.adaptive import history as records
    from draftlens.drafting.adaptive.controller import TreeController
    from draftlens.drafting.adaptive.costs import CostCurve, ForwardCosts
    from draftlens.methods.mixed.drafter import LookAllowance
    from draftlens.models.model_state import Slot

    class Untimed(ForwardCosts):
        """Costs that no answer changes."""

        def record(self, width: int, predicted: float, seconds: float) -> None:
            """Forget how long a forward took here."""

    of_target, of_draft = (
        Untimed(CostCurve((1, 64), (seconds, 2 * seconds))) for seconds in (1e-2, 1e-3)
    )

    def costs(backbone: Any, other: Any = None) -> Any:
        return of_target if other is None else of_draft

    judged, has_read, drafted = (
        TreeController.judged,
        TreeController.has_read,
        TreeController.drafted,
    )

    def judged_as_expected(
        self: Any, topology: Any, paths: Any, seconds: float, num_further: int = 0
    ) -> None:
        expected = self.history.costs.check(len(topology) + num_further, self._at)
        judged(self, topology, paths, expected, num_further)

    def drafted_as_expected(self: Any, widths: Any, seconds: float) -> None:
        at = self._at
        costs = self.history.costs.draft
        expected = sum(costs.cost(width, at.rows, at.draft_context) for width in widths)
        drafted(self, widths, expected)

    def read_as_expected(self: Any, num_tokens: int, seconds: float) -> None:
        has_read(self, num_tokens, of_draft.cost(num_tokens))

    monkeypatch.setattr(TreeController, "judged", judged_as_expected)
    monkeypatch.setattr(TreeController, "drafted", drafted_as_expected)
    monkeypatch.setattr(TreeController, "has_read", read_as_expected)
    monkeypatch.setattr(records, "_live_costs", costs)
    monkeypatch.setattr(records, "_RECORDS", Slot("records"))
    monkeypatch.setattr(LookAllowance, "is_left", True)


def pytest_collection_finish() -> None:
    """Set one thread, on which tiny models are faster than on two, and leave what was imported to
    no further garbage collection, which would read all of it again and again: a tenth of the
    suite's time."""
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> Iterator[None]:
    """What was imported stays frozen: `draftlens bench` freezes what is there, and at its end would
    leave all of it to garbage collection again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


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
