"""Cells, scores and pictures of the draft's visual tokens, for artificial prompts and for every
family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from draftlens_lab.explain import sheet
from draftlens_lab.explain.pictures import locate_pictures
from draftlens_lab.explain.tracing import lay_out, pruning_method
from draftlens_lab.explain.views import token_runs, whole_pictures
from PIL import Image
from transformers.video_utils import VideoMetadata

from draftlens.core.errors import ConfigError
from draftlens.core.prefill_readings import ATTENTION
from draftlens.decoding.observer import Observer
from draftlens.media import Video
from draftlens.media.conversation import Conversation
from draftlens.pruning import Choice, Visual
from draftlens.request import Request
from draftlens.streaming import Stream
from tests.families import FAMILIES, Family
from tests.unit.lab.explain.traces import trace_of, visual_tokens

CASES = [
    (family, kind)
    for family in FAMILIES
    for kind in ("image", "images", "video")
    if kind in family.kinds
]


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def clip(frames: int, height: int = 16, width: int = 24) -> Video:
    pixels = np.stack([noise(height, width, seed) for seed in range(frames)])
    times = tuple(number / 2 for number in range(frames))
    return Video("clip.mp4", pixels, times, tuple(range(frames)), 2.0, frames, frames / 2)


def chat_of(kind: str) -> Conversation:
    if kind == "video":
        return Conversation(videos=[clip(4)])
    sizes = [(32, 16), (16, 16), (20, 28)][: 3 if kind == "images" else 1]
    return Conversation(
        images=[Image.fromarray(noise(*size, seed)) for seed, size in enumerate(sizes)]
    )


def processed(family: Family, chat: Conversation) -> dict:
    """What the family's processor makes of the chat, with words between its pictures."""
    text = (family.video or "") * len(chat.videos) + "and ".join([family.image] * len(chat.images))
    options = {"images": [chat.images]} if chat.images else {}
    if chat.videos:
        metadata = VideoMetadata(total_num_frames=4, fps=2.0, frames_indices=[0, 1, 2, 3])
        options |= {
            "videos": [v.frames for v in chat.videos],
            "video_metadata": [metadata],
            "do_sample_frames": False,
        }
    return dict(family.tools(text=[f"User: {text}what?"], return_tensors="pt", **options))


def observed(
    family: Family, inputs: dict[str, Any], method: Any, choices: list[Choice], **options: Any
) -> Stream:
    """A stream whose pruner's choices are recorded, with attention scores."""
    request = Request(
        inputs,
        method=method,
        options=options,
        observer=Observer(readings=ATTENTION, on_choice=choices.append),
    )
    return Stream(family.build(), None, request)


@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda case: str(case))
def test_every_family_gets_a_sheet_with_as_many_lit_cells_as_tokens_were_kept(
    family: Family, kind: str
) -> None:
    chat = chat_of(kind)
    inputs = processed(family, chat)
    choices: list[Choice] = []
    method = {"method": "specvlm", "prune_ratio": 0.6}
    answer = observed(family, inputs, method, choices, max_new_tokens=6)
    stats = answer.run().stats
    visual = lay_out(choices[0], chat, inputs, family.tools)
    assert len(choices) == 1
    assert visual.counts == (stats.kept, stats.visual)
    assert sum(view.counts[0] for view in visual.views) == stats.kept - visual.spare.kept > 0
    assert all(view.has_token.all() for view in visual.views)
    assert all(np.isfinite(view.scores).all() for view in visual.views)
    assert np.concatenate([view.scores.ravel() for view in visual.views]).mean() == pytest.approx(
        1, abs=1e-3
    )
    assert all(view.image is not None for view in visual.views)
    drawn = sheet(trace_of(visual))
    assert drawn.width == 1600


def test_frames_that_share_their_cells_are_named_together() -> None:
    located = locate_pictures(Conversation(videos=[clip(5)]), {}, None, [3], {})
    assert [picture.name for picture in located] == ["frames 1, 2", "frames 3, 4", "frame 5"]
    assert [picture.when for picture in located] == ["0.0 s", "1.0 s", "2.0 s"]
    assert np.array_equal(np.asarray(located[1].image), noise(16, 24, 2))


