from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from stock import draft, target

from draftlens.methods.base import Models
from draftlens.models.adapter import Backbone
from draftlens.scheduling import Scheduler, SchedulerLimits
from tests.unit.scheduling.callers import FAMILY, Gate, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes schedulers of the family's pair, and closes them."""
    made: list[Scheduler] = []

    def make(**limits: Any) -> Scheduler:
        models = Models(Backbone.of(target(FAMILY)), Backbone.of(draft(FAMILY)))
        made.append(Scheduler(models, SchedulerLimits(**limits)))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.close()
        assert not scheduler._thread.is_alive()
        for model in (scheduler.models.target, scheduler.models.draft):
            assert model is not None
            model.prompt_cache = None


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)
