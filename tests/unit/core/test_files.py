"""Files are written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.files import (
    only_writer,
    parse_json,
    read_cache,
    whole_file,
    write_json,
    write_text,
)
from draftlens.core.text import printable


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "report.json"
    write_text(file, "old")

    def interrupt(source: Path, destination: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(file, "new")
    assert file.read_text() == "old"


def test_nothing_else_remains(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    write_json(file, {"γ": 5})
    assert file.read_text(encoding="utf-8") == '{\n "γ": 5\n}\n'
    write_json(file, {"γ": [1, 2]}, indent=None)
    assert file.read_text(encoding="utf-8") == '{"γ": [1, 2]}\n'
    assert list(tmp_path.iterdir()) == [file]


def test_a_value_that_is_no_json_writes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(TypeError):
        write_json(file, {"path": tmp_path})
    assert json.dumps(list(tmp_path.iterdir())) == "[]"


@pytest.mark.parametrize(
    "content", ["", "{", "[" * 100_000, '{"a":' * 100_000, "null", "[]", '{"rate": {}}', "\x00"]
)
def test_a_damaged_file_of_the_cache_is_ignored(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kept.json"
    assert read_cache(path, lambda values: float(values["rate"])) is None
    path.write_text(content)
    assert read_cache(path, lambda values: float(values["rate"])) is None
    write_json(path, {"rate": 0.5})
    assert read_cache(path, lambda values: float(values["rate"])) == 0.5


def test_names_that_are_not_utf_8_are_written_and_come_back(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9.pdf")
    write_json(tmp_path / "a.json", {"source": name})
    assert parse_json((tmp_path / "a.json").read_bytes()) == {"source": name}
    assert printable(name) == "caf\\xe9 é.pdf"


WRITER = """
import sys
from pathlib import Path
from draftlens.core.files import only_writer
with only_writer(Path(sys.argv[1])):
    print("writes", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", ["answers.jsonl", "folder"])
def test_one_run_writes_to_a_place_and_a_dead_one_does_not_count(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    other = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "writes\n"
        refused = pytest.raises(ConfigError, match=f"process {other.pid} is writing to .*{name}")
        with refused, only_writer(path):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()
    before = len(list(tmp_path.rglob("*")))
    refused = pytest.raises(ConfigError, match=f"process {os.getpid()} is writing")
    with only_writer(path), refused, only_writer(path):
        pass
    assert len(list(tmp_path.rglob("*"))) == before - 1  # the lock of the other run is gone, too


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = pytest.raises(ConfigError, match=r"cannot write to .*file/a")
    with refused, only_writer(tmp_path / "file" / "a"):
        pass


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    """Each writes a file of its own, and the last one that ends remains."""
    file = tmp_path / "report.json"
    with whole_file(file) as one, whole_file(file) as other:
        one.write_text("one")
        other.write_text("other, and longer")
        assert one != other
    assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]


def test_a_write_that_fails_leaves_no_part(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "report.json", "\ud800")
    assert not list(tmp_path.iterdir())
