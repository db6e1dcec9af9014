"""`draftlens caption FOLDER --out FILE` as a person uses it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftlens.cli import folders
from draftlens.core.files import only_writer
from tests.e2e.conftest import CLIPS

SHORT = ["--frames", "2", "--max-new-tokens", "6", "--device", "cpu", "--method", "plain"]


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Three clips in two folders, one of them broken, and files that are no clips."""
    folder = tmp_path / "album"
    (folder / "inner").mkdir(parents=True)
    shutil.copy(CLIPS / "shapes.mp4", folder / "b.mp4")
    shutil.copy(CLIPS / "drift.mp4", folder / "inner" / "c.MP4")
    (folder / "a.mp4").write_bytes((CLIPS / "shapes.mp4").read_bytes()[:3000])
    (folder / "notes.txt").write_text("no clip")
    return folder


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_clip_of_a_folder_has_one_line(
    command: Callable[..., Any], album: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    status, printed, err = command("caption", str(album), "-o", str(out), *SHORT, "--seed", "3")
    assert status == 0, err
    assert printed == ""
    assert f"{out}: 2 answered, 1 failed" in err
    lines = {Path(line["file"]).name: line for line in lines_of(out)}
    assert lines.keys() == {"a.mp4", "b.mp4", "c.MP4"}
    assert "text" not in lines["a.mp4"]
    assert "its index is missing" in lines["a.mp4"]["error"] or lines["a.mp4"]["error"]
    good = lines["b.mp4"]
    assert (good["prompt"], good["target"], good["draft"]) == (
        "Describe the video.",
        "embedded",
        "embedded",
    )
    assert (good["method"], good["seed"], good["stats"]["tokens"]) == ("plain", 3, 6)
    status, answer, _ = command("caption", str(album / "b.mp4"), *SHORT)
    assert " ".join(answer.split()) == " ".join(good["text"].split())


def test_a_run_goes_on_where_it_was_interrupted(
    command: Callable[..., Any], album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    words = ["caption", str(album), "-o", str(out), *SHORT]
    count = folders._Progress.count

    def interrupt(*given: Any) -> None:
        count(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folders._Progress, "count", interrupt)
        status, _, err = command(*words)
    assert status == 130
    assert "Traceback" not in err
    err = " ".join(err.split())
    assert f"{out}: 1 of 3 done" in err
    assert f"go on with: {shlex.join(['draftlens', *words, '--resume'])}" in err
    first = lines_of(out)
    assert len(first) == 1
    with out.open("a") as file:
        file.write('{"file":"half a li')
    status, _, err = command(*words)
    assert status == 2
    assert "holds answers: --resume continues them, --restart discards them" in err
    status, _, err = command(*words, "--resume")
    assert status == 0, err
    lines = lines_of(out)
    assert lines[:1] == first
    assert sorted(Path(line["file"]).name for line in lines) == ["a.mp4", "b.mp4", "c.MP4"]
    status, _, err = command(*words, "--resume")
    assert status == 0
    assert lines_of(out) == lines


def test_lines_of_another_run_are_not_mixed_in(
    command: Callable[..., Any], album: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    good = str(album / "b.mp4")
    words = ["caption", good, "-o", str(out), *SHORT]
    assert command(*words)[0] == 0
    more = ["caption", good, str(album / "inner" / "c.MP4"), "-o", str(out), *SHORT, "--resume"]
    for change, sentence in (
        (["--prompt", "What?"], "holds answers with prompt 'Describe the video.', not 'What?'"),
        (["--frames", "3"], "other options of the method, of sampling or of reading"),
    ):
        status, _, err = command(*more, *change)
        assert status == 2
        assert sentence in " ".join(err.split())
    assert len(lines_of(out)) == 1
    assert command(*more)[0] == 0
    assert len(lines_of(out)) == 2
    assert command(*words, "--restart")[0] == 0
    assert len(lines_of(out)) == 1


def test_each_image_of_a_folder_is_asked_about(command: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copy(CLIPS / "shapes.png", tmp_path / "a.png")
    out = tmp_path / "out.jsonl"
    words = ["--prompt", "Describe the image.", *SHORT[2:], "--out", str(out)]
    status, _, err = command("ask", str(tmp_path), *words)
    assert status == 0, err
    assert [Path(line["file"]).name for line in lines_of(out)] == ["a.png"]
    status, _, err = command("ask", str(out.parent / "nothing"), *words, "--restart")
    assert status == 0
    assert "there is no such file" in lines_of(out)[0]["error"]
    (tmp_path / "empty").mkdir()
    status, _, err = command("caption", str(tmp_path / "empty"), "-o", str(out), "--restart")
    assert status == 2
    assert "there are no files of kind video in" in err


@pytest.mark.parametrize("flag", [[], ["--resume"], ["--restart"]])
def test_a_file_that_holds_no_answers_is_left_as_it_is(
    command: Callable[..., Any], album: Path, tmp_path: Path, flag: list[str]
) -> None:
    """A clip that is named by mistake, and a text of 27 bytes without the end of a line."""
    text = tmp_path / "text"
    text.write_bytes(b"27 bytes and no end of line")
    for out in (album / "b.mp4", text):
        before = out.read_bytes()
        status, _, err = command("caption", str(album / "inner"), "-o", str(out), *SHORT, *flag)
        assert status == 2
        assert "is left as it is" in err
        assert len(err.strip().splitlines()) == 1
        assert out.read_bytes() == before


def test_a_folder_is_no_file_of_answers(command: Callable[..., Any], album: Path) -> None:
    status, _, err = command("caption", str(album), "-o", str(album), *SHORT)
    assert status == 2
    assert f"--out needs a file, and {album} is a folder" in err


def test_two_runs_do_not_write_to_one_file(
    command: Callable[..., Any], album: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    with only_writer(out):
        status, _, err = command("caption", str(album), "-o", str(out), *SHORT, "--resume")
    assert status == 2
    assert f"process {os.getpid()} is writing to {out}" in " ".join(err.split())
    assert not out.exists()


def test_names_that_are_not_utf_8_have_lines_and_are_not_asked_about_again(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "album"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9.png")
    shutil.copy(CLIPS / "shapes.png", folder / name)
    (folder / f"broken {name}").write_bytes(b"no picture")
    out = tmp_path / "out.jsonl"
    words = ["ask", str(folder), "--prompt", "Describe.", "-o", str(out), *SHORT[2:]]
    status, _, err = command(*words)
    assert status == 0, err
    lines = {Path(line["file"]).name: line for line in lines_of(out)}
    assert lines.keys() == {"caf\\xe9.png", "broken caf\\xe9.png"}
    assert lines["caf\\xe9.png"]["text"]
    assert os.fsdecode(bytes.fromhex(lines["caf\\xe9.png"]["file_bytes"])) == str(folder / name)
    error = lines["broken caf\\xe9.png"]["error"]
    assert "broken caf" in error
    assert error.isprintable()
    before = out.read_bytes()
    status, _, err = command(*words, "--resume")
    assert status == 0, err
    assert "1 answered, 1 failed" in err
    assert out.read_bytes() == before
