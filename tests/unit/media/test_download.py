"""Media at an address: downloads within limits, and refusals. Servers that mean harm or fail:
redirects, private addresses, slow and broken answers."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from servers import Answer, Server, redirect

from draftlens.core.errors import ConfigError, MediaError
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


PICTURE = (Path(str(files("draftlens") / "embedded" / "clips")) / "shapes.png").read_bytes()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(PICTURE), PICTURE)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """serve(answer, host) -> a server; `answer` may be bytes, the same to every request."""
    servers: list[Server] = []

    def start(answer: Answer | bytes, host: str = "127.0.0.1") -> Server:
        def send(connection: socket.socket, head: bytes) -> None:
            connection.sendall(answer)  # type: ignore[arg-type]

        servers.append(Server(send if isinstance(answer, bytes) else answer, host))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def refused(address: str, **limits: Any) -> str:
    """The sentence of a refusal, which names the address."""
    with pytest.raises(MediaError) as info:
        load_image(address, limits=Limits(**limits))
    sentence = str(info.value)
    assert sentence.startswith(f"cannot read {address}: ")
    assert sentence.isprintable()
    assert len(sentence) < 1000
    return sentence


# Rules of redirects and of private addresses


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/a.png", "file:///etc/hosts"])
def test_redirects_lead_to_http_and_https_only(serve: Callable[..., Server], target: str) -> None:
    server = serve(redirect(target))
    assert "only http and https are read" in refused(f"{server.address}/a.png")


def test_five_redirects_are_followed(serve: Callable[..., Server]) -> None:
    def answer(connection: socket.socket, head: bytes) -> None:
        number = int(head.split()[1].rpartition(b"/")[2])
        connection.sendall(redirect(f"/{number - 1}") if number else WHOLE)

    server = serve(answer)
    assert load_image(f"{server.address}/5").size == (256, 256)
    assert "it is redirected more than 5 times" in refused(f"{server.address}/6")


def test_the_body_of_a_redirect_is_not_read(serve: Callable[..., Server]) -> None:
    def answer(connection: socket.socket, head: bytes) -> None:
        if head.startswith(b"GET /final"):
            connection.sendall(WHOLE)
            return
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /final\r\n\r\n")
        server.drip(connection, b"x")

    server = serve(answer)
    assert load_image(f"{server.address}/a.png")
    assert not server.was_heard_out


def test_private_addresses_are_refused_where_they_are_switched_off(
    serve: Callable[..., Server],
) -> None:
    server = serve(WHOLE)
    for host in ("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"):
        sentence = refused(f"http://{host}:{server.port}/a.png", private_addresses=False)
        assert "is not on the public internet (Limits.private_addresses is False)" in sentence
    assert not server.heads
    assert load_image(f"{server.address}/a.png").size == (256, 256)


def test_a_redirect_to_a_private_address_is_refused(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = serve(WHOLE)
    outside = serve(redirect(f"{inside.address}/a.png"), "127.0.0.2")
    monkeypatch.setattr(download, "_is_public", lambda address: address == "127.0.0.2")
    sentence = refused(f"{outside.address}/a.png", private_addresses=False)
    assert "127.0.0.1 is not on the public internet" in sentence
    assert len(outside.heads) == 1
    assert not inside.heads


def test_hosts_of_a_list_only(serve: Callable[..., Server]) -> None:
    """Also after a redirect; a name with another port or beside a login is another one."""
    inside = serve(WHOLE)
    outside = serve(redirect(f"{inside.address}/a.png"), "127.0.0.2")
    allowed = (f"127.0.0.2:{outside.port}", "example.com")
    for address in (
        inside.address,
        f"http://127.0.0.2:{inside.port}",
        f"http://127.0.0.1:{inside.port}/x.png?@127.0.0.2:{outside.port}",
    ):
        sentence = refused(f"{address}/a.png", hosts=allowed)
        assert "is not among the hosts that are read (Limits.hosts)" in sentence
    assert "hosts that are read" in refused("http://example.com.evil.test/a.png", hosts=allowed)
    assert not inside.heads
    assert "127.0.0.1" in refused(f"{outside.address}/a.png", hosts=allowed)
    assert len(outside.heads) == 1
    assert not inside.heads
    both = Limits(hosts=(*allowed, f"127.0.0.1:{inside.port}"))
    assert load_image(f"{outside.address}/a.png", limits=both).size == (256, 256)
    with pytest.raises(MediaError):
        load_image(
            f"http://127.0.0.2:{outside.port}\\@{inside.address[7:]}/", limits=Limits(hosts=())
        )


def test_hosts_are_names() -> None:
    for hosts in ("example.com", [1], 5):
        with pytest.raises(ConfigError, match="hosts"):
            Limits(hosts=hosts)  # type: ignore[arg-type]


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up; a second look at one finds nothing, as an attacker's might."""
    names: list[str] = []
    resolve = socket.getaddrinfo

    def once(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "clips.example":
            return resolve(host, *args, **kwargs)
        names.append(host)
        return [] if len(names) > 1 else resolve("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", once)
    monkeypatch.setattr(download, "_is_public", lambda address: True)
    return names


def test_the_address_that_was_checked_is_the_one_that_is_asked(
    serve: Callable[..., Server], resolved: list[str]
) -> None:
    server = serve(WHOLE)
    address = f"http://clips.example:{server.port}/a.png"
    assert load_image(address, limits=Limits(private_addresses=False)).size == (256, 256)
    assert resolved == ["clips.example"]
    assert f"Host: clips.example:{server.port}\r\n".encode() in server.heads[0]


def test_certificates_are_those_of_the_name(
    serve: Callable[..., Server], resolved: list[str]
) -> None:
    server = serve(b"")
    refused(f"https://clips.example:{server.port}/a.png", private_addresses=False)
    assert b"clips.example" in server.heads[0]  # the greeting of TLS
    assert resolved == ["clips.example"]


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%1", False),
        ("fd00::1", False),
        ("::ffff:10.1.2.3", False),
        ("::ffff:93.184.215.14", True),
        ("2002:7f00:1::", False),
        ("2002:5db8:d70e::", True),
        # IPv4 addresses that a gateway of the network reaches (NAT64)
        ("64:ff9b::127.0.0.1", False),
        ("64:ff9b::169.254.169.254", False),
        ("64:ff9b::93.184.215.14", True),
        ("64:ff9b:1::10.1.2.3", False),
        # deprecated kinds of private addresses, which count as global
        ("fec0::1", False),
        ("::127.0.0.1", False),
        ("::10.1.2.3", False),
        ("::93.184.215.14", False),
        ("::ffff:0:10.1.2.3", False),
        ("2001:0:7f00:1::", False),
        ("ff0e::1", False),
        ("255.255.255.255", False),
    ],
)
def test_public_addresses(address: str, is_public: bool) -> None:
    assert download._is_public(address) == is_public


