"""PDF files in requests: their pages are pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

import draftlens
from draftlens.documents.reading import pdf
from draftlens.documents.reading.pdf_pages import LONG_SIDE, PdfPages
from draftlens.media import Limits
from tests import pdfs
from tests.e2e.serve.running import NEW, PICTURE, Running, ask, image, said, text
from tests.e2e.serve.running import pdf as part

pytest.importorskip("pypdfium2")

WORDS = text("Describe the pages.")


def no_pdf(path: Path) -> Path:
    path.write_bytes(b"no PDF")
    return path


def pages(path: Path, most: int = 9, **limits: Any) -> Any:
    return PdfPages(str(path), Limits(**limits), most).answer()


def test_pages_are_pictures(
    client: openai.OpenAI, engine: draftlens.Engine, tmp_path: Path
) -> None:
    """The answer is that of stock `generate` to the pictures, in the order of the request."""
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.columns, pdfs.rotated(90)])
    messages = said(image(PICTURE), part(path.read_bytes()), WORDS)
    answer = ask(client, "picture", messages=messages).choices[0].message.content
    pictures = [{"type": "image", "image": picture} for picture in pages(path)]
    assert pictures[0]["image"].size == (625, 834)  # 300 x 400 points
    given = engine.read(messages=said(image(PICTURE), *pictures, WORDS)).target
    ids = engine.target.backbone.model.generate(**given, do_sample=False, max_new_tokens=NEW)
    tokens = ids[0, given["input_ids"].shape[1] :]
    assert answer == engine.target.processor.tokenizer.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda path: pdfs.encrypted(path, "secret"), "needs a password"),
        (no_pdf, "damaged"),
        (pdfs.without_pages, "damaged"),
        (lambda path: pdfs.write(path, [pdfs.blank] * 17), "has 17 pages, and at most 16"),
        (lambda path: pdfs.stating(path, 3), "damaged"),
    ],
)
def test_files_that_are_refused(
    server: Running, tmp_path: Path, make: Callable[[Path], Path], cause: str
) -> None:
    path = tmp_path / "a.pdf"
    make(path)
    response = server.post(json={"messages": said(WORDS, part(path.read_bytes()))})
    assert response.status_code == 422, response.text
    error = response.json()["error"]
    assert error["param"] == "messages.0.content.1"
    assert cause in error["message"]
    for word in ("0x", "/tmp", "pdfium", "draftlens-", "Limits"):
        assert word not in error["message"]


def test_pages_count_as_pictures(server: Running, tmp_path: Path) -> None:
    content = pdfs.write(tmp_path / "a.pdf", [pdfs.blank] * 8).read_bytes()
    body = {"messages": said(part(content), part(content), image(PICTURE)), "max_tokens": 1}
    error = server.post(json=body).json()["error"]
    assert error["message"].endswith("the PDF file has 8 pages, and at most 7 are taken")
    body = {"messages": said(*[part(b"")] * 17)}
    assert server.post(json=body).json()["error"]["message"] == "17 pictures are more than 16"


def test_limits_bound_the_pictures(tmp_path: Path) -> None:
    path = pdfs.write(tmp_path / "a.pdf", [pdfs.blank] * 2, size=(14_000.0, 30.0))
    assert [picture.size for picture in pages(path)] == [(LONG_SIDE, 4)] * 2
    assert pages(path, max_output_bytes=3 * 4 * LONG_SIDE + 1) == "has too many pixels"
    with pytest.raises(draftlens.MediaError, match="max_pixels"):
        pages(path, max_pixels=100)


def test_without_the_library(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    response = server.post(json={"messages": said(part(b"%PDF"))})
    assert response.status_code == 400
    message = "PDF files need pypdfium2: pip install 'draftlens[documents]'"
    assert response.json()["error"]["message"] == message
