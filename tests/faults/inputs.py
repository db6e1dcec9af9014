"""Malformed inputs, made by code from a seed: each is given to what a user would call.

Whatever is wrong with an input, it is answered, or refused by a `DraftlensError` of one line.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import random
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import islice
from math import inf, nan
from pathlib import Path
from typing import Any

import av
import numpy as np
import pdfs
import torch
import typer.main
from families import FAMILIES, inputs
from faults.damage import DAMAGE, damaged, damaged_json
from faults.watch import Give, Input
from PIL import Image
from reportlab.lib.utils import ImageReader
from servers import Server, redirect

import draftlens
from draftlens.batch.map import MapOptions
from draftlens.cli.app import app
from draftlens.cli.entry import main
from draftlens.cli.folders import FolderRun, run_folder
from draftlens.core.files import cache_folder, write_json
from draftlens.documents.settings import ParseSettings
from draftlens.drafting.adaptive.costs import CostCurve
from draftlens.drafting.adaptive.history import cost_file
from draftlens.media import Limits, load_image, load_video
from draftlens.models.adapter import Backbone
from draftlens.options import ARGUMENTS, OPTIONS, CallOptions, names_beside_options

COUNTS: Mapping[str, int] = {
    "images": 200,
    "clips": 200,
    "documents": 140,
    "replies of servers": 140,
    "addresses": 80,
    "arguments": 280,
    "methods": 120,
    "command lines": 80,
    "caches": 60,
    "files of answers": 40,
    "folders of pages": 40,
}
"""Inputs of each kind."""

Made = tuple[str, Give]
"""What is wrong with an input, and what gives it."""

LIMITS = Limits(max_page_s=5, max_download_s=0.5)
"""Those of users but for the time, of which there is little here."""

WIDTH, HEIGHT = 64, 48
BIG = 10**9

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, BIG, 10**30, 0.5, -0.5, 1.5, nan, inf, -inf, 1j),
    *("", "x", "4", "a" * 10_000, "\0", "\ud800", "../x", "\x1b[2J", b"x"),
    *([], [[]], [5], ["a"], [None], (1, 2), {}, {"a": 1}, {"name": 5}, {1, 2}, range(3)),
    *(object(), print, int, np.int64(3), np.array(nan), np.zeros((2, 2)), torch.zeros(0)),
    *(torch.tensor(3), Path("x"), io.BytesIO(b"x")),
)
"""Values of any argument; some of them are right for some."""

SLOW: Mapping[str, Callable[[Any], bool]] = {
    "max_new_tokens": lambda value: value in (None, BIG, 10**30),
    "max_length": lambda value: value in (None, BIG, 10**30),
    "compile": lambda value: value is True,
}
"""Values that are right and would compile or answer for minutes."""

FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "TIFF",
    "BMP",
    "ICO",
    "PPM",
    "PCX",
    "JPEG2000",
    "SGI",
    "QOI",
)
CODECS = {
    "mp4": "mpeg4",
    "mov": "libx264",
    "mkv": "libx264",
    "webm": "libvpx",
    "avi": "mjpeg",
    "ts": "mpeg2video",
    "flv": "flv",
}


def drawing(number: int = 0) -> np.ndarray[Any, Any]:
    """A picture that compresses badly enough for damage to hit pixels, too."""
    rng = np.random.default_rng(number)
    picture = rng.integers(0, 256, (HEIGHT // 4, WIDTH // 4, 3), np.uint8)
    return picture.repeat(4, 0).repeat(4, 1)


@cache
def image(form: str) -> bytes:
    """An image file."""
    buffer = io.BytesIO()
    frames = [Image.fromarray(drawing(number)) for number in range(3)]
    more = {"save_all": True, "append_images": frames[1:]} if form in ("GIF", "TIFF") else {}
    frames[0].save(buffer, form, **more)
    return buffer.getvalue()


@cache
def clip(suffix: str) -> bytes:
    """A clip of 24 frames."""
    buffer = io.BytesIO()
    form = {"mkv": "matroska", "ts": "mpegts"}.get(suffix, suffix)
    with av.open(buffer, "w", format=form) as container:
        stream: Any = container.add_stream(CODECS[suffix], rate=12)
        stream.width, stream.height = WIDTH, HEIGHT
        stream.pix_fmt = "yuvj420p" if CODECS[suffix] == "mjpeg" else "yuv420p"
        stream.codec_context.thread_count = 1
        for number in range(24):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(drawing(number), "rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def png_header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A PNG of any size according to its header, almost without pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(10)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def black(side: int) -> bytes:
    """A PNG of a few kilobytes that decodes to many pixels."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def with_picture(canvas: Any) -> None:
    """A picture and a filled path."""
    canvas.drawImage(ImageReader(Image.fromarray(drawing())), 20, 20, 100, 80)
    canvas.circle(200, 200, 30, fill=1)