# Messages


@pytest.mark.parametrize(
    "address",
    [
        "http://anna:secret@127.0.0.1:1/a.png",
        "https://anna:secret@127.0.0.1:1/a.png?b=c@d",
        "http://anna:se/secret@127.0.0.1:1/a.png",
        "http://anna:secret@/a.png",
        "http://anna:secret@[::1/a.png",
        "http://secret@b\\@127.0.0.1:1/a.png",
        "http://127.0.0.1:secret@x/a.png",
    ],
)
def test_no_message_holds_a_password(address: str) -> None:
    with pytest.raises(MediaError) as info:
        load_image(address)
    error: BaseException | None = info.value
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__ or error.__context__


def test_a_password_is_sent_but_not_logged(
    serve: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    def answer(connection: socket.socket, head: bytes) -> None:
        sends = b"Authorization: Basic YW5uYTpzZWNyZXQ=" in head
        missing = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(WHOLE if sends else missing)

    server = serve(answer)
    address = f"http://anna:secret@127.0.0.1:{server.port}/a.png"
    with caplog.at_level(logging.DEBUG):
        assert load_image(address).size == (256, 256)
        with pytest.raises(MediaError, match="it is an image, not a video") as info:
            load_video(address)
    assert "secret" not in caplog.text
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (bytes(range(256)) * 8192, "it cannot be downloaded"),
        (b"HTTP/1.1 404 \x1b[2Jgone\r\nContent-Length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 404 caf\xe9 \x9b2J\r\nContent-Length: 0\r\n\r\n", "the server answers 404"),
        (b"HTTP/1.1 500 " + b"x" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n", "500 xxx"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "it cannot be downloaded"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1e9\r\n\r\n", "it cannot be downloaded"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000, "it cannot be downloaded"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n", "it cannot be downloaded"),
        (b"", "it cannot be downloaded"),
        (b"HTTP/1.1 302 Found\r\nLocation: data:,x\r\nContent-Length: 0\r\n\r\n", "302 Found"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "it is empty"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "the server answers 304"),
    ],
)
def test_what_a_server_says_is_quoted_in_short_and_without_escape_codes(
    serve: Callable[..., Server], reply: bytes, words: str
) -> None:
    assert words in refused(f"{serve(reply).address}/a.png")


