"""Which files of the package one request runs through.

`PYTHONPATH=tests python tests/reading_lists.py` prints their numbers, their lines and their lines
of code; with `--files` their names, and with `--write` it writes the numbers to
`reading_lists.json`.

A file counts if one of its functions runs between a call and its result, in this process, on any
thread. All modules are imported before, so what runs at their import does not count.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from time import sleep
from types import FrameType
from typing import Any

import pdfs

import draftlens

ROOT = Path(draftlens.__file__).parent
CLIP = str(ROOT / "embedded" / "clips" / "shapes.mp4")
NUMBERS = Path(__file__).with_name("reading_lists.json")
"""Files and lines of code of each request, the latter rounded up. A number may fall; one that rises
says in its commit what it buys."""

ROUNDED = 50

NEW = 24
ANSWERS: dict[str, dict[str, Any]] = {
    "clip, plain": {"method": "plain"},
    "default": {},
    "speculative": {"method": "speculative"},
    "specvlm": {"method": "specvlm"},
    "tabed": {"method": "tabed"},
    "lookup": {"method": "lookup"},
    "hsd": {"method": "hsd", "references": ["The video has one shot and no cut."]},
    "spava, one process": {"method": "plain", "prefill": "spava"},
    "parallelvlm, target's side": {"method": "parallelvlm"},
}

Files = list[str]


class Tracer:
    """Notes the files of the package whose functions run while a call is traced, on any thread
    that begins after this one."""

    def __init__(self) -> None:
        self._files: set[str] | None = None
        self._prefix = f"{ROOT}/"
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self._files is None:
            return
        name = frame.f_code.co_filename
        if name.startswith(self._prefix) and frame.f_code.co_name != "<module>":
            self._files.add(name[len(self._prefix) :])

    def files_of(self, call: Callable[[], Any]) -> Files:
        self._files = set()
        sys.setprofile(self._note)  # this thread is slow only while it is traced
        try:
            call()
            return sorted(self._files)
        finally:
            sys.setprofile(None)
            self._files = None


@cache  # most files are on most lists
def code_lines(path: Path) -> int:
    """Lines without blank ones, docstrings and comments."""
    text = path.read_text()
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            docstrings |= set(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return sum(
        number not in docstrings and bool(line.strip()) and not line.lstrip().startswith("#")
        for number, line in enumerate(text.splitlines(), 1)
    )


def of_answers(tracer: Tracer, engine: draftlens.Engine) -> Iterator[tuple[str, Files]]:
    """Answers of the embedded pair by each method and prefill."""
    text = engine.read("Describe the video.").target
    model = engine.target.backbone.model
    options: dict[str, Any] = {"method": "plain", "do_sample": False, "max_new_tokens": NEW}
    yield "text, plain", tracer.files_of(lambda: draftlens.generate(model, text, **options))
    for name, further in ANSWERS.items():
        options = {"video": CLIP, "max_new_tokens": NEW, **further}
        yield name, tracer.files_of(partial(engine.generate, "Describe the video.", **options))


def of_chat(tracer: Tracer, engine: draftlens.Engine) -> Files:
    chat = engine.chat(video=CLIP)
    chat.ask("What happens?", max_new_tokens=NEW)
    return tracer.files_of(lambda: chat.ask("What comes last?", max_new_tokens=NEW))


def of_server(tracer: Tracer, engine: draftlens.Engine) -> Files:
    """A request without media to a server that has answered one before."""
    from fastapi.testclient import TestClient

    from draftlens.serve.app import create_app

    message = {"role": "user", "content": "Describe the image."}
    body = {"messages": [message], "max_tokens": NEW}

    def ask() -> None:
        response = client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text

    with TestClient(create_app(engine), base_url="http://127.0.0.1") as client:
        while client.get("/health").status_code != 200:
            sleep(0.1)
        ask()
        return tracer.files_of(ask)


def of_page(tracer: Tracer, engine: draftlens.Engine | None) -> Files:
    """A page of a PDF file, by the pipeline alone or with a target."""
    with tempfile.TemporaryDirectory() as folder:
        page = pdfs.write(
            Path(folder) / "page.pdf", [lambda canvas: pdfs.lines(canvas, 30, 40, pdfs.LEFT)]
        )
        settings = {} if engine is None else {"engine": engine}
        return tracer.files_of(lambda: list(draftlens.parse(page, **settings)))


def reading_lists() -> dict[str, Files]:
    """The files of each request, by its name."""
    tracer = Tracer()
    for module in pkgutil.walk_packages(draftlens.__path__, "draftlens."):
        if not module.name.endswith(("__main__", ".ray")):
            importlib.import_module(module.name)
    lists = {"page of a PDF file": of_page(tracer, None)}
    engine = draftlens.load(device="cpu", calibrate=False)
    lists |= of_answers(tracer, engine)
    lists["server"] = of_server(tracer, engine)
    lists["chat, second turn"] = of_chat(tracer, engine)
    plain = draftlens.Engine(engine.target, method="plain")
    lists["page of a PDF file, with a target"] = of_page(tracer, plain)
    return lists


def sizes_of(lists: dict[str, Files]) -> dict[str, dict[str, int]]:
    """Files and lines of code of each request."""
    sizes = {}
    for name, files in lists.items():
        code = sum(code_lines(ROOT / file) for file in files)
        sizes[name] = {"files": len(files), "code": code + -code % ROUNDED}
    return sizes


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:  # what is known of this machine changes the way
        os.environ["XDG_CACHE_HOME"] = cache
        lists = reading_lists()
    if "--write" in sys.argv:
        NUMBERS.write_text(json.dumps(sizes_of(lists), indent=1) + "\n")
        return
    if "--files" in sys.argv:
        print(json.dumps(lists, indent=1))
        return
    for name, files in lists.items():
        paths = [ROOT / file for file in files]
        num_lines = sum(len(path.read_text().splitlines()) for path in paths)
        print(f"{name:35}{len(files):5}{num_lines:8}{sum(map(code_lines, paths)):8}")


if __name__ == "__main__":
    main()
