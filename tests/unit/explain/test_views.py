"""Cells, scores and pictures of the draft's visual tokens, for made-up prompts and for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.video_utils import VideoMetadata

from draftlens import stream
from draftlens.conversation import Conversation
from draftlens.draft.pruned import Choice
from draftlens.errors import ConfigError
from draftlens.explain import sheet
from draftlens.explain.details import with_details
from draftlens.explain.pictures import pictures
from draftlens.explain.trace import lay_out, watch
from draftlens.explain.views import runs_of
from draftlens.media import Video
from draftlens.prune import Visual
from tests.families import FAMILIES, Family
from tests.unit.explain.traces import shown, trace_of

CASES = [(family, kind) for family in FAMILIES for kind in ("image", "images", "video") if kind in family.kinds]


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
    return Conversation(images=[Image.fromarray(noise(*size, seed)) for seed, size in enumerate(sizes)])


def processed(family: Family, chat: Conversation) -> dict:
    """What the family's processor makes of the chat, with words between its pictures."""
    text = (family.video or "") * len(chat.videos) + "and ".join([family.image] * len(chat.images))
    options = {"images": [chat.images]} if chat.images else {}
    if chat.videos:
        metadata = VideoMetadata(total_num_frames=4, fps=2.0, frames_indices=[0, 1, 2, 3])
        options |= {"videos": [v.frames for v in chat.videos], "video_metadata": [metadata], "do_sample_frames": False}
    return dict(family.tools(text=[f"User: {text}what?"], return_tensors="pt", **options))


@pytest.mark.parametrize(("family", "kind"), CASES, ids=lambda case: str(case))
def test_every_family_gets_a_sheet_with_as_many_lit_cells_as_tokens_were_kept(family: Family, kind: str) -> None:
    chat = chat_of(kind)
    inputs = processed(family, chat)
    answer = stream(family.build(), inputs, method={"method": "specvlm", "prune_ratio": 0.6}, max_new_tokens=6)
    choices = watch(answer)
    stats = answer.run().stats
    found = lay_out(choices[0], chat, inputs, family.tools)
    assert len(choices) == 1
    assert found.counts == (stats.kept, stats.visual)
    assert sum(view.counts[0] for view in found.views) == stats.kept - found.spare[1] > 0
    assert all(view.there.all() for view in found.views)
    assert all(np.isfinite(view.scores).all() for view in found.views)
    assert np.concatenate([view.scores.ravel() for view in found.views]).mean() == pytest.approx(1, abs=1e-3)
    assert all(view.image is not None for view in found.views)
    drawn = sheet(trace_of(found))
    assert drawn.width == 1600


def test_frames_that_share_their_cells_are_named_together() -> None:
    found = pictures(Conversation(videos=[clip(5)]), {}, None, [3], {})
    assert [picture.name for picture in found] == ["frames 1, 2", "frames 3, 4", "frame 5"]
    assert [picture.when for picture in found] == ["0.0 s", "1.0 s", "2.0 s"]
    assert np.array_equal(np.asarray(found[1].image), noise(16, 24, 2))


def test_tokens_behind_the_first_of_a_cell_have_no_place() -> None:
    both = shown(kept=(0, 17, 47, 48), spare=2)
    assert both.counts == (4, 50)
    assert both.spare == (2, 1)
    assert both.views[3].kept[2, 3]
    only_the_newline = shown(kept=(0, 17, 48), spare=2)
    assert not only_the_newline.views[3].kept.any()


def test_scores_count_in_units_of_the_mean_cell_and_stand_in_their_places() -> None:
    views = shown(spare=3).views
    assert views[0].scores[0, 0] == pytest.approx(1 / 24.5)
    assert views[1].scores[1, 1] == pytest.approx(18 / 24.5)
    assert [tuple(place) for place in np.argwhere(views[1].kept)] == [(1, 1)]


def test_runs_are_cut_where_text_stands() -> None:
    at = torch.tensor([3, 4, 5, 9, 10, 40])
    made = Choice(at, Visual(torch.zeros(6, 3, dtype=torch.long), torch.zeros(6, 1)), at[:0])
    assert runs_of(made) == [slice(0, 3), slice(3, 5), slice(5, 6)]


def test_details_are_one_grid_of_the_pictures_aspect() -> None:
    """An overview of 4 x 4 and a detail of 6 rows, 3 columns and a newline in each row."""
    cells = np.array([(t, h, w) for t in range(2) for h in range(4) for w in range(4)] + [(1, 3, 3)] * 8)
    picture = Image.new("RGB", (50, 100))
    placed, known = with_details(cells, [slice(0, 40)], [picture], {"image_sizes": 1})
    assert known == {0: 0, 1: 0}
    assert placed[16:24].tolist() == [
        *([1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 0, 2]),
        *([1, 1, 0], [1, 1, 1], [1, 1, 2], [1, 1, 2]),
    ]
    assert placed[39].tolist() == [1, 5, 2]
    assert np.array_equal(placed[:16], cells[:16])
    wide = Image.new("RGB", (3000, 10))
    unplaced, known = with_details(cells, [slice(0, 40)], [wide], {"image_sizes": 1})
    assert known == {0: 0}
    assert np.array_equal(unplaced, cells)
    assert np.array_equal(with_details(cells, [slice(0, 40)], [picture], {})[0], cells)


def test_a_cropped_picture_is_shown_as_the_model_saw_it() -> None:
    source = Image.fromarray(noise(40, 80)).resize((400, 200), Image.Resampling.BILINEAR)
    cropped, whole = source.crop((100, 0, 300, 200)).resize((20, 20)), source.resize((20, 20))
    chat = Conversation(images=[source])
    for tile, size in ((cropped, (20, 20)), (whole, source.size)):
        pixels = torch.from_numpy(np.asarray(tile, np.float32) / 255).permute(2, 0, 1)[None]
        found = pictures(chat, {"pixel_values": pixels}, None, [1], {})
        assert found[0].image is not None
        assert found[0].image.size == size


def test_a_drafter_that_leaves_nothing_out_cannot_be_watched() -> None:
    family = FAMILIES[0]
    answer = stream(family.build(), processed(family, chat_of("image")), method="plain", max_new_tokens=4)
    with pytest.raises(ConfigError, match="leaves nothing out: use method specvlm"):
        watch(answer)
