"""Clips and pictures as arrays, tensors and lists of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from draftlens.core.errors import ConfigError, MediaError
from draftlens.media import Limits, load_image
from draftlens.media.conversation import ask, read
from draftlens.media.given import video_of

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), np.uint8)


@pytest.mark.parametrize(
    "given",
    [
        FRAMES,
        torch.from_numpy(FRAMES),
        torch.from_numpy(FRAMES).permute(0, 3, 1, 2),
        FRAMES.transpose(0, 3, 1, 2),
        [Image.fromarray(frame) for frame in FRAMES],
        tuple(FRAMES),
    ],
    ids=["array", "tensor", "channels first", "array, channels first", "images", "arrays"],
)
def test_frames_of_every_form_are_the_same_clip(given: Any) -> None:
    video = video_of(given, fps=2.0)
    assert np.array_equal(video.frames, FRAMES)
    assert video.timestamps == (0.0, 0.5, 1.0)
    assert (video.fps, video.total_frames, video.duration) == (2.0, 3, 1.5)
    assert video.metadata.frames_indices == [0, 1, 2]


def test_a_clip_of_frames_is_shown_whole_and_has_its_rate_in_the_message() -> None:
    chat = read(ask("What?", video=FRAMES), num_frames=2)
    assert chat.videos[0].frames.shape == FRAMES.shape
    message = {"role": "user", "content": [{"type": "video", "video": FRAMES, "fps": 4}]}
    assert read([message], num_frames=2).videos[0].timestamps == (0.0, 0.25, 0.5)
    again = read(ask("What?", video=chat.videos[0]), num_frames=2)
    assert again.videos[0] is chat.videos[0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "there are none"),
        (FRAMES[0], r"their shape is \[8, 10, 3\]"),
        (FRAMES.astype(np.float32), "their dtype is float32, but uint8 is wanted"),
        ([FRAMES[0], FRAMES[0, :4]], "they differ in size: 10x4 and 10x8 pixels"),
        (FRAMES[:0], "their shape is"),
    ],
)
def test_what_is_no_clip_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(MediaError, match=f"cannot read the frames: {sentence}"):
        video_of(given)


def test_bounds_hold_for_frames_too() -> None:
    with pytest.raises(MediaError, match="3 frames of 10x8 pixels need 720 bytes"):
        video_of(FRAMES, limits=Limits(max_output_bytes=700))
    with pytest.raises(ConfigError, match="fps must be a positive number"):
        video_of(FRAMES, fps=0)


def test_a_picture_may_be_a_tensor() -> None:
    for given in (torch.from_numpy(FRAMES[0]), torch.from_numpy(FRAMES[0]).permute(2, 0, 1)):
        assert np.array_equal(np.asarray(load_image(given)), FRAMES[0])
