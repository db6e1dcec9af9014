"""What real readers make of a page: pdfium's text layer and tesseract.

A page is either printed here (reportlab), and then its Markdown is known, or the first page of a
born-digital PDF, of which the text layer is taken for what the target says.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from documents_parts.pages import Page
from draftlens.documents.reading.open import open_document
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.methods.hsd.reference_text import variants_of


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


def read_by(reader: str, file: Path) -> list[str]:
    """What a reader of the library finds on the first page, block by block.

    Args:
        reader: a name of `draftlens.documents.reading.readers.READERS`.
        file: a PDF.
    """
    document = open_document(file)
    try:
        regions = StandardPipeline(reader, "blocks").read(document.page(1))
    finally:
        document.close()
    return [region.texts[0].text for region in regions if region.texts]


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
            readings["printed, text layer"].append((page, read_by("text-layer", file)))
            readings["printed, tesseract"].append((page, read_by("tesseract", file)))
    for file in files:
        truth = "\n\n".join(variants_of(text)[0] for text in read_by("text-layer", file))
        page = Page((truth,), (truth,))
        readings["real PDF, tesseract"].append((page, read_by("tesseract", file)))
    return {kind: read for kind, read in readings.items() if read}
