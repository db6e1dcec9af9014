"""A file that was replaced is another one; nothing is read and no path of the machine is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from draftlens_lab.bench.fingerprints import fingerprint, model_files


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of the same size, one of them older."""
    found = [tmp_path / name for name in ("a.png", "b.png")]
    for number, file in enumerate(found):
        file.write_text(f"{number}")
        os.utime(file, ns=(0, 10**18 + number))
    return found


def test_it_says_size_and_time(files: list[Path]) -> None:
    assert fingerprint(files[:1]).startswith("1 bytes, 2001-09-09 01:46:40, ")
    assert fingerprint(files).startswith("2 bytes, 2001-09-09 01:46:40, ")
    assert str(files[0].parent) not in fingerprint(files)


def test_it_is_the_same_elsewhere(files: list[Path], tmp_path: Path) -> None:
    before = fingerprint(files)
    (tmp_path / "other").mkdir()
    assert fingerprint([file.rename(tmp_path / "other" / file.name) for file in files]) == before


def test_it_tells_every_change(files: list[Path], tmp_path: Path) -> None:
    found = {fingerprint(files), fingerprint(files[:1]), fingerprint(files[::-1])}
    os.utime(files[0], ns=(0, 10**18 - 1))  # an older file of the same size
    found.add(fingerprint(files))
    os.utime(files[0], ns=(0, 10**18 + 2))  # another one within the same second
    found.add(fingerprint(files))
    files[0].write_text("longer")
    os.utime(files[0], ns=(0, 10**18))
    found.add(fingerprint(files))
    files[0].rename(tmp_path / "c")  # the two change places
    files[1].rename(files[0])
    (tmp_path / "c").rename(files[1])
    found.add(fingerprint(files))
    files[0].unlink()
    found.add(fingerprint(files))
    assert len(found) == 8


def test_files_of_a_model(tmp_path: Path) -> None:
    for name in (
        "model.safetensors",
        "config.json",
        "chat_template.jinja",
        "merges.txt",
        "README.md",
        "log.jsonl",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "old.json").mkdir()
    found = model_files(str(tmp_path), "target")
    assert list(found) == ["chat_template.jinja", "config.json", "merges.txt", "model.safetensors"]
    assert found["config.json"] == fingerprint([tmp_path / "config.json"])
    assert model_files("some/name-on-the-hub", "draft") == {}
    assert "model.safetensors" in model_files("embedded", "draft")
