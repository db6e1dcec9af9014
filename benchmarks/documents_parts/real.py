"""What real readers make of a page: pdfium's text layer and tesseract.

A page is either printed here (reportlab), and then its Markdown is known, or the first page of a
born-digital PDF, of which the text layer is taken for what the target says.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from documents_parts.pages import Page
from draftlens.draft.forms import forms_of

DPI = 150


def print_page(page: Page, file: Path) -> None:
    """Print the regions of a page, one below the other, as a PDF."""
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.platypus import Paragraph, Preformatted, SimpleDocTemplate, Spacer

    styles = getSampleStyleSheet()
    story = []
    for block, region in zip(page.blocks, page.regions, strict=True):
        if block.startswith("```"):
            story.append(Preformatted(region, styles["Code"]))
        else:
            name = "Heading2" if block.startswith("#") else "BodyText"
            story.append(Paragraph(escape(region), styles[name]))
        story.append(Spacer(1, 6))
    SimpleDocTemplate(str(file), pagesize=A4).build(story)


def text_layer(file: Path) -> str:
    """The text layer of the first page."""
    import pypdfium2

    text: str = pypdfium2.PdfDocument(file)[0].get_textpage().get_text_bounded()
    return text


def read_by_tesseract(file: Path) -> list[str]:
    """The blocks that tesseract finds on the first page."""
    import pypdfium2

    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        pypdfium2.PdfDocument(file)[0].render(scale=DPI / 72).to_pil().save(picture)
        environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
        text = subprocess.run(
            ["tesseract", str(picture), "-", "--psm", "1"],
            check=True,
            capture_output=True,
            text=True,
            env=environment,
        ).stdout
    return [block for block in text.split("\n\n") if block.strip()]


def real_readings(pages: list[Page], files: list[Path]) -> dict[str, list[tuple[Page, list[str]]]]:
    """Pages with what was read of them, by the kind of page and reader."""
    readings: dict[str, list[tuple[Page, list[str]]]] = {
        "printed, text layer": [],
        "printed, tesseract": [],
        "real PDF, tesseract": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, page in enumerate(pages):
            file = Path(folder) / f"{number}.pdf"
            print_page(page, file)
            readings["printed, text layer"].append((page, [text_layer(file)]))
            readings["printed, tesseract"].append((page, read_by_tesseract(file)))
    for file in files:
        truth = forms_of(text_layer(file))[0]
        page = Page((truth,), (truth,))
        readings["real PDF, tesseract"].append((page, read_by_tesseract(file)))
    return {kind: read for kind, read in readings.items() if read}
