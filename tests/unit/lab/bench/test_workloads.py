"""Clips from folders, from the world, and from datasets in their published format, tiny and on
disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from draftlens_lab.bench.clips import (
    Clip,
    FrameFolder,
    ImageFiles,
    VideoFile,
    select_clips,
    unique_names,
)
from draftlens_lab.bench.datasets import INSTRUCTION, multiple_choice
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.turns import TURN_WORKLOADS
from draftlens_lab.bench.workloads import check_workload, clips_of
from draftlens_lab.evaluate.parts import part_samples
from draftlens_lab.evaluate.turns import stories
from draftlens_lab.world import render
from PIL import Image
from transformers import LlavaOnevisionVideoProcessor

from draftlens.core.errors import ConfigError, MediaError
from tests.e2e.conftest import CLIPS
from tests.unit.lab.bench.fakes import clips

LETTERS = "(A) red\n(B) blue"


pytestmark = pytest.mark.usefixtures("own_cache")


def film(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((CLIPS / "drift.mp4").read_bytes())


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.write_text(json.dumps(rows))
    return path


def told(found: list[Clip]) -> list[tuple[str, str, Any]]:
    return [(clip.name, clip.prompt, getattr(clip.media, "path", None)) for clip in found]


def test_video_detail_caption(tmp_path: Path) -> None:
    rows = [
        {"video_name": f"v_{name}", "question": f"What of {name}?", "answer": "so"}
        for name in "abc"
    ]
    write(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    film(tmp_path, "Test_Videos/v_a.mp4", "Test_Videos/v_b.mkv")
    found = clips(f"videodetailcaption:{tmp_path}", frames=5)
    videos = tmp_path / "Test_Videos"
    assert told(found) == [
        ("v_a", "What of a?", videos / "v_a.mp4"),
        ("v_b", "What of b?", videos / "v_b.mkv"),
        ("v_c", "What of c?", tmp_path / "v_c"),
    ]
    assert {(clip.frames, clip.group) for clip in found} == {(5, "videodetailcaption")}
    shown = found[0].prepare()()
    assert len(shown.videos[0].frames) == 5
    with pytest.raises(MediaError, match=r"v_c: there is no such file"):
        found[2].prepare()()


def test_mvbench_has_a_file_a_task_and_frames_as_pictures(tmp_path: Path) -> None:
    row = {
        "video": "video_1.mp4",
        "question": "Which?",
        "candidates": ["red", "blue"],
        "answer": "red",
    }
    write(tmp_path / "json" / "moving_count.json", [row])
    write(tmp_path / "json" / "action_count.json", [row])
    write(
        tmp_path / "json" / "episodic_reasoning.json",
        [{**row, "video": "house_s01", "start": 1.0, "end": 2.5}],
    )
    film(
        tmp_path / "video", "clevrer/video_validation/video_1.mp4", "perception/videos/video_1.mp4"
    )
    frames = tmp_path / "video" / "tvqa" / "frames_fps3_hq" / "house_s01"
    frames.mkdir(parents=True)
    for number in range(1, 13):
        Image.fromarray(np.full((8, 12, 3), 20 * number, dtype=np.uint8)).save(
            frames / f"{number:05}.png"
        )
    found = clips(f"mvbench:{tmp_path}", frames=4)
    prompt = f"Which?\n{LETTERS}\n{INSTRUCTION}"
    assert told(found) == [
        ("action_count/video_1.mp4", prompt, tmp_path / "video/perception/videos/video_1.mp4"),
        ("episodic_reasoning/house_s01", prompt, frames),
        (
            "moving_count/video_1.mp4",
            prompt,
            tmp_path / "video/clevrer/video_validation/video_1.mp4",
        ),
    ]
    (video,) = found[1].prepare()().videos
    assert [int(frame[0, 0, 0]) for frame in video.frames] == [
        40,
        100,
        160,
        220,
    ]  # the middles of four quarters
    assert video.timestamps == pytest.approx([1 / 3, 4 / 3, 7 / 3, 10 / 3])
    assert video.metadata.frames_indices == [1, 4, 7, 10]
    few = FrameFolder(frames, 3.0).prepare("What?", 99)()
    assert len(few.videos[0].frames) == 12
    assert [item["type"] for item in few.messages[0]["content"]] == ["video", "text"]
    with pytest.raises(MediaError, match="no such folder of frames"):
        FrameFolder(tmp_path / "gone", 3.0).prepare("What?", 4)()


def test_mvbench_takes_the_file_of_the_tasks_folder_wherever_the_set_lies(tmp_path: Path) -> None:
    """`sta` is neither in `star` nor in what the folder of the whole set is called."""
    root = tmp_path / "start" / "sta" / "star" / "ds"
    row = {"video": "X.mp4", "question": "Which?", "candidates": ["red", "blue"], "answer": "red"}
    places = {
        "action_antonym": "ssv2_video/X.mp4",
        "action_localization": "sta/sta_video/X.mp4",
        "action_sequence": "star/Charades_v1_480/X.mp4",
    }
    film(root / "video", "a_restart/X.mp4", *places.values())
    for task in places:
        write(root / "json" / f"{task}.json", [row])
    found = told(clips(f"mvbench:{root}"))
    assert [(name, path) for name, _, path in found] == [
        (f"{task}/X.mp4", root / "video" / place) for task, place in places.items()
    ]


def test_a_folder_in_a_name_is_one_below_the_root(tmp_path: Path) -> None:
    root = tmp_path / "b"
    rows = write(tmp_path / "rows.json", [{"video_name": "b/x.mp4", "question": "What?"}])
    film(root, "deep/b/x.mp4", "a/x.mp4", "x.mp4")
    assert told(clips(f"videodetailcaption:{rows}", media=root)) == [
        ("b/x.mp4", "What?", root / "deep/b/x.mp4")
    ]


def test_mlvu_in_both_formats(tmp_path: Path) -> None:
    row = {
        "video": "movie_1.mp4",
        "duration": 9.5,
        "question": "Which?",
        "candidates": ["red", "blue"],
    }
    write(
        tmp_path / "json" / "1_plotQA.json", [{**row, "answer": "red", "question_type": "plotQA"}]
    )
    summary = {
        "video": "movie_1.mp4",
        "question": "Tell it.",
        "answer": "long",
        "question_type": "summary",
    }
    write(tmp_path / "json" / "9_summary.json", [summary])
    film(tmp_path / "video", "1_plotQA/movie_1.mp4", "9_summary/movie_1.mp4")
    found = clips(f"mlvu:{tmp_path}")
    assert told(found) == [
        (
            "1_plotQA/movie_1.mp4",
            f"Which?\n{LETTERS}\n{INSTRUCTION}",
            tmp_path / "video/1_plotQA/movie_1.mp4",
        ),
        ("9_summary/movie_1.mp4", "Tell it.", tmp_path / "video/9_summary/movie_1.mp4"),
    ]
    parquet = write(
        tmp_path / "dev.parquet",
        [{"video_name": "movie_1.mp4", "question": "Q (A) x", "task_type": "PQA"}],
    )
    (clip,) = clips(f"mlvu:{parquet}")
    assert clip.prompt == "Q (A) x"


def test_long_video_bench_in_both_formats(tmp_path: Path) -> None:
    row = {
        "id": "x_0",
        "video_path": "x.mp4",
        "question": "Which?",
        "correct_choice": 0,
        "duration": 20.5,
    }
    write(tmp_path / "lvb_val.json", [{**row, "candidates": ["red", "blue"]}])
    write(tmp_path / "lvb_test_wo_gt.json", [{**row, "id": "y_0", "candidates": ["red", "blue"]}])
    options = {
        "option0": "red",
        "option1": "blue",
        "option2": "N/A",
        "option3": "N/A",
        "option4": "N/A",
    }
    parquet = write(tmp_path / "validation-00000-of-00001.parquet", [{**row, **options}])
    film(tmp_path, "videos/x.mp4")
    expected = [("x_0", f"Which?\n{LETTERS}\n{INSTRUCTION}", tmp_path / "videos/x.mp4")]
    assert (
        told(clips(f"longvideobench:{tmp_path}")) == expected
    )  # one split, and once, though it is there twice
    assert told(clips(f"longvideobench:{parquet}")) == expected


def test_video_mme(tmp_path: Path) -> None:
    row = {
        "video_id": "001",
        "videoID": "fFjv93ACGo8",
        "question_id": "001-1",
        "question": "Which?",
        "answer": "A",
    }
    write(
        tmp_path / "videomme" / "test-00000-of-00001.parquet",
        [{**row, "options": ["A. Red.", "B. Blue."]}],
    )
    film(tmp_path, "data/fFjv93ACGo8.mp4")
    found = clips(f"videomme:{tmp_path}")
    assert told(found) == [
        ("001-1", f"Which?\nA. Red.\nB. Blue.\n{INSTRUCTION}", tmp_path / "data/fFjv93ACGo8.mp4")
    ]


def test_options_of_a_dataset(tmp_path: Path) -> None:
    rows = [{"video_name": "v_a", "question": f"{number}?"} for number in range(10)]
    file = write(tmp_path / "rows" / "some.jsonl", rows)
    film(tmp_path / "films", "deep/down/v_a.mp4")
    found = clips(
        f"videodetailcaption:{file}", media=tmp_path / "films", clips=3, prompt="Describe it."
    )
    assert told(found) == [
        (name, "Describe it.", tmp_path / "films/deep/down/v_a.mp4")
        for name in ("v_a#2", "v_a#6", "v_a#9")
    ]


def test_what_is_refused(tmp_path: Path) -> None:
    rows = write(tmp_path / "rows.json", [{"movie": "v_a"}])
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "broken.json").write_text("{")
    for workload, options, sentence in (
        (
            f"videodetailcaption:{rows}",
            {},
            "not in the format of videodetailcaption: it has no column 'video_name'",
        ),
        (f"videodetailcaption:{tmp_path / 'broken.json'}", {}, "cannot load the annotations"),
        (f"mvbench:{empty}", {}, "holds no annotations"),
        (f"mvbench:{CLIPS / 'drift.mp4'}", {}, "is not annotations"),
        (f"mvbench:{rows}", {"media": tmp_path / "none"}, "does not exist"),
        ("videomme:some/name", {}, "videomme:some/name needs --media"),
        (str(empty), {}, "holds no videos or images"),
        (
            "nowhere",
            {},
            "there is no workload and no file 'nowhere'; known workloads: aside, chat, convbench",
        ),
        ("world:8,8", {}, "different whole numbers"),
        ("world:0", {}, "different whole numbers"),
        ("focus:8", {}, "8 frames are too few for a reel"),
        ("needle:x", {}, "different whole numbers"),
        ("pairs:8", {}, "pairs of pictures have no number of frames"),
    ):
        with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
            clips(workload, **options)


def test_a_folder_of_ones_own(tmp_path: Path) -> None:
    film(tmp_path, "b/two.mp4", "one.MP4")
    Image.new("RGB", (4, 4)).save(tmp_path / "three.png")
    (tmp_path / "notes.txt").write_text("no clip")
    found = clips(str(tmp_path), frames=3)
    assert [(clip.name, clip.group, clip.prompt, clip.media) for clip in found] == [
        ("b/two.mp4", "videos", "Describe the video.", VideoFile(tmp_path / "b/two.mp4")),
        ("one.MP4", "videos", "Describe the video.", VideoFile(tmp_path / "one.MP4")),
        ("three.png", "images", "Describe the image.", ImageFiles((tmp_path / "three.png",))),
    ]
    assert len(found[0].prepare()().videos[0].frames) == 3
    assert len(found[2].prepare()().images) == 1
    assert [clip.name for clip in clips(str(tmp_path / "one.MP4"), prompt="What?")] == ["one.MP4"]
    assert [clip.name for clip in clips(f"folder:{tmp_path}", clips=1)] == ["one.MP4"]


@pytest.mark.parametrize("relative", [False, True])
def test_what_the_run_draws_is_no_clip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    film(tmp_path, "one.mp4", "runs/two.mp4", "runs/bench/three.mp4", "runs/bench2/four.mp4")
    Image.new("RGB", (4, 4)).save(tmp_path / "runs" / "bench" / "speedup.png")
    monkeypatch.chdir(tmp_path)
    root = Path() if relative else tmp_path

    def names(out: Path, workload: Path = root) -> list[str]:
        return [clip.name for clip in clips_of(BenchOptions(str(workload)), None, out)]

    apart = ["one.mp4", "runs/bench2/four.mp4", "runs/two.mp4"]
    assert names(Path("runs/bench")) == names(tmp_path / "runs" / "bench") == apart
    assert len(names(tmp_path.parent / "elsewhere")) == len(names(Path("runs/new"))) == 5
    assert names(Path(), root / "runs" / "bench2") == [
        "four.mp4"
    ]  # a run around the clips holds none of them back
    assert names(Path("runs"), root / "runs" / "two.mp4") == ["two.mp4"]
    for own in (root, tmp_path / "runs" / ".."):
        with pytest.raises(ConfigError, match="name another folder with --out"):
            names(own)


@pytest.mark.parametrize(
    ("options", "frames", "sentence"),
    [
        ({"workload": "world:8"}, 32, "part of the workload's name: world:32"),
        ({"workload": "world:8,32"}, 32, "part of the workload's name: world:32"),
        ({"workload": "world"}, 32, "part of the workload's name: world:32"),
        ({"workload": "focus:64"}, 32, "part of the workload's name: focus:32"),
        ({"workload": "pairs"}, 32, "pairs of pictures have no number of frames"),
        ({"workload": "chat", "media": Path("/nope")}, None, "chat is no dataset"),
        ({"workload": "world:8", "media": Path("/nope")}, None, "world:8 is no dataset"),
        ({"workload": str(CLIPS), "media": Path("/nope")}, None, "clips is no dataset"),
        ({"workload": str(CLIPS / "drift.mp4"), "media": Path("/nope")}, 8, "is no dataset"),
        ({"workload": "nowhere"}, None, "there is no workload and no file"),
        ({"workload": "runs"}, None, "name another folder with --out"),
    ],
)
def test_options_that_would_not_be_heeded_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict,
    frames: int | None,
    sentence: str,
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=sentence):
        check_workload(BenchOptions(**options), Path("runs"), frames)


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        ({"workload": "world:8"}, 8),
        ({"workload": "world:8,64"}, None),
        ({"workload": str(CLIPS), "context": (64,)}, 32),
        (
            {"workload": "mvbench:some/name", "media": Path("/nope")},
            32,
        ),  # the loader looks for that
    ],
)
def test_options_that_go_together_are_not(
    tmp_path: Path, options: dict, frames: int | None
) -> None:
    check_workload(BenchOptions(**options), tmp_path, frames)


def test_frames_of_different_sizes_are_no_video(tmp_path: Path) -> None:
    for number in range(4):
        Image.new("RGB", (4, 4 + (number == 0))).save(tmp_path / f"{number}.png")
    folder = FrameFolder(tmp_path, 3.0)
    assert [file.name for file in folder.files()] == ["0.png", "1.png", "2.png", "3.png"]
    with pytest.raises(MediaError, match="its pictures are not all of one size"):
        folder.prepare("What?", 4)()
    assert len(folder.prepare("What?", 2)().videos[0].frames) == 2  # the odd one is not shown
    assert FrameFolder(tmp_path / "gone", 3.0).files() == [tmp_path / "gone"]


def test_the_world_shows_the_same_scenes_at_each_length() -> None:
    class Small:
        video_processor = LlavaOnevisionVideoProcessor(size={"height": 16, "width": 16})

    found = clips_of(BenchOptions("world:2,5", clips=3, context=(5, 7)), Small())
    assert [clip.frames for clip in found] == [2] * 3 + [5] * 3 + [7] * 3
    assert len({clip.name for clip in found}) == 9
    assert [clip.group for clip in found[::3]] == [
        "world, 2 frames",
        "world, 5 frames",
        "world, 7 frames",
    ]
    assert len({clip.media for clip in found}) == 3
    shown = found[0].prepare()
    assert shown() is shown()  # rendered before the measurement
    assert shown().videos[0].frames.shape == (2, 16, 16, 3)
    assert shown().messages[0]["content"][-1]["text"] == found[0].prompt == "Describe the video."
    (other,) = clips_of(BenchOptions("world:2", clips=1, prompt="Who?", seed=1), Small())
    assert other.prepare()().messages[0]["content"][-1]["text"] == "Who?"
    assert other.name not in {clip.name for clip in found}


def test_small_helpers() -> None:
    numbers: list[Any] = list(range(10))
    assert select_clips(numbers, 2) == [2, 7]
    assert (
        select_clips(numbers, 10)
        == select_clips(numbers, 99)
        == select_clips(numbers, None)
        == numbers
    )
    assert unique_names(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]
    assert multiple_choice("Why?", []) == "Why?"


class _Small:
    """A processor of pictures of 16 pixels."""

    video_processor = LlavaOnevisionVideoProcessor(size={"height": 16, "width": 16})


def test_workloads_of_parts_ask_the_questions_of_evaluate() -> None:
    for name, lengths in (("focus", (16, 64)), ("needle", (64,)), ("chat", (16, 64))):
        found = clips_of(BenchOptions(name, clips=2), _Small())
        assert [clip.frames for clip in found] == [length for length in lengths for _ in range(2)]
        assert len({clip.name for clip in found}) == len(found)
        assert {clip.group for clip in found} == {f"{name}, {length} frames" for length in lengths}
        for clip, sample in zip(found, part_samples(name, 2, 0, lengths[0]), strict=False):
            chat = clip.prepare()()
            assert clip.prompt == sample.turns[-1].question
            said = [message["content"][-1]["text"] for message in chat.messages]
            expected = [text for turn in sample.turns for text in (turn.question, turn.answer)]
            assert said == expected[:-1]
            (video,) = chat.videos
            assert np.array_equal(video.frames, render(sample.scenes[0], lengths[0], 16))


@pytest.mark.parametrize("kind", TURN_WORKLOADS)
def test_each_kind_of_turn_has_sixty_different_prompts(kind: str) -> None:
    found = clips_of(BenchOptions(kind, clips=60), _Small())
    again = clips_of(BenchOptions(kind, clips=60), _Small())
    others = clips_of(BenchOptions(kind, clips=60, seed=1), _Small())
    assert len(found) == 60 * (2 if kind in ("ordering", "counting") else 1)
    assert len({clip.name for clip in found}) == len(found)
    told = [clip.media for clip in found]
    assert told == [clip.media for clip in again]
    assert told != [clip.media for clip in others]
    assert len({repr(media) for media in told[:60]}) == 60


@pytest.mark.parametrize(
    ("workload", "images", "videos", "questions"),
    [
        ("picture", 1, 0, 1),
        ("story", 5, 0, 1),
        ("ordering:8", 0, 1, 1),
        ("counting:8", 0, 1, 1),
        ("second", 1, 0, 2),
        ("recall:8", 0, 1, 2),
        ("aside", 1, 0, 2),
        ("talk", 0, 0, 3),
    ],
)
def test_a_turn_shows_its_media_and_what_was_said_before(
    workload: str, images: int, videos: int, questions: int
) -> None:
    (clip,) = clips_of(BenchOptions(workload, clips=1), _Small())
    chat = clip.prepare()()
    assert (len(chat.images), len(chat.videos)) == (images, videos)
    roles = [message["role"] for message in chat.messages]
    assert roles == (["user", "assistant"] * questions)[:-1]
    assert chat.messages[-1]["content"][-1]["text"] == clip.prompt
    kind, _, frames = workload.partition(":")
    assert clip.group == (f"{kind}, {frames} frames" if frames else kind)
    (other,) = clips_of(BenchOptions(workload, clips=1, prompt="Who?"), _Small())
    assert other.prepare()().messages[-1]["content"][-1]["text"] == "Who?"


def test_a_story_has_a_caption_behind_each_picture_but_the_last() -> None:
    (clip,) = clips_of(BenchOptions("story", clips=1), _Small())
    content = clip.prepare()().messages[0]["content"]
    assert [item["type"] for item in content] == ["image", "text"] * 5
    (story,) = stories(1, 0)
    texts = [item["text"] for item in content if item["type"] == "text"]
    assert texts == [*(f"{caption}\n" for caption in story.captions), story.turn.question]


def test_frames_are_part_of_the_name_of_a_turn() -> None:
    with pytest.raises(ConfigError, match=r"picture has no number of frames: picture, not"):
        clips("picture:8")
    with pytest.raises(ConfigError, match=r"talk has no number of frames"):
        check_workload(BenchOptions("talk"), Path("out"), frames=8)
    with pytest.raises(ConfigError, match=r"second:8"):
        check_workload(BenchOptions("second"), Path("out"), frames=8)
    check_workload(BenchOptions("second:8"), Path("out"), frames=8)


def test_pairs_show_two_pictures() -> None:
    found = clips_of(BenchOptions("pairs", clips=3, prompt="What changed?"), _Small())
    assert [clip.group for clip in found] == ["pairs"] * 3
    for clip in found:
        chat = clip.prepare()()
        assert len(chat.images) == 2
        assert chat.messages[-1]["content"][-1]["text"] == clip.prompt == "What changed?"