def test_tokens_after_the_first_of_a_cell_have_no_place() -> None:
    both = visual_tokens(kept=(0, 17, 47, 48), spare=2)
    assert both.counts == (4, 50)
    assert both.spare == (1, 2)
    assert both.views[3].kept[2, 3]
    only_the_newline = visual_tokens(kept=(0, 17, 48), spare=2)
    assert not only_the_newline.views[3].kept.any()


def test_scores_are_relative_to_the_mean_cell_and_in_their_places() -> None:
    views = visual_tokens(spare=3).views
    assert views[0].scores[0, 0] == pytest.approx(1 / 24.5)
    assert views[1].scores[1, 1] == pytest.approx(18 / 24.5)
    assert [tuple(place) for place in np.argwhere(views[1].kept)] == [(1, 1)]


def test_runs_end_at_text() -> None:
    at = torch.tensor([3, 4, 5, 9, 10, 40])
    selection = Choice(at, Visual(torch.zeros(6, 3, dtype=torch.long), torch.zeros(6, 1)), at[:0])
    assert token_runs(selection) == [slice(0, 3), slice(3, 5), slice(5, 6)]


def rows_with_newlines(time: int, high: int, wide: int) -> np.ndarray:
    """Cells of a grid whose rows end with newlines."""
    return np.array([(time, h, min(w, wide - 1)) for h in range(high) for w in range(wide + 1)])


def square(time: int, side: int = 4) -> np.ndarray:
    return np.array([(time, h, w) for h in range(side) for w in range(side)])


def test_a_picture_is_shown_whole_twice_if_its_details_are_known() -> None:
    """Two pictures: an overview and details of 6 x 3, and an overview alone with a newline."""
    cells = np.concatenate([square(0), rows_with_newlines(1, 6, 3), square(2), [(2, 3, 3)]])
    runs = [slice(0, 40), slice(40, 57)]
    assert whole_pictures(cells, runs, 2) == {0: 0, 1: 0, 2: 1}
    assert whole_pictures(cells[:40], [slice(0, 40)], 2) == {0: 0}
    assert whole_pictures(cells[:0], [], 1) == {}


def test_of_tiles_only_the_first_shows_the_whole_picture() -> None:
    """Two or three square tiles are not taken for an overview and its details."""
    two, three = (
        np.concatenate([square(0), square(1), [(1, 3, 3)] * 3]),
        np.concatenate([square(t) for t in range(3)]),
    )
    for cells in (two, three):
        assert whole_pictures(cells, [slice(0, len(cells))], 1) == {0: 0}


@pytest.mark.parametrize(
    ("size", "shape"), [((32, 16), (8, 4)), ((16, 32), (4, 8)), ((32, 20), (8, 6))]
)
@pytest.mark.parametrize("name", ["llava_next", "llava_onevision"])
def test_details_lie_on_the_picture_in_its_own_shape(
    name: str, size: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Sixteen pixels have four cells; the padding of two tiles side by side has none, rounded up to
    a cell."""
    family = next(family for family in FAMILIES if family.name == name)
    chat = Conversation(images=[Image.fromarray(noise(*size))])
    inputs = processed(family, chat)
    choices: list[Choice] = []
    method = {"method": "specvlm", "pruner": "grid"}
    answer = observed(family, inputs, method, choices, max_new_tokens=4)
    answer.run()
    overview, detail = lay_out(choices[0], chat, inputs, family.tools).views
    assert (overview.name, detail.name) == ("overview", "detail")
    assert overview.kept.shape == (4, 4)
    assert detail.kept.shape == shape
    assert detail.image is not None
    assert detail.image.size == size[::-1]


def test_a_cropped_picture_is_shown_as_the_model_saw_it() -> None:
    source = Image.fromarray(noise(40, 80)).resize((400, 200), Image.Resampling.BILINEAR)
    cropped, whole = source.crop((100, 0, 300, 200)).resize((20, 20)), source.resize((20, 20))
    chat = Conversation(images=[source])
    for tile, size in ((cropped, (20, 20)), (whole, source.size)):
        pixels = torch.from_numpy(np.asarray(tile, np.float32) / 255).permute(2, 0, 1)[None]
        located = locate_pictures(chat, {"pixel_values": pixels}, None, [1], {})
        assert located[0].image is not None
        assert located[0].image.size == size


def test_a_method_that_keeps_all_tokens_cannot_be_explained() -> None:
    with pytest.raises(ConfigError, match="keeps all of them: use method specvlm"):
        pruning_method("plain")
