"""Pages of real PDFs: the text layer is what the target says, an OCR program reads the picture."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from documents_parts.pages import Page

DPI = 150


def real_pages(files: Sequence[Path], tesseract: bool) -> list[tuple[str, Page, list[str]]]:
    """The first page of each file: a name, the truth, and what was read.

    Args:
        files: born-digital PDFs.
        tesseract: whether tesseract reads the picture; otherwise the draft is the text layer
            itself, as printed.
    """
    return [_real_page(file, tesseract) for file in files]


def _real_page(file: Path, tesseract: bool) -> tuple[str, Page, list[str]]:
    import pypdfium2

    from draftlens.draft.forms import forms_of

    document = pypdfium2.PdfDocument(file)
    layer = document[0].get_textpage().get_text_bounded()
    truth = forms_of(layer)[0]
    if not tesseract:
        return file.stem, Page((truth,), (layer,)), [layer]
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        document[0].render(scale=DPI / 72).to_pil().save(picture)
        command = ["tesseract", str(picture), "-", "--psm", "1"]
        read = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    blocks = [block for block in read.split("\n\n") if block.strip()]
    return file.stem, Page((truth,), (layer,)), blocks
