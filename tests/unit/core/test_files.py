"""Files are written whole or not at all. Files of JSON lines, and what interruptions leave. Files
whose content is run belong to this user alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftlens.core.errors import ConfigError
from draftlens.core.files import (
    LineWriter,
    check_private,
    cut_incomplete_line,
    only_writer,
    parse_json,
    private_folder,
    read_cache,
    read_lines,
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


def test_lines_come_back_and_are_appended(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    assert read_lines(path, "text") == []
    for value in ({"text": "naïve\nline"}, {"text": "two"}):
        with LineWriter(path) as lines:
            lines.write(value)
    assert read_lines(path, "text") == [{"text": "naïve\nline"}, {"text": "two"}]
    assert path.read_text(encoding="utf-8").count("\n") == 2


def test_an_incomplete_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"a":')
    assert read_lines(path, "a") == [{"a": 1}]
    assert path.read_text() == '{"a":1}\n{"a":'
    cut_incomplete_line(path)
    assert path.read_text() == '{"a":1}\n'


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":1}\n{"a":\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*answers.jsonl is damaged"):
        read_lines(path, "a")


@pytest.mark.parametrize(
    ("content", "number"),
    [
        (b"27 bytes without a line end", 1),
        (b"\x00\x00\x00\x18ftypmp42 a clip\n and its end", 1),
        (b'{"file":1}\n[1]\n', 2),
        (b'{"file":1}\n{"b":2}\n', 2),
        (b'{"file":1}\nnotes of mine', 2),
        (b'{"file":1}\n\n', 2),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(
    tmp_path: Path, content: bytes, number: int
) -> None:
    path = tmp_path / "mine"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"(?s)line {number} "):
        read_lines(path, "file")
    assert path.read_bytes() == content


def test_a_line_nested_too_deeply_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"a":' + "[" * 100_000 + "\n")
    with pytest.raises(ConfigError, match=r"line 1 of .* is damaged: it is nested too deeply"):
        read_lines(path, "a")


def test_names_that_are_not_utf_8_come_back(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    name = os.fsdecode(b"caf\xe9.mp4")
    with LineWriter(path) as lines:
        lines.write({"file": name})
    assert path.read_bytes().isascii()
    assert read_lines(path, "file") == [{"file": name}]


def test_the_disk_is_waited_for_at_intervals_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("draftlens.core.files.os.fsync", synced.append)
    lines = LineWriter(tmp_path / "a", sync_seconds=60.0)
    for number in range(5):
        lines.write(number)
    assert synced == []
    lines.close()
    assert len(synced) == 1
    with LineWriter(tmp_path / "b", sync_seconds=0.0) as every:
        for number in range(5):
            every.write(number)
    assert len(synced) == 1 + 5 + 1


def test_a_full_disk_is_an_error_that_names_the_file() -> None:
    error = pytest.raises(OSError, match=r"No space left on device: '/dev/full'")
    with error, LineWriter(Path("/dev/full")) as lines:
        lines.write({"text": "one"})


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To another user, or let this process be of another one where it may not."""
    if os.geteuid():
        own = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    else:
        os.chown(path, 12345, 12345, follow_symlinks=False)


def test_a_folder_is_made_for_this_user(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        made = private_folder(tmp_path / "new" / "own")
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_folder(made) == made


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_what_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "code"
    path.touch(0o600)
    check_private(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=r"code may be written by other users: run chmod"):
        check_private(path)
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="may be written by other users"):
        private_folder(tmp_path)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_belongs_to_another_user_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "other"
    if kind == "folder":
        path.mkdir(0o700)
    else:
        (tmp_path / "own").mkdir(0o700)
        path.symlink_to(tmp_path / "own")
    check_private(path)
    give_away(path, monkeypatch)
    with pytest.raises(PermissionError, match="other belongs to another user"):
        private_folder(path)
