"""What engines of passes have in common under test."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES, inputs
from stock import NEW, draft, reference, target

from draftlens.methods.parallelvlm.draft_process import DraftProcess
from draftlens.methods.parallelvlm.messages import Open
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.request import Request
from draftlens.streaming import Stream


def copied(model: Any) -> Any:
    """The shared models may have hooks of other tests, which no engine would call."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    return copy.eval()


def check_process_drafts_by(
    name: str, quantization: str | None, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of the target name the engine, and the tokens are those of stock `generate`."""
    monkeypatch.setattr("draftlens.methods.parallelvlm.drafters.usable_cores", lambda: 2)
    opened: list[Open] = []
    send = DraftProcess.send

    def spy(process: DraftProcess, message: Any) -> None:
        opened.extend([message] if isinstance(message, Open) else [])
        send(process, message)

    monkeypatch.setattr(DraftProcess, "send", spy)
    family = FAMILIES[0]
    models = [Backbone.of(copied(target(family))), Backbone.of(copied(draft(family)))]
    attach(models, name, quantization)
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3}
    given = inputs(family, family.richest)
    request = Request(given, method=method, options={"max_new_tokens": NEW})
    result = Stream(*models, request).run()
    assert result.tokens == reference(family, family.richest)
    assert result.stats.worker_lost is None
    assert [message.engine for message in opened] == [engine]
