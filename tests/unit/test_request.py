"""A request is checked where it is made, once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

import draftlens
from draftlens import ConfigError
from draftlens.models.known_pairs import path_of
from draftlens.options import CheckedOptions, checked_options
from draftlens.request import Request

CLIP = f"{path_of('embedded', 'target')}/../clips/shapes.mp4"


@pytest.fixture
def called() -> Iterator[Counter[str]]:
    """How often each function of draftlens that checks arguments is called, by its name."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/draftlens/" in code.co_filename:
            counts[code.co_name] += 1

    sys.setprofile(note)
    yield counts
    sys.setprofile(None)


def test_an_answer_of_an_engine_is_checked_once(called: Counter[str]) -> None:
    engine = draftlens.load(device="cpu", calibrate=False)
    called.clear()
    engine.generate("Describe the video.", video=CLIP, method="plain", max_new_tokens=2)
    assert called["completed_options"] == 1
    assert called["check_temperature"] == 1  # at the end of each check of options
    assert called["check_for_model"] == called["check_question"] == 1
    assert called["check_tokens"] == 1


def test_a_call_with_tensors_is_checked_once(called: Counter[str]) -> None:
    engine = draftlens.load(device="cpu", calibrate=False)
    inputs = engine.read("Hello").target
    called.clear()
    draftlens.generate(engine.target.backbone.model, inputs, method="plain", max_new_tokens=2)
    assert called["checked_options"] == called["check_temperature"] == 1
    assert called["check_tokens"] == called["check_for_model"] == 1


def test_options_that_are_checked_are_taken_as_they_are() -> None:
    once = checked_options({"max_new_tokens": 3})
    assert isinstance(once, CheckedOptions)
    assert checked_options(once) is once
    assert Request({}, options=once).options is once
    with pytest.raises(ConfigError, match="max_new_tokens"):
        Request({}, options={"max_new_tokens": 1.5})