def named(value: object) -> str:
    """A value in a few words."""
    return repr(value)[:60]


class Inputs:
    """All kinds of malformed inputs.

    Args:
        folder: for files.
        replies: of a server.
        seed: of all that is drawn.
    """

    def __init__(self, folder: Path, replies: Replies, seed: int = 0) -> None:
        self.folder = folder
        self.replies = replies
        self.seed = seed
        self._number = 0

    def all(self, share: float = 1.0, kinds: Sequence[str] = ()) -> Iterator[Input]:
        """Inputs of all kinds.

        Args:
            share: of the number of each kind, the first ones.
            kinds: only these; empty for all.
        """
        for kind in kinds or COUNTS:
            count = COUNTS[kind]
            rng = random.Random(f"{kind} {self.seed}")
            make = getattr(self, kind.replace(" ", "_"))
            for what, give in islice(make(rng), max(1, round(count * share))):
                yield Input(kind, what, give)

    def _file(self, name: str, content: bytes) -> Path:
        self._number += 1
        path = self.folder / f"{self._number}-{name}"
        path.write_bytes(content)
        return path

    def _damaged(
        self, wholes: Mapping[str, bytes], rng: random.Random, read: Callable[[Path], object]
    ) -> Iterator[Made]:
        """Files of each of some kinds, with each kind of damage in turn and then with several."""
        number = 0
        while True:
            for name, whole in wholes.items():
                damage = DAMAGE[number % len(DAMAGE)]
                is_first = number < len(DAMAGE) * len(wholes)
                content = damage(whole, rng) if is_first else damaged(whole, rng)
                path = self._file(name, content)
                yield (
                    f"{path.name}, {damage.__name__ if is_first else 'damaged'}",
                    lambda path=path: read(path),
                )
                number += 1

    def images(self, rng: random.Random) -> Iterator[Made]:
        """`load_image`."""
        sizes = ((11_000, 10_000), (60_000, 60_000), (0, 5), (2**31, 1), (9000, 9000))
        other = {
            **{f"{width}x{height}.png": png_header(width, height) for width, height in sizes},
            "depth.png": png_header(8, 8, depth=3),
            "colour.png": png_header(8, 8, colour=7),
            "empty.png": b"",
            "zeros.png": bytes(5000),
            "page.png": b"<html><body>404</body></html>",
            "drawing.png": b'<svg xmlns="http://www.w3.org/2000/svg" width="9999999"/>',
            "script.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n",
            "netpbm.ppm": b"P6 99999999 99999999 255\n" + bytes(100),
            "netpbm2.ppm": b"P6 -5 5 255\n" + bytes(100),
            "clip.png": clip("mp4"),
            "black.png": black(9_900),
        }
        for name, content in other.items():
            path = self._file(name, content)
            yield name, lambda path=path: load_image(path, limits=LIMITS)
        wholes = {f"a.{form.lower()}": image(form) for form in FORMATS}
        yield from self._damaged(wholes, rng, lambda path: load_image(path, limits=LIMITS))

    def clips(self, rng: random.Random) -> Iterator[Made]:
        """`load_video`."""
        other = {
            "empty.mp4": b"",
            "zeros.mp4": bytes(5000),
            "head.mp4": clip("mp4")[:40] + bytes(2**24),
            "head.ts": clip("ts")[:376] + bytes(2**24),
            "text.mp4": b"words\n" * 1000,
            "list.mp4": b"ffconcat version 1.0\nfile /etc/passwd\n",
            "list.m3u8": b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n#EXT-X-ENDLIST\n",
            "picture.mp4": image("PNG"),
            "pictures.gif": image("GIF"),
            "document.mp4": b"%PDF-1.4\n",
            "box.mp4": b"\0\0\0\1mdat" + b"\xff" * 8 + bytes(64),
            "boxes.mp4": b"\0\0\0\x08free" * 50_000,
            "nested.mp4": b"\x7f\xff\xff\xffmoov" * 5000,
        }
        for name, content in other.items():
            path = self._file(name, content)
            yield name, lambda path=path: load_video(path, num_frames=4, limits=LIMITS)
        sparse = self._file("sparse.mkv", clip("mkv"))
        with sparse.open("r+b") as file:
            file.truncate(2**28)
        yield "sparse.mkv", lambda: load_video(sparse, num_frames=4, limits=LIMITS)
        wholes = {f"a.{suffix}": clip(suffix) for suffix in CODECS}

        def read(path: Path) -> object:
            return load_video(path, num_frames=4, limits=LIMITS)

        yield from self._damaged(wholes, rng, read)

    def documents(self, rng: random.Random) -> Iterator[Made]:
        """`draftlens.parse` without a target."""
        place = self.folder
        hostile = [
            pdfs.without_pages(place / "none.pdf"),
            *(pdfs.stating(place / f"states{count}.pdf", count) for count in (2, 500, 10**9)),
            pdfs.nested(place / "nested.pdf", 40, 2),
            pdfs.nested(place / "wide.pdf", 12, 10),
            pdfs.recursive(place / "recursive.pdf"),
            pdfs.flate_bomb(place / "bomb.pdf", 300_000_000),
            pdfs.encrypted(place / "encrypted.pdf", "secret"),
            pdfs.write(place / "large.pdf", [pdfs.columns], size=(200_000, 200_000)),
            pdfs.write(place / "flat.pdf", [pdfs.columns], size=(300, 0)),
            self._file("empty.pdf", b""),
            self._file("head.pdf", b"%PDF-1.7\n"),
            self._file("text.pdf", b"words\n" * 100),
            self._file("picture.pdf", image("PNG")),
        ]
        for path in hostile:
            yield path.name, lambda path=path: parsed(path)
        pages = [pdfs.columns, pdfs.blank, with_picture]
        written = {
            "three.pdf": pdfs.write(place / "three.pdf", pages),
            "turned.pdf": pdfs.write(place / "turned.pdf", [pdfs.rotated(90)], pageCompression=0),
            "printed.pdf": pdfs.printed(place / "printed.pdf"),
            "forms.pdf": pdfs.nested(place / "forms.pdf", 3, 2),
        }
        wholes = {name: path.read_bytes() for name, path in written.items()}
        wholes["page.tiff"] = image("TIFF")
        yield from self._damaged(wholes, rng, parsed)

    def replies_of_servers(self, rng: random.Random) -> Iterator[Made]:
        """`load_image` and `load_video` of a server on this machine."""
        number = 0
        while True:
            content, load = rng.choice(((image("PNG"), load_image), (clip("mp4"), load_video)))
            reply = self.replies.drawn(content, rng)
            address = self.replies.add(f"{number}.{rng.choice(('png', 'mp4'))}", reply)
            yield (
                f"{reply.what} at {address}",
                lambda load=load, address=address: load(address, limits=LIMITS),
            )
            number += 1

    def addresses(self, rng: random.Random) -> Iterator[Made]:
        """Addresses that lead nowhere."""
        schemes = (
            "http://",
            "https://",
            "HTTP://",
            "http:",
            "http:/",
            "https:///",
            "ftp://",
            "data:",
        )
        hosts = (
            *("", "127.0.0.1:1", "[::1]:1", "[::1", "::1", "127.0.0.1:99999", "127.0.0.1:-1"),
            *("127.0.0.1:x", "a b", "a" * 300, "%00", "\0", "\ud800", "ü" * 70, "x@127.0.0.1:1"),
            *("a:b@c:d@127.0.0.1:1", "127.0.0.1:1\r\nX: y", "2130706433:1", "127.1:1", "0x7f.1:1"),
            *("..", ".", "xn--a:1", "image/png;base64,", "image/png;base64,@@", "text/plain,x"),
        )
        ends = ("", "/", "/a.png", "/%", "/%zz", "/\x1b[2J", "/\ud800", "?" * 500, "#", "/a b?c=\0")
        private = dataclasses.replace(LIMITS, private_addresses=False)
        while True:
            address = rng.choice(schemes) + rng.choice(hosts) + rng.choice(ends)
            load: Any = rng.choice((load_image, load_video))
            limits = rng.choice((LIMITS, private))
            yield (
                named(address),
                lambda load=load, address=address, limits=limits: load(address, limits=limits),
            )

    def arguments(self, rng: random.Random) -> Iterator[Made]:
        """One or two odd values in a call of an entry point."""
        calls: tuple[Callable[..., object], ...] = (
            generate,
            ask,
            call_back,
            load,
            over_clips,
            parse,
            Limits,
            MapOptions,
            ParseSettings,
        )
        names = {call: arguments_of(call) for call in calls}
        while True:
            call = calls[rng.randrange(len(calls))]
            chosen = rng.sample(names[call], rng.choice((1, 1, 2)))
            given = {name: odd(name, rng) for name in chosen}
            yield f"{call.__name__} {named(given)}", lambda call=call, given=given: call(**given)

    def methods(self, rng: random.Random) -> Iterator[Made]:
        """Methods as mappings with odd values, in a call."""
        known = ("plain", "speculative", "specvlm", "tabed", "lookup", "hsd")
        while True:
            name = rng.choice(known)
            options = [
                each.name for each in dataclasses.fields(draftlens.from_dict({"method": name}))
            ]  # type: ignore[arg-type]
            method = {"method": name}
            for option in rng.sample(options, min(len(options), rng.choice((1, 1, 2)))):
                method[option] = rng.choice(ODD)
            yield (
                named(method),
                lambda method=method: generate(method=method, draft=small_models()[1]),
            )

    def command_lines(self, rng: random.Random) -> Iterator[Made]:
        """`draftlens` with wrong words, of which none leads to a model."""
        picture = str(self._file("a.png", damaged(image("PNG"), rng)[:100] or b"x"))
        page = str(pdfs.printed(self.folder / "words.pdf"))
        config = str(self._file("method.json", b"{" * 100_000))
        table = str(self._file("method.yaml", b"a: &a [*a]\n"))
        commands = ("caption", "ask", "verify", "demo", "parse", "doctor", "methods", "pairs", "x")
        files = (
            picture,
            page,
            "/no/such/file",
            "",
            "\0",
            "\udcff",
            str(self.folder),
            "/dev/null",
            "-",
        )
        values = (
            *("", "x", "-1", "0", "nan", "inf", "1e999", "9" * 400, "{}", "[]", "[" * 100_000),
            *(
                '{"a": 1}',
                '{"max_bytes": 1e999}',
                '{"method": 5}',
                '{"method": "tabed", "views": 5}',
            ),
            *(config, table, picture, page, "1-", "3-1", "0", "1,,2", "\0", "\udcff", "a\x1b[2J"),
        )
        while True:
            name = rng.choice(commands)
            words = [name, *rng.sample(files, rng.choice((0, 1, 1, 2)))]
            known = options_of(name)
            for option in rng.sample(sorted(known), min(len(known), rng.choice((1, 1, 2, 3)))):
                words += [option] if known[option] else [option, rng.choice(values)]
            if "--target" in known and "--target" not in words and name != "parse":
                words += ["--target", "/no/such/model"]
            yield named(words), lambda words=words: command(*words)

    def caches(self, rng: random.Random) -> Iterator[Made]:
        """Files of the cache that automatic trees are chosen by."""
        model, small = small_models()

        def answer(max_new_tokens: int = 6) -> object:
            """By models that nothing is known about in memory."""
            fresh = copy.deepcopy(model), copy.deepcopy(small)
            engine = draftlens.Engine(*fresh, processor=processor(), draft_processor=processor())
            return engine.generate("What?", method="speculative", max_new_tokens=max_new_tokens)

        _cached(CostCurve((1, 8, 64), (1e-3, 1.1e-3, 2e-3)), model)
        _cached(CostCurve((1, 8, 64), (1e-5, 2e-5, 5e-5)), small)
        answer(max_new_tokens=24)
        whole = {path: path.read_bytes() for path in cache_folder().glob("*/*.json")}
        assert sorted(path.parent.name for path in whole) == ["costs", "costs"]

        def give(damage: Mapping[Path, bytes]) -> object:
            for path, content in damage.items():
                path.write_bytes(content)
            return answer()

        while True:
            chosen = rng.sample(sorted(whole), rng.randrange(1, len(whole) + 1))
            damage = {path: damaged_json(whole[path], rng) for path in chosen}
            what = ", ".join(f"{path.parent.name}: {named(damage[path])}" for path in chosen)
            yield what, lambda damage={**whole, **damage}: give(damage)

    def files_of_answers(self, rng: random.Random) -> Iterator[Made]:
        """`--resume` of a folder's answers."""
        names = [str(self._file(f"{number}.png", image("PNG"))) for number in range(2)]
        out = self.folder / "answers.jsonl"
        options = MapOptions(kind="image", readers=1)
        run = FolderRun(
            names, "What?", options, {"max_new_tokens": 3, "do_sample": False}, quiet=True
        )

        def give(content: bytes) -> object:
            out.write_bytes(content)
            return run_folder(run, out, True, small_engine)

        run_folder(run, out, False, small_engine)
        *lines, _ = out.read_bytes().split(b"\n")
        while True:
            kept = [damaged_json(line, rng) if rng.random() < 0.6 else line for line in lines]
            content = b"\n".join(kept) + rng.choice((b"\n", b""))
            if rng.random() < 0.3:
                content = damaged(content, rng)
            yield named(content), lambda content=content: give(content)

    def folders_of_pages(self, rng: random.Random) -> Iterator[Made]:
        """`draftlens parse -o FOLDER --resume` with a damaged index or damaged pages."""
        source = pdfs.printed(self.folder / "page.pdf")
        out = self.folder / "pages"
        words = ("parse", str(source), "-o", str(out), "--resume")
        words += ("--drafter", "text-layer", "--layout", "blocks")
        command(*words)
        whole = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        described = sorted(path for path in whole if path.suffix == ".json")

        def give(damage: Mapping[Path, bytes]) -> object:
            for path, content in damage.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            return command(*words)

        while True:
            path = rng.choice(described)
            content = damaged_json(whole[path], rng)
            what = f"{path.name}: {named(content)}"
            yield what, lambda damage={**whole, path: content}: give(damage)


