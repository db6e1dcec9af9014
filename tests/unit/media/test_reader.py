"""Reading in a process of its own: the same frames, and decoders that hang or crash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from draftlens.core.errors import MediaError
from draftlens.media import load_video
from draftlens.media.reader import MediaReader, ReadRequest
from draftlens.processes import child

CLIP = str(files("draftlens") / "embedded" / "clips" / "shapes.mp4")
# A decoder that hangs or crashes, for files of these names.
FAULTY = """
import os, signal, time
from draftlens.media import reader
load = reader.load_video
def faulty(path, **options):
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
    ):
        with pytest.raises(MediaError, match=sentence):
            media.read(ReadRequest("video", name))
        assert media.read(ReadRequest("video", CLIP, 1)).frames.shape[0] == 1
    media.close()


PARENT = """
import sys
from draftlens.media.reader import MediaReader, ReadRequest
from draftlens.processes import child
child._START = {start!r}
media = MediaReader(60.0)
media.read(ReadRequest("video", {clip!r}, 1))
print(media._process.pid, flush=True)
media.read(ReadRequest("video", "hang.mp4"))
"""


def test_a_decoder_that_hangs_ends_with_its_parent(faulty: None) -> None:
    code = PARENT.format(start=child._START, clip=CLIP)
    parent: Any = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process = psutil.Process(int(parent.stdout.readline()))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_reader_can_be_ended_from_another_thread(tmp_path: Path) -> None:
    media = MediaReader(20.0)
    media.read(ReadRequest("video", CLIP, 1))
    media.kill()
    with pytest.raises(MediaError, match="the reading was ended"):
        media.read(ReadRequest("video", CLIP, 1))
    media.close()
