"""The world as files: they hold what is rendered, are complete or absent, and are reproducible."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from draftlens_lab.train.data import read_data
from draftlens_lab.world import (
    HELD_OUT,
    export,
    facts,
    render,
    render_still,
    sample_scene,
    still_facts,
)
from draftlens_lab.world.export import export_datasets, export_llava, seeds_of
from draftlens_lab.world.files import atomic_folder, png, write_clip
from draftlens_lab.world.samples import draw
from PIL import Image

from draftlens.core.errors import ConfigError

SEEDS = {
    "clip": [3, HELD_OUT + 4],
    "picture": [0, 1, HELD_OUT],
    "pair": [2, HELD_OUT + 2],
    "talk": [5],
}
SIZES = {"frames": 8, "rate": 4, "side": 64}


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "llava"
    assert export_llava(folder, SEEDS, **SIZES) == {"train": 5, "test": 3}
    return folder


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "parquet"
    assert export_datasets(folder, SEEDS, **SIZES) == {"train": 5, "test": 3}
    return folder


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        entry["id"]: entry
        for split in ("train", "test")
        for entry in json.loads((folder / f"{split}.json").read_text())
    }


def decoded(path: Path) -> np.ndarray:
    with av.open(str(path)) as file:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def test_every_seed_is_an_entry_of_its_split(llava: Path) -> None:
    for split, held_out in (("train", False), ("test", True)):
        names = [entry["id"] for entry in json.loads((llava / f"{split}.json").read_text())]
        assert names == [
            f"{kind}-{seed}"
            for kind, seeds in SEEDS.items()
            for seed in seeds
            if (seed >= HELD_OUT) == held_out
        ]


def test_conversations_are_the_samples_dialogues(llava: Path) -> None:
    for kind, seeds in SEEDS.items():
        for seed in seeds:
            entry, turns = entries(llava)[f"{kind}-{seed}"], draw(kind, seed).turns
            placeholders = {
                "clip": "<video>\n",
                "picture": "<image>\n",
                "pair": "<image>\n<image>\n",
                "talk": "",
            }[kind]
            values = [turn["value"] for turn in entry["conversations"]]
            assert values == [placeholders + turns[0].question, turns[0].answer] + [
                text for turn in turns[1:] for text in (turn.question, turn.answer)
            ]
            assert {turn["from"] for turn in entry["conversations"][::2]} == {"human"}
            assert {turn["from"] for turn in entry["conversations"][1::2]} == {"gpt"}
            assert entry["record"]["families"] == [turn.family for turn in turns]
            assert (entry["record"]["kind"], entry["record"]["seed"]) == (kind, seed)


def test_records_hold_the_facts(llava: Path) -> None:
    entries_by_name = entries(llava)
    assert entries_by_name["clip-3"]["record"]["facts"] == facts(sample_scene(3))
    assert entries_by_name["picture-1"]["record"]["facts"] == still_facts(
        draw("picture", 1).scenes[0]
    )
    first, second = (still_facts(scene) for scene in draw("pair", 2).scenes)
    expected = {f"first {name}": value for name, value in first.items()}
    assert entries_by_name["pair-2"]["record"]["facts"] == expected | {
        f"second {name}": value for name, value in second.items()
    }
    assert entries_by_name["talk-5"]["record"]["facts"] == {}


def test_media_show_the_scenes(llava: Path) -> None:
    for name, entry in entries(llava).items():
        kind, seed = name.split("-")
        scenes = draw(kind, int(seed)).scenes
        assert ("video" in entry, "image" in entry) == (kind == "clip", kind in ("picture", "pair"))
        if kind == "clip":
            frames = decoded(llava / entry["video"])
            assert frames.shape == (8, 64, 64, 3)
            assert np.abs(frames.astype(int) - render(scenes[0], 8, 64)).mean() < 4
        paths = entry.get("image", [])
        for path, scene in zip(
            [paths] if isinstance(paths, str) else paths, scenes if paths else (), strict=True
        ):
            assert np.array_equal(np.asarray(Image.open(llava / path)), render_still(scene, 64))


def test_the_rate_is_that_of_the_clip(llava: Path) -> None:
    with av.open(str(llava / "videos" / "clip-3.mp4")) as file:
        assert file.streams.video[0].average_rate == 4
        assert file.streams.video[0].codec_context.name == "h264"


def test_nothing_lies_about_that_no_entry_names(llava: Path) -> None:
    named = {"train.json", "test.json"}
    for entry in entries(llava).values():
        images = entry.get("image", [])
        named |= (
            {entry["video"]}
            if "video" in entry
            else set([images] if isinstance(images, str) else images)
        )
    assert {str(path.relative_to(llava)) for path in llava.rglob("*") if path.is_file()} == named


def test_the_same_arguments_give_the_same_bytes(llava: Path, tmp_path: Path) -> None:
    export_llava(tmp_path / "again", SEEDS, **SIZES)
    files = [path.relative_to(llava) for path in llava.rglob("*") if path.is_file()]
    assert all(
        (llava / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files
    )


@pytest.mark.parametrize("split", ["train", "test"])
def test_training_of_drafts_reads_it(llava: Path, split: str) -> None:
    data = read_data(llava / f"{split}.json")
    assert all(path.exists() for entry in data.entries for _, path in entry.media(data.root))


def test_datasets_read_the_folder(parquet: Path, llava: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    loaded = datasets.load_dataset(str(parquet), cache_dir=str(tmp_path))
    entries_by_name = entries(llava)
    assert {name: len(rows) for name, rows in loaded.items()} == {"train": 5, "test": 3}
    for split, rows in loaded.items():
        for row in rows:
            entry = entries_by_name.pop(row["id"])
            assert row["conversations"] == entry["conversations"]
            assert (row["split"], row["video"]) == (split, entry.get("video"))
            assert {fact["name"]: fact["value"] for fact in row["facts"]} == entry["record"][
                "facts"
            ]
            assert row["families"] == entry["record"]["families"]
            scenes = () if row["video"] else draw(row["kind"], row["seed"]).scenes
            for image, scene in zip(row["images"], scenes, strict=True):
                assert np.array_equal(np.asarray(image), render_still(scene, 64))
            assert (
                not row["video"]
                or (parquet / row["video"]).read_bytes() == (llava / row["video"]).read_bytes()
            )
    assert not entries_by_name


def test_large_splits_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(export, "SHARD", 2)
    export_datasets(tmp_path / "talk", {"talk": range(5)}, **SIZES)
    names = sorted(path.name for path in (tmp_path / "talk" / "data").iterdir())
    assert names == [f"train-{number:05}-of-00003.parquet" for number in range(3)]
    loaded = datasets.load_dataset(str(tmp_path / "talk"), cache_dir=str(tmp_path / "cache"))
    assert loaded["train"]["seed"][:] == list(range(5))


@pytest.mark.parametrize("write", [export_llava, export_datasets])
def test_an_interrupted_export_leaves_nothing(write: Any, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", SEEDS, **SIZES, on_sample=stop)
    assert not list(tmp_path.iterdir())


def test_a_killed_export_leaves_no_folder_of_that_name(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as content:
        (content / "train.json").write_text("half")
        assert content.parent.name.startswith(".out-")
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "out" / "train.json").read_text() == "half"


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export_llava(tmp_path / "empty", {"talk": [1]})
    with pytest.raises(ConfigError, match="is there already"):
        export_llava(tmp_path / "empty", {"talk": [1]})
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == ["train.json"]


@pytest.mark.parametrize(
    ("seeds", "sizes", "sentence"),
    [
        ({"film": [1]}, {}, "no samples of kind 'film'"),
        ({"talk": [1, 1]}, {}, "must all differ"),
        ({"talk": [-1]}, {}, "none may be negative"),
        ({"talk": []}, {}, "nothing to write"),
        ({"talk": [1]}, {"side": 65}, "must be even"),
        ({"talk": [1]}, {"frames": 0}, "make no clip"),
    ],
)
def test_what_makes_no_sense_is_refused(
    seeds: Any, sizes: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        export_llava(tmp_path / "out", seeds, **sizes)
    assert not list(tmp_path.iterdir())


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match="pip install datasets"):
        export_datasets(tmp_path / "out", SEEDS)
    monkeypatch.setattr("draftlens_lab.world.entries.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="fonts of matplotlib"):
        export_llava(tmp_path / "out", SEEDS)
    assert not list(tmp_path.iterdir())


def test_seeds_of_splits() -> None:
    counts = {"clip": 15, "talk": 0}
    assert seeds_of(counts) == {"clip": [*range(15), HELD_OUT, HELD_OUT + 1], "talk": []}
    assert seeds_of(counts, "train", start=4)["clip"] == list(range(4, 19))
    assert seeds_of(counts, "test")["clip"] == list(range(HELD_OUT, HELD_OUT + 15))
    assert seeds_of(counts, held_out=0.0)["clip"] == list(range(15))
    with pytest.raises(ConfigError, match="train, test or both"):
        seeds_of(counts, "half")


def test_clips_and_pictures_keep_their_pixels(tmp_path: Path) -> None:
    frames = render(sample_scene(1), 4, 128)
    write_clip(tmp_path / "a.mp4", frames, rate=10)
    assert np.abs(decoded(tmp_path / "a.mp4").astype(int) - frames).mean() < 3
    (tmp_path / "a.png").write_bytes(png(frames[0]))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), frames[0])
