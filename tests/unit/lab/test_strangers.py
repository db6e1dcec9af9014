"""Media that the embedded pair does not know."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from draftlens_lab.strangers import is_of_world, note_strangers
from draftlens_lab.world.files import MARK, png, write_clip

import draftlens

CLIPS = Path(str(files("draftlens") / "embedded" / "clips"))
FRAMES = np.zeros((2, 32, 32, 3), np.uint8)


def test_files_of_the_world_are_recognized_by_their_bytes_or_their_mark(tmp_path: Path) -> None:
    for name in ("shapes.mp4", "drift.mp4", "shapes.png"):
        shutil.copy(CLIPS / name, tmp_path / f"renamed-{name}")
        assert is_of_world(tmp_path / f"renamed-{name}")
    write_clip(tmp_path / "marked.mp4", FRAMES, comment=MARK)
    (tmp_path / "marked.png").write_bytes(png(FRAMES[0], MARK))
    assert is_of_world(tmp_path / "marked.mp4")
    assert is_of_world(str(tmp_path / "marked.png"))


def test_everything_else_is_strange(tmp_path: Path) -> None:
    write_clip(tmp_path / "plain.mp4", FRAMES)
    (tmp_path / "plain.png").write_bytes(png(FRAMES[0]))
    (tmp_path / "damaged.png").write_bytes(b"\x89PNG")
    (tmp_path / "damaged.mp4").write_bytes(b"nothing")
    for path in tmp_path.iterdir():
        assert not is_of_world(path)
    assert not is_of_world(CLIPS / "bunny.mp4")
    assert not is_of_world("nowhere.mp4")
    assert not is_of_world(FRAMES)


def test_one_line_says_so_for_the_embedded_pair_only(caplog: pytest.LogCaptureFixture) -> None:
    note_strangers("embedded", [CLIPS / "shapes.mp4", CLIPS / "bunny.mp4", FRAMES])
    (record,) = caplog.records
    assert "bunny.mp4 and 1 more is not of that world: the answer will be wrong" in record.message
    assert "\n" not in record.message
    caplog.clear()
    note_strangers("somebody/a-model", [CLIPS / "bunny.mp4"])
    note_strangers("embedded", [CLIPS / "shapes.mp4"])
    assert caplog.records == []
    engine = draftlens.load(device="cpu")
    with pytest.raises(draftlens.MediaError, match="there is no such file"):
        engine.read("What?", video="nowhere.mp4")
    assert caplog.records == []
    engine.read("What?", video=CLIPS / "bunny.mp4", num_frames=1)
    assert "bunny.mp4 is not of that world" in caplog.text
