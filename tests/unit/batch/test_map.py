"""Many clips: batches of similar length, failures of single clips, and equal answers."""

from __future__ import annotations

import gc
import itertools
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import draftlens
from draftlens.batch.map import BATCHES_AHEAD, MapOptions, ReadClip, batches, map_clips
from draftlens.batch.ray import CaptionBatch
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.result import Result
from draftlens.core.stats import Stats
from draftlens.media.conversation import Conversation

FAST = MapOptions(batch=2, num_frames=2, readers=1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.integers(1, 5)), max_size=30),
    st.integers(1, 5),
)
def test_every_clip_comes_once_and_none_waits_for_ever(sizes: list[int | None], batch: int) -> None:
    """A size of None is a clip that cannot be read."""
    clips = [
        ReadClip(index, str(index), None, size or 0, "unreadable" if size is None else None)
        for index, size in enumerate(sizes)
    ]
    groups = list(batches(clips, batch))
    indices = [clip.index for group in groups for clip in group]
    assert sorted(indices) == list(range(len(sizes)))
    assert all(len(group) <= batch for group in groups)
    assert all(len(group) == 1 for group in groups if group[0].error)
    readable = [group for group in groups if not group[0].error]
    # The clip that came first of all that were left is in every group.
    left = [clip.index for clip in clips if not clip.error]
    for group in readable:
        assert left[0] in [clip.index for clip in group]
        left = [index for index in left if index not in [clip.index for clip in group]]


def test_clips_of_one_size_are_answered_together() -> None:
    clips = [ReadClip(index, "", None, 100 if index % 2 else 1) for index in range(8)]
    groups = [[clip.size for clip in group] for group in batches(clips, 4)]
    assert all(len(set(sizes)) == 1 for sizes in groups)


def test_few_clips_are_read_ahead() -> None:
    taken = itertools.count()

    def endless() -> Iterator[ReadClip]:
        for index in taken:
            yield ReadClip(index, "", None, 1)

    next(batches(endless(), 3))
    assert next(taken) == 3 * BATCHES_AHEAD


class Fake:
    """An engine that fails on some prompts, and on batches that hold them."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = []
        self.seeds: list[Any] = []

    def answer(self, chats: list[Conversation], seed: list[int] | None) -> Result:
        values = [float(chat.videos[0].frames.mean()) for chat in chats]
        self.calls.append(values)
        self.seeds.append(seed)
        if 7.0 in values:
            raise RuntimeError("seven")
        if 8.0 in values:
            raise InputError("eight is refused")
        rows = [[int(value)] for value in values]
        texts = [str(value) for value in values]
        return Result(rows, [[False] for _ in rows], Stats(e2e=2.0), True, (), texts)


def frames(value: int, side: int = 4) -> Any:
    return np.full((1, side, side, 3), value, np.uint8)


def test_a_clip_that_fails_costs_itself_only() -> None:
    engine = Fake()
    clips = [frames(value) for value in (1, 7, 2, 8, 3)]
    answers = sorted(
        map_clips(engine.answer, clips, "What?", MapOptions(batch=5, seed=4)),
        key=lambda answer: answer.index,
    )
    assert [answer.text for answer in answers] == ["1.0", "", "2.0", "", "3.0"]
    assert answers[1].error == "RuntimeError: seven"
    assert answers[3].error == "eight is refused"
    assert len(engine.calls[0]) == 5
    assert all(seeds == [4] * len(seeds) for seeds in engine.seeds)


def test_however_many_clips_there_are_few_are_held() -> None:
    """Those that are answered, those that wait for clips of their size, and those read ahead."""
    options = MapOptions(batch=3, readers=2)
    held: list[weakref.ref[Any]] = []

    def clips() -> Iterator[Any]:
        for _ in range(80):
            clip = frames(1)
            held.append(weakref.ref(clip))
            yield clip
            del clip

    most = 0
    for answer in map_clips(Fake().answer, clips(), "What?", options):
        del answer
        most = max(most, sum(clip() is not None for clip in held))
    assert len(held) == 80
    waiting = options.batch * BATCHES_AHEAD
    ahead = options.readers + options.batch
    assert options.batch < most <= waiting + ahead + options.batch


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"clip_seconds": 0}, "clip_seconds must be a positive number"),
        ({"kind": "sound"}, "unknown kind 'sound'; known: video, image"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        MapOptions(**options)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two clips of the package, a file that is none, and frames in memory."""
    folder = tmp_path_factory.mktemp("clips")
    source = Path(draftlens.__file__).parent / "embedded" / "clips"
    for name in ("shapes.mp4", "drift.mp4"):
        shutil.copy(source / name, folder)
    (folder / "broken.mp4").write_bytes(b"no clip at all")
    return [str(folder / name) for name in ("shapes.mp4", "broken.mp4", "drift.mp4")]


def test_answers_are_those_of_single_calls(clips: list[str]) -> None:
    engine = draftlens.load(device="cpu", method={"num_speculative_tokens": 3})
    sampling = {"do_sample": True, "max_new_tokens": 12, "logprobs": True}
    options = MapOptions(batch=3, num_frames=2, readers=1, seed=5)
    sources = [*clips, np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)]
    answers = {
        answer.index: answer
        for answer in engine.map(sources, "Describe the video.", options=options, **sampling)
    }
    assert answers.keys() == {0, 1, 2, 3}
    assert "not a video" in str(answers[1].error)
    assert answers[1].logprobs == ()
    for index in (0, 2, 3):
        alone = engine.generate(
            "Describe the video.", video=sources[index], num_frames=2, seed=5, **sampling
        )
        assert answers[index].tokens == tuple(alone.tokens[0])
        assert answers[index].text == alone.text
        ours = [(entry.token, entry.text) for entry in answers[index].logprobs]
        assert ours == [(entry.token, entry.text) for entry in alone.logprobs[0]]
        assert answers[index].rows == 3


def num_tensors() -> int:
    """Tensors that somebody holds."""
    gc.collect()
    return sum(issubclass(type(value), torch.Tensor) for value in gc.get_objects())


def test_answers_leave_no_tensors_behind() -> None:
    engine = draftlens.load(device="cpu", method={"num_speculative_tokens": 3}, calibrate=False)
    counts = []
    for _ in range(3):
        for answer in engine.map([frames(1, side=64)] * 3, "What?", options=FAST, max_new_tokens=4):
            assert answer.error is None
        counts.append(num_tensors())
    assert counts[0] >= counts[1] == counts[2]


def test_rows_of_a_dataset_keep_their_order_and_columns(clips: list[str]) -> None:
    """Without Ray: what `Dataset.map_batches` calls."""
    caption = CaptionBatch(
        "Describe the video.",
        load={"device": "cpu", "method": "plain"},
        options=FAST,
        generation={"max_new_tokens": 4},
    )
    columns = caption({"path": np.array(clips, dtype=object), "id": np.arange(3)})
    assert list(columns) == ["path", "id", "text", "tokens", "error"]
    assert list(columns["tokens"]) == [4, 0, 4]
    assert [bool(error) for error in columns["error"]] == [False, True, False]
    with pytest.raises(InputError, match="there is no column 'path'; there are id"):
        caption({"id": np.arange(3)})
