"""`draftlens world` as a person uses it: folders that other tools read, and errors as one
sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftlens_lab.world import HELD_OUT, render, render_still, sample_scene, sample_still
from draftlens_lab.world.samples import draw
from PIL import Image

import draftlens
from draftlens.media.video import load_video

SMALL = ("--frames", "8", "--rate", "8", "--side", "128")


@pytest.fixture
def world(command: Callable[..., Any]) -> Callable[..., Any]:
    """Call `draftlens world` with some arguments."""
    return partial(command, "world")


def test_the_folder_one_is_in(world, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is written to and not replaced."""
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    status, _, err = world(
        ".", "--clips", "0", "--pictures", "0", "--pairs", "0", "--talks", "1", *SMALL
    )
    assert (status, err) == (0, "")
    assert (tmp_path / "train.json").exists()
    assert tmp_path.stat().st_ino == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_clips_and_pictures_for_llava(world, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "world"
    status, printed, err = world(
        str(out), "--clips", "2", "--pictures", "1", "--pairs", "1", "--talks", "1", *SMALL
    )
    assert (status, err) == (0, "")
    assert " ".join(printed.split()) == f"{out}: 5 entries to train, 4 entries to test"
    rows = [
        row for name in ("train", "test") for row in json.loads((out / f"{name}.json").read_text())
    ]
    entries = {row["id"]: row for row in rows}
    wanted = {
        f"{kind}-{seed}" for kind in ("clip", "picture", "pair", "talk") for seed in (0, HELD_OUT)
    }
    assert entries.keys() == wanted | {"clip-1"}
    for seed in (0, 1, HELD_OUT):
        shown = load_video(out / entries[f"clip-{seed}"]["video"], num_frames=8).frames
        assert np.abs(np.asarray(shown).astype(int) - render(sample_scene(seed), 8, 128)).mean() < 3
    picture = Image.open(out / entries["picture-0"]["image"])
    assert np.array_equal(np.asarray(picture), render_still(sample_still(0), 128))


def test_a_held_out_folder_for_datasets(world, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    none = ("--clips", "0", "--talks", "0", "--pairs", "0")
    status, printed, _ = world(
        str(tmp_path / "x"),
        *none,
        "--pictures",
        "2",
        "--split",
        "test",
        "--format",
        "datasets",
        *SMALL,
        "--json",
    )
    assert status == 0
    assert json.loads(printed) == {"folder": str(tmp_path / "x"), "train": 0, "test": 2}
    rows = datasets.load_dataset(str(tmp_path / "x"), cache_dir=str(tmp_path / "cache"))["test"]
    assert rows["seed"][:] == [HELD_OUT, HELD_OUT + 1]
    for row in rows:
        assert [turn["value"] for turn in row["conversations"][1::2]] == [
            turn.answer for turn in draw("picture", row["seed"]).turns
        ]
        assert np.array_equal(
            np.asarray(row["images"][0]), render_still(sample_still(row["seed"]), 128)
        )


def test_a_folder_that_is_there_is_left_alone(world, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    status, _, err = world(str(tmp_path))
    assert status == 2
    assert "is there already" in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_models_can_be_asked_about_exported_clips(
    world, tmp_path: Path, engine: draftlens.Engine
) -> None:
    assert (
        world(
            str(tmp_path / "x"),
            "--clips",
            "1",
            "--pictures",
            "0",
            "--pairs",
            "0",
            "--talks",
            "0",
            *SMALL,
        )[0]
        == 0
    )
    (entry,) = json.loads((tmp_path / "x" / "train.json").read_text())
    result = engine.generate(
        "Describe the video.", video=tmp_path / "x" / entry["video"], max_new_tokens=8
    )
    assert result.lossless