def test_characters_beyond_ascii_are_encoded(serve: Callable[..., Server]) -> None:
    server = serve(WHOLE)
    assert load_image(f"{server.address}/\N{LATIN SMALL LETTER U WITH DIAERESIS} %C3%BC.png?q=é")
    assert server.heads[0].startswith(b"GET /%C3%BC%20%C3%BC.png?q=%C3%A9 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "http:///a.png",
        "https://:80",
        "http://a b/",
        "http://" + "a" * 300 + "/",
        "http://x:99999999/",
        "http://127.0.0.1:99999/a.png",
    ],
)
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(MediaError, match=r"^cannot read http.{0,700}$"):
        load_image(address)


# Slow servers, and answers that end early


@pytest.mark.parametrize(
    ("head", "endless"),
    [
        (b"", b"HTTP/1.1 200 " + b"O" * 5000),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (CHUNKED + b"5;", b"x" * 5000),
        (CHUNKED + b"0\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    ],
    ids=["status line", "headers", "informational", "chunk size", "trailers", "body"],
)
def test_the_deadline_covers_the_whole_answer(
    serve: Callable[..., Server], head: bytes, endless: bytes
) -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        connection.sendall(head)
        server.drip(connection, endless)

    server = serve(answer)
    sentence = refused(f"{server.address}/a.png", max_download_s=0.3)
    assert "the download takes longer than 0.3 seconds" in sentence
    assert not server.was_heard_out


def test_the_deadline_covers_redirects(serve: Callable[..., Server]) -> None:
    def answer(connection: socket.socket, request: bytes) -> None:
        server.closing.wait(0.1)
        connection.sendall(redirect("/a.png"))

    server = serve(answer)
    assert "takes longer than 0.3 seconds" in refused(server.address, max_download_s=0.3)


@pytest.mark.parametrize(
    "reply",
    [
        WHOLE[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n"
        % (len(PICTURE), PICTURE),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffff\r\n%s" % PICTURE,
    ],
    ids=["content length", "no last chunk", "within a chunk"],
)
def test_an_answer_that_ends_early_is_refused(serve: Callable[..., Server], reply: bytes) -> None:
    sentence = refused(f"{serve(reply).address}/a.png")
    assert (
        "it cannot be downloaded (peer closed connection without sending complete message"
        in sentence
    )


def test_an_address_is_read_within_an_event_loop(serve: Callable[..., Server]) -> None:
    server = serve(WHOLE)

    async def read() -> Any:
        return load_image(f"{server.address}/a.png")

    assert asyncio.run(read()).size == (256, 256)