class Reply:
    """What a server sends, and how.

    Args:
        what: it is, in words.
        parts: sent one after the other.
        drips: bytes that are sent one by one after them.
    """

    def __init__(self, what: str, parts: Iterable[bytes], drips: bytes = b"") -> None:
        self.what = what
        self.parts = list(parts)
        self.drips = drips


class Replies:
    """A server that sends each reply at an address of its own; a context manager."""

    def __init__(self) -> None:
        self._replies: dict[str, Reply] = {}
        self.server = Server(self._answer)

    def __enter__(self) -> Replies:
        return self

    def __exit__(self, *raised: object) -> None:
        self.server.close()

    def add(self, name: str, reply: Reply) -> str:
        """The address of a reply."""
        self._replies[f"/{name}"] = reply
        return f"{self.server.address}/{name}"

    def _answer(self, connection: socket.socket, head: bytes) -> None:
        path = [*head.split(), b"", b""][1].decode("latin-1")
        reply = self._replies.get(path, Reply("missing", [b"HTTP/1.1 404 None\r\n\r\n"]))
        for part in reply.parts:
            connection.sendall(part)
        if reply.drips:
            self.server.drip(connection, reply.drips)

    def drawn(self, content: bytes, rng: random.Random) -> Reply:
        """A reply with something wrong, which should have held the content."""
        ways = (self._headers, self._chunks, self._content, self._redirect, self._noise, self._slow)
        return rng.choice(ways)(content, rng)

    def _headers(self, content: bytes, rng: random.Random) -> Reply:
        status = rng.choice(
            (
                *(b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/9.9 200 OK", b"HTTP/1.1 99 x"),
                *(b"HTTP/1.1 -200 OK", b"HTTP/1.1 2000 OK", b"200 OK", b"", b"ICY 200 OK"),
                *(b"HTTP/1.1 101 Switch", b"HTTP/1.1 206 Part", b"HTTP/1.1 \xff \xff", b"\0"),
                b"HTTP/1.1 503 \x1b]0;x\x07" + b"y" * 5000,
            )
        )
        headers = (
            *(b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: x"),
            *(b"Content-Length: -1", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length:"),
            *(b"Content-Encoding: gzip", b"Content-Encoding: x", b"Transfer-Encoding: gzip"),
            *(b"Transfer-Encoding: chunked\r\nContent-Length: 3", b": x", b"no colon", b" folded"),
            *(b"X: " + b"y" * 200_000, b"X: \xff\xfe\0", b"Connection: upgrade", b"Set-Cookie: a"),
        )
        chosen = rng.sample(headers, rng.randrange(3))
        head = b"\r\n".join([status, *chosen, b"", b""])
        return Reply(f"head {head[:80]!r}", [head, content])

    def _chunks(self, content: bytes, rng: random.Random) -> Reply:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        size = rng.choice(
            (b"5", b"FFFFFFFFFFFFFFFFFFF", b"-1", b"x", b"", b"%x;" % len(content), b"0x5", b"5 5")
        )
        end = rng.choice(
            (b"\r\n0\r\n\r\n", b"", b"\r\n0\r\nX\r\n\r\n", b"\n", b"\r\n0\r\n" + b"X" * 99_999)
        )
        return Reply(f"chunk of {size!r}", [head, size + b"\r\n", content, end])

    def _content(self, content: bytes, rng: random.Random) -> Reply:
        sent = damaged(content, rng)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % rng.choice(
            (len(sent), len(content))
        )
        return Reply("damaged content", [head, sent])

    def _redirect(self, content: bytes, rng: random.Random) -> Reply:
        targets = (
            *("", "/", "?", "//", "http://", "http://[", "ftp://127.0.0.1/a", "file:///etc/passwd"),
            *(
                "data:image/png;base64,AAAA",
                "javascript:x",
                "//127.0.0.1:1/",
                "http://127.0.0.1:1/",
            ),
            *(
                "a" * 70_000,
                "\x1b[2J",
                "http://a:b@127.0.0.1:1/",
                "http://127.0.0.1:99999/",
                "/0.png",
            ),
        )
        target = rng.choice(targets)
        return Reply(f"redirect to {target[:60]!r}", [redirect(target)])

    def _noise(self, content: bytes, rng: random.Random) -> Reply:
        whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
        sent = rng.choice((rng.randbytes(3000), damaged(whole[:200], rng), b"\r\n" * 5000, b""))
        return Reply(f"noise {sent[:40]!r}", [sent])

    def _slow(self, content: bytes, rng: random.Random) -> Reply:
        places = {
            "head": b"",
            "headers": b"HTTP/1.1 200 OK\r\n",
            "body": b"HTTP/1.1 200 OK\r\n\r\n",
        }
        place = rng.choice(list(places))
        return Reply(f"slow {place}", [places[place]], drips=b"X: y\r\n")


@cache
def small_models() -> tuple[Any, Any]:
    """A target and a draft with random weights."""
    models = FAMILIES[0].build(), FAMILIES[0].build(seed=7, num_hidden_layers=1)
    for name, model in zip(("target", "draft"), models, strict=True):
        model.name_or_path = model.config._name_or_path = f"small-{name}"
    return models


@cache
def processor() -> Any:
    """The processor of both."""
    tools = FAMILIES[0].tools
    tools.chat_template = tools.tokenizer.chat_template = (
        "{% for message in messages %}{% for item in message.content %}"
        "{{ '<image>' if item.type == 'image' else item.text }}{% endfor %}{% endfor %}"
    )
    return tools


@cache
def small_engine() -> draftlens.Engine:
    """An engine of the target alone."""
    return draftlens.Engine(small_models()[0], processor=processor(), method="plain")


def _cached(curve: CostCurve, model: Any) -> None:
    """Put the costs of a model into the cache."""
    path = cost_file(Backbone.of(model))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"curve": curve.to_dict()})


def generate(**options: Any) -> object:
    """`draftlens.generate`."""
    given = {"target_model": small_models()[0], "inputs": inputs(FAMILIES[0], "text", rows=(0,))}
    return draftlens.generate(**{**given, "max_new_tokens": 3, **options})


def ask(**options: Any) -> object:
    """`Engine.generate`."""
    if "messages" not in options:
        options = {"prompt": "What?", **options}
    return small_engine().generate(**{"max_new_tokens": 3, **options})


def call_back(**options: Any) -> object:
    """`SpeculativeGenerate` under the caller's own `generate`."""
    custom = draftlens.SpeculativeGenerate(**{"draft": small_models()[1], **options})
    given = inputs(FAMILIES[0], "text", rows=(0,))
    return small_models()[0].generate(**given, max_new_tokens=3, custom_generate=custom)


def load(**options: Any) -> object:
    """`draftlens.load`, of a model that is not there."""
    return draftlens.load(**{"target": "/no/such/model", **options})


def over_clips(**options: Any) -> object:
    """`Engine.map`."""
    return list(small_engine().map(**{"clips": [], "prompt": "What?", **options}))


def parse(**options: Any) -> object:
    """`draftlens.parse` of a file that is not there."""
    return list(draftlens.parse(**{"inputs": "/no/such/page.pdf", **options}))


def arguments_of(call: Callable[..., object]) -> list[str]:
    """Names of the arguments of an entry point."""
    further: dict[Any, list[str]] = {
        generate: [*OPTIONS, *names_beside_options(CallOptions)],
        ask: [*OPTIONS, *ARGUMENTS],
        call_back: names_of(draftlens.SpeculativeGenerate),
        load: names_of(draftlens.load),
        over_clips: [*OPTIONS, *names_of(draftlens.Engine.map)],
        parse: [*names_of(draftlens.parse), *names_of(ParseSettings)],
    }
    return sorted(set(further[call] if call in further else names_of(call)))


def names_of(call: Callable[..., object]) -> list[str]:
    """Names of the arguments of a function, but for `self`, the model and what takes any name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(call).parameters.values()
    return [each.name for each in parameters if each.kind in kinds and each.name != "self"]


def odd(name: str, rng: random.Random) -> Any:
    """A value of an argument that does not take minutes."""
    values = [each for each in ODD if not (name in SLOW and _is_slow(name, each))]
    return rng.choice(values)


def _is_slow(name: str, value: Any) -> bool:
    return (value is None or type(value) in (int, bool)) and SLOW[name](value)


def parsed(path: Path) -> object:
    """The pages of a document.

    Raises:
        MediaError: a page could not be read.
    """
    pages = list(draftlens.parse(path, drafter="text-layer", layout="blocks", limits=LIMITS))
    for page in pages:
        if page.error is not None:
            raise draftlens.MediaError(page.error)
    return pages


def options_of(command: str) -> Mapping[str, bool]:
    """The options of a command, and whether each is a flag."""
    group: Any = typer.main.get_command(app)
    found = group.commands.get(command)
    options = (
        {}
        if found is None
        else {each.opts[0]: each for each in found.params if each.opts[0][0] == "-"}
    )
    return {name: bool(getattr(each, "is_flag", False)) for name, each in options.items()}


def command(*words: str) -> object:
    """Call the command line.

    Raises:
        ConfigError: it says that an input is wrong, in its last line.
        RuntimeError: it says anything else.
    """
    # As a terminal's: the command line sets how they write what is no character.
    said, printed = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    before = sys.argv
    sys.argv = ["draftlens", *words]
    status: Any = 0
    try:
        with redirect_stdout(printed), redirect_stderr(said):
            main()
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.argv = before
    text = _written(said).strip()
    if "error: unexpected" in text or "Traceback" in text or status not in (None, 0, 1, 2):
        raise RuntimeError(f"exit status {status}: {text[-500:]}")
    if status:
        raise draftlens.ConfigError(text.splitlines()[-1] if text else "nothing is said")
    return _written(printed)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode()
