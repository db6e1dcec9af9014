"""Resuming an interrupted run: its logged losses, and changes of its media."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from draftlens_lab.train import train_draft
from draftlens_lab.train.data import read_data
from draftlens_lab.train.media import END_BYTES, media_digest
from draftlens_lab.train.termination import SaveAtTermination
from families import FAMILIES
from PIL import Image
from transformers import TrainerCallback

from draftlens.core.errors import ConfigError, TrainingDataError
from tests.unit.lab.train.drafts import Interrupt, talk, training, write_data

LLAVA = next(family for family in FAMILIES if family.name == "llava")


def recorded(out: Path) -> list[dict[str, float]]:
    points: list[dict[str, float]] = json.loads((out / "loss.json").read_text())["instruct"]
    return points


@pytest.mark.parametrize(("save_steps", "log_steps"), [(3, 2), (2, 3), (3, 5), (4, 2)])
def test_losses_are_told_as_if_nothing_had_happened(
    llava: str, data: Path, tmp_path: Path, save_steps: int, log_steps: int
) -> None:
    """Each is the mean since the one before, whether or not a run was interrupted between the
    two."""
    steps = {"stages": "instruct", "max_steps": 8}
    single = train_draft(training(data, tmp_path / "single", llava, **steps, save_steps=9)).losses[
        "instruct"
    ]
    due = {**steps, "save_steps": save_steps, "log_steps": log_steps}
    whole = train_draft(training(data, tmp_path / "whole", llava, **due)).losses["instruct"]
    options = training(data, tmp_path / "parts", llava, **due)
    for step in (5, 7):
        with pytest.raises(KeyboardInterrupt):
            train_draft(options, callbacks=[Interrupt(step)])
        assert recorded(options.out) == [
            point for point in whole if point["step"] <= step // save_steps * save_steps
        ]
    assert train_draft(options).losses["instruct"] == whole == recorded(options.out)
    told = [0, *(int(point["step"]) for point in whole)]
    assert told[1] == 1
    assert told[-1] == 8
    assert set(range(log_steps, 9, log_steps)) <= set(told)
    for point, (before, step) in zip(whole, pairwise(told), strict=True):
        mean = sum(one["loss"] for one in single[before:step]) / (step - before)
        assert point["loss"] == pytest.approx(mean, rel=1e-6)


def picture(path: Path, value: int) -> None:
    Image.new("RGB", (20, 16), (value, 0, 0)).save(path)


@pytest.mark.parametrize("stage", ["instruct", "projector"])
def test_media_that_changed_in_between_make_another_run(
    llava: str, tmp_path: Path, stage: str
) -> None:
    """A picture of the same name and size in pixels; `--restart` accepts it."""
    data, other = write_data(tmp_path / "data", 3), write_data(tmp_path / "other", 3)
    picture(data.parent / "0.png", 1)
    more = {"projector_data": other} if stage == "projector" else {}
    options = training(data, tmp_path / "out", llava, stages=stage, max_steps=3, **more)
    with pytest.raises(KeyboardInterrupt):
        train_draft(options, callbacks=[Interrupt(3)])
    changed = (other if more else data).parent / "0.png"
    kept = changed.read_bytes()
    picture(changed, 2)
    name = "projector_data" if more else "data"
    with pytest.raises(
        ConfigError, match=rf"contains another run \(media of {name} differs\).* --restart"
    ):
        train_draft(options)
    changed.write_bytes(kept)
    changed.touch()
    assert train_draft(options).resumed == {stage: 2}
    picture(changed, 2)
    assert train_draft(replace(options, restart=True)).resumed == {stage: 0}


def test_the_digest_of_media_knows_names_sizes_and_both_ends(tmp_path: Path) -> None:
    """Not when they were written, nor in which order and how often the data name them."""
    names = ["b.png", "a.png", "b.png"]
    entries = [{"image": name, "conversations": talk("<image>?", "that")} for name in names]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data.json").write_text(
            json.dumps(entries[:: 1 if folder == "one" else -1])
        )
        for name in set(names):
            (tmp_path / folder / name).write_bytes(name.encode() * END_BYTES)
    one, two = (read_data(tmp_path / folder / "data.json") for folder in ("one", "two"))
    first = media_digest(one)
    assert media_digest(two) == first
    file = tmp_path / "two" / "a.png"
    whole = file.read_bytes()
    for content in (b"x" + whole[1:], whole[:-1] + b"x", whole + b"x", whole[:-1], b"x"):
        file.write_bytes(content)
        assert media_digest(two) != first
    file.write_bytes((tmp_path / "two" / "b.png").read_bytes())
    (tmp_path / "two" / "b.png").write_bytes(whole)
    assert media_digest(two) != first
    file.unlink()
    with pytest.raises(TrainingDataError, match=r"^cannot read .*a\.png: No such file"):
        media_digest(two)


class Terminate(TrainerCallback):
    """Sends SIGTERM to this process in the middle of a step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """In the third step."""
        if state.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_saves_the_step_that_is_running(llava: str, data: Path, tmp_path: Path) -> None:
    """And the run that goes on there tells the losses of one that was never ended."""
    steps = {"stages": "instruct", "max_steps": 5, "save_steps": 9}
    whole = train_draft(training(data, tmp_path / "whole", llava, **steps)).losses["instruct"]
    options = training(data, tmp_path / "ended", llava, **steps)
    ended: list[int] = []

    def end(number: int, frame: Any) -> None:
        ended.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(KeyboardInterrupt, match="resumes from step 3 of the instruct stage"):
            train_draft(options, callbacks=[SaveAtTermination(), Terminate()])
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM]
    trained = train_draft(options)
    assert trained.resumed["instruct"] == 3
    assert trained.losses["instruct"] == whole
