"""Reading in a process of its own: the same frames, and decoders that hang or crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from draftlens.core.errors import MediaError
from draftlens.media import Limits, load_video, reader
from draftlens.media.reader import LostReaderError, MediaReader, ReadRequest
from draftlens.processes import child

CLIP = str(files("draftlens") / "embedded" / "clips" / "shapes.mp4")
# A decoder that hangs or crashes, for files of these names.
FAULTY = """
import os, pickle, signal, time
from multiprocessing.connection import Connection
from draftlens.media import reader
from draftlens.media.files import local_copy
load = reader.load_video
class Harmful:
    def __reduce__(self):
        return os.mkdir, (os.environ["TMPDIR"] + "-was-run",)
def faulty(path, **options):
    if path.startswith("data:"):
        with local_copy(path, options["limits"]):
            time.sleep(60)
    if "pickle" in path:
        Connection({descriptor}).send_bytes(pickle.dumps(Harmful()))
        time.sleep(60)
    if "half" in path:
        os.write({descriptor}, (1000).to_bytes(4, "big"))
        time.sleep(60)
    if "bloat" in path:
        return bytearray(1 << 33)
    if "hang" in path:
        time.sleep(60)
    if "crash" in path:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "strange" in path:
        raise KeyError("strange")
    return load(path, **options)
reader.load_video = faulty
reader.main({descriptor}, {threads})
"""


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    before, _, _ = child._START.partition("from {module}")
    monkeypatch.setattr(child, "_START", before + FAULTY)


def test_the_frames_are_those_of_the_same_process() -> None:
    media = MediaReader(20.0)
    video = media.read(ReadRequest("video", CLIP, 4))
    assert np.array_equal(video.frames, load_video(CLIP, num_frames=4).frames)
    with pytest.raises(MediaError, match="there is no such file"):
        media.read(ReadRequest("video", "nowhere.mp4"))
    picture = media.read(ReadRequest("image", CLIP.replace("mp4", "png")))
    assert picture.size == (256, 256)
    media.close()


def test_a_decoder_that_fails_costs_its_file_only(faulty: None) -> None:
    media = MediaReader(2.0)
    media.read(ReadRequest("video", CLIP, 1))
    for name, sentence in (
        ("hang.mp4", "its decoder did not end within 2 seconds"),
        ("crash.mp4", r"its decoder crashed \(SIGSEGV\)"),
        ("strange.mp4", "KeyError: 'strange'"),
        ("half.mp4", r"its decoder crashed \(SIGKILL\)"),
    ):
        with pytest.raises(MediaError, match=sentence):
            media.read(ReadRequest("video", name))
        assert media.read(ReadRequest("video", CLIP, 1)).frames.shape[0] == 1
    media.close()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, which is empty."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


DATA = "data:video/mp4;base64,aGFuZw=="
"""A clip whose decoder hangs with a copy of it on disk."""


def test_a_decoder_that_is_killed_leaves_no_copy(faulty: None, temporary: Path) -> None:
    media = MediaReader(0.5)
    for _ in range(2):
        with pytest.raises(LostReaderError, match=r"did not end within 0\.5 seconds"):
            media.read(ReadRequest("video", DATA))
        assert not list(temporary.iterdir())
    media.close()


def test_answers_are_not_unpickled(faulty: None, temporary: Path) -> None:
    """A decoder that was taken over by a file cannot run code in the process that asks."""
    media = MediaReader(20.0)
    with pytest.raises(LostReaderError, match="gave no valid answer"):
        media.read(ReadRequest("video", "pickle.mp4"))
    assert not list(temporary.iterdir())
    media.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"\xff",
        b"[1]",
        b'{"array": [4]}',
        b'{"array": [-1]}',
        b'{"array": [1e3]}',
        b'{"array": [99999999999]}',
        b'{"image": {"array": [0, 0, 3]}}',
        b'{"object": ["Path", {}]}',
        b'{"object": ["Video", {"path": ""}]}',
        b"[" * 100_000,
    ],
)
def test_answers_that_are_none(answer: bytes) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        theirs.send_bytes(answer)
        theirs.send_bytes(b"123")
        request = ReadRequest("video", "", limits=Limits(max_pixels=10, max_output_bytes=10))
        if answer == b"[1]":
            assert reader._received(ours, request) == [1]
            return
        with pytest.raises(reader._InvalidAnswerError):
            reader._received(ours, request)


def test_a_decoder_is_refused_more_memory_than_the_limits_need(faulty: None) -> None:
    media = MediaReader(20.0)
    limits = Limits(max_pixels=100_000, max_output_bytes=1_000_000)
    for _ in range(2):
        with pytest.raises(MediaError, match="its decoder needs too much memory"):
            media.read(ReadRequest("video", "bloat.mp4", limits=limits))
        assert media.read(ReadRequest("video", CLIP, 1, limits)).frames.shape[0] == 1
    media.close()


PARENT = """
import sys
from draftlens.media.reader import MediaReader, ReadRequest
from draftlens.processes import child
child._START = {start!r}
media = MediaReader(60.0)
media.read(ReadRequest("video", {clip!r}, 1))
print(media._process.pid, flush=True)
media.read(ReadRequest("video", {data!r}))
"""


def test_a_decoder_that_hangs_ends_with_its_parent(faulty: None, temporary: Path) -> None:
    """And the copy that it reads is removed."""
    code = PARENT.format(start=child._START, clip=CLIP, data=DATA)
    parent: Any = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 20
    while not list(temporary.glob("*/*/download")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not list(temporary.iterdir())


def test_a_reader_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    media = MediaReader(20.0)
    media.read(ReadRequest("video", CLIP, 1))
    media.kill()
    with pytest.raises(MediaError, match="the reading was ended"):
        media.read(ReadRequest("video", CLIP, 1))
    media.close()
