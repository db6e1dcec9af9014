"""Media at an address: downloads within limits, and refusals."""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import numpy as np
import pytest

from draftlens.core.errors import MediaError
from draftlens.media import Limits, download, load_image, load_video

CLIPS = Path(str(files("draftlens") / "embedded" / "clips"))


class Handler(BaseHTTPRequestHandler):
    """Serves the clips of the package, an endless file and a silent one."""

    def do_GET(self) -> None:
        name = self.path.removeprefix("/")
        if name == "endless":
            self.send_response(200)
            self.end_headers()
            self._go_on()
        elif name == "silent":
            time.sleep(1.0)
        elif not (CLIPS / name).is_file():
            self.send_error(404)
        else:
            content = (CLIPS / name).read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _go_on(self) -> None:
        try:
            for _ in range(200):
                self.wfile.write(b"x" * 1000)
                time.sleep(0.01)
        except OSError:
            pass  # the reader has gone, as it should

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_an_address_is_read_like_a_file(address: str) -> None:
    video = load_video(f"{address}/shapes.mp4", num_frames=2)
    local = load_video(CLIPS / "shapes.mp4", num_frames=2)
    assert np.array_equal(video.frames, local.frames)
    assert video.path == f"{address}/shapes.mp4"
    image = load_image(f"{address}/shapes.png")
    assert image == load_image(CLIPS / "shapes.png")


@pytest.mark.parametrize(
    ("name", "limits", "sentence"),
    [
        ("nothing.mp4", Limits(), "the server answers 404"),
        ("README.md", Limits(), "it is text, not a video"),
        ("shapes.mp4", Limits(max_download_bytes=1000), "over the limit of 1000 bytes"),
        ("endless", Limits(max_download_bytes=5000), "over the limit of 4.9 KiB"),
        ("endless", Limits(max_download_s=0.1), "takes longer than 0.1 seconds"),
        ("silent", Limits(max_download_s=0.2), "takes longer than 0.2 seconds"),
        ("shapes.mp4", Limits(max_download_bytes=0), "addresses are not read here"),
    ],
)
def test_what_cannot_be_downloaded_is_refused_with_its_address(
    address: str, name: str, limits: Limits, sentence: str
) -> None:
    with pytest.raises(MediaError, match=sentence) as refused:
        load_video(f"{address}/{name}", limits=limits)
    assert str(refused.value).startswith(f"cannot read {address}/{name}: ")


def test_a_server_that_says_nothing_is_given_up_before_the_deadline(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SILENCE", 0.2)
    with pytest.raises(MediaError, match=r"the server said nothing for 0\.2 seconds"):
        load_video(f"{address}/silent")


def test_a_server_that_is_not_there_is_refused() -> None:
    with pytest.raises(MediaError, match="it cannot be downloaded"):
        load_video("http://127.0.0.1:9/clip.mp4")


def test_a_data_address_is_read_like_a_file() -> None:
    content = b64encode((CLIPS / "shapes.png").read_bytes()).decode()
    picture = load_image(CLIPS / "shapes.png")
    for address in (
        f"data:image/png;base64,{content}",
        f"DATA:;charset=utf-8;Base64,{quote(content)}",
    ):
        assert load_image(address, limits=Limits(max_download_bytes=0)) == picture


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("data:", "of data: addresses, only data:TYPE;base64,... is read"),
        ("data:image/png;base64", "of data: addresses, only data:TYPE;base64,... is read"),
        ("data:image/png,%89PNG", "of data: addresses, only data:TYPE;base64,... is read"),
        ("data:image/png;base64,", "it is empty"),
        ("data:image/png;base64,abcde", "its data is not valid base64"),
        ("data:image/png;base64,a\udcffb=", "its data is not valid base64"),
        ("data:image/png;base64,aGVsbG8=", "it is text, not an image"),
        ("data:image/png;base64," + "A" * 4_000_000, "it is no image"),
        ("data:\x1b[2J;base64,aGVsbG8=", "it is text, not an image"),
        ("data:" + "x" * 4_000_000, "of data: addresses"),
    ],
)
def test_malformed_data_addresses(address: str, sentence: str) -> None:
    with pytest.raises(MediaError, match=f"^cannot read data:.*: {re.escape(sentence)}") as info:
        load_image(address)
    assert len(str(info.value)) < 300
    assert str(info.value).isprintable()


def test_a_large_data_address_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(MediaError, match=r"about 2\.9 KiB, over the limit of 1000 bytes"):
        load_image("data:image/png;base64," + "!" * 4000, limits=Limits(max_bytes=1000))
