"""A small page, and what document models answer for it in the notations of their vendors."""

from __future__ import annotations

from collections.abc import Mapping

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText

PAGE = Box(0, 0, 600, 800)


def _region(order: int, kind: str, *lines: str, level: int = 0, **text: object) -> Region:
    box = Box(60, 60 + 80 * order, 540, 120 + 80 * order)
    made = RegionText("text-layer", lines, **text)  # type: ignore[arg-type]
    return Region(box, kind, order, (made,), level=level)


ROWS = (("Village", "Sacks"), ("Hollen & Sons", "1,240"), ("Upper Marsh", ""))

REGIONS = (
    _region(0, "title", "The mills of the valley", level=1),
    _region(
        1,
        "text",
        "The mill stands by the river and grinds rye for seven vil-",
        "lages. It was built by two brothers who came from the coast",
        "and knew how to cut stone.",
    ),
    _region(2, "list", "• Rye is ground on Mondays.", level=0),
    _region(3, "list", "• Oats wait until the harvest is over.", level=0),
    _region(4, "table", "Village Sacks", "Hollen & Sons 1,240", "Upper Marsh", rows=ROWS),
    _region(5, "formula", "P = \\frac{1}{2} \\rho Q v^2", latex=True),
    _region(
        6,
        "text",
        "The power depends on the water alone, so the brothers raised",
        "the dam twice within ten years.",
    ),
)
"""As a layout and a text layer give them, with a word that is broken at a line's end."""

PARAGRAPHS = (
    "The mill stands by the river and grinds rye for seven villages. It was built by two brothers "
    "who came from the coast and knew how to cut stone.",
    "The power depends on the water alone, so the brothers raised the dam twice within ten years.",
)
ITEMS = ("Rye is ground on Mondays.", "Oats wait until the harvest is over.")
LATEX = "P = \\frac{1}{2} \\rho Q v^2"
HTML = (
    "<table><tr><td>Village</td><td>Sacks</td></tr><tr><td>Hollen &amp; Sons</td><td>1,240</td>"
    "</tr><tr><td>Upper Marsh</td><td></td></tr></table>"
)
GROUPED_HTML = (
    "<table>\n  <thead>\n    <tr>\n      <th>Village</th>\n      <th>Sacks</th>\n    </tr>\n"
    "  </thead>\n  <tbody>\n    <tr>\n      <td>Hollen &amp; Sons</td>\n      <td>1,240</td>\n"
    "    </tr>\n    <tr>\n      <td>Upper Marsh</td>\n      <td></td>\n    </tr>\n  </tbody>\n"
    "</table>"
)
OTSL = "<fcel>Village<fcel>Sacks<nl><fcel>Hollen & Sons<fcel>1,240<nl><fcel>Upper Marsh<ecel><nl>"
OTSL_WITH_HEADS = OTSL.replace("<fcel>Village<fcel>Sacks", "<ched>Village<ched>Sacks")
DOLLARS = f"$$\n{LATEX}\n$$"
BRACKETS = f"\\[\n{LATEX}\n\\]"


def _markdown(table: str, formula: str, mark: str = "#") -> str:
    items = "\n".join(f"- {item}" for item in ITEMS)
    heading = f"{mark} The mills of the valley"
    return "\n\n".join([heading, PARAGRAPHS[0], items, table, formula, PARAGRAPHS[1]])


def _plain(table: str, formula: str) -> str:
    parts = ["The mills of the valley", PARAGRAPHS[0], *[f"• {item}" for item in ITEMS]]
    return "\n".join([*parts, table, formula, PARAGRAPHS[1]])


def _located(mark: str) -> list[str]:
    """Places that a model sees a little differently from the layout."""
    places = [(98 + order % 3, 76 + 100 * order, 901, 149 + 100 * order) for order in range(7)]
    return [mark.format(*place) for place in places]


def _grounding() -> str:
    labels = ("title", "text", "text", "text", "table", "equation", "text")
    items = [f"- {item}" for item in ITEMS]
    texts = ["# The mills of the valley", PARAGRAPHS[0], *items, HTML, BRACKETS, PARAGRAPHS[1]]
    places = _located("[[{}, {}, {}, {}]]")
    parts = zip(labels, places, texts, strict=True)
    return "\n\n".join(f"<|ref|>{a}<|/ref|><|det|>{b}<|/det|>\n{c}" for a, b, c in parts)


def _doctags() -> str:
    a, b, c, d, e, f, g = _located("<loc_{}><loc_{}><loc_{}><loc_{}>")
    return (
        f"<doctag><section_header_level_1>{a}The mills of the valley</section_header_level_1>\n"
        f"<text>{b}{PARAGRAPHS[0]}</text>\n<unordered_list><list_item>{c}{ITEMS[0]}</list_item>\n"
        f"<list_item>{d}{ITEMS[1]}</list_item>\n</unordered_list>\n<otsl>{e}{OTSL_WITH_HEADS}"
        f"</otsl>\n<formula>{f}{LATEX}</formula>\n<text>{g}{PARAGRAPHS[1]}</text>\n</doctag>"
    )


def _doclang() -> str:
    a, b, c, d, e, f, g = _located("".join(['<location value="{}"/>'] * 4))
    table = OTSL_WITH_HEADS.replace("el>", "el/>").replace("ched>", "ched/>").replace("nl>", "nl/>")
    return (
        f"<doclang><heading>{a}The mills of the valley</heading><text>{b}{PARAGRAPHS[0]}</text>"
        f"<list><ldiv/>{c}{ITEMS[0]}<ldiv/>{d}{ITEMS[1]}</list><table>{e}{table}</table>"
        f"<formula>{f}{LATEX}</formula><text>{g}{PARAGRAPHS[1]}</text></doclang>"
    )


def _layout_json() -> str:
    places = _located("[{}, {}, {}, {}]")
    kinds = ["Section-header", "Text", "List-item", "List-item", "Table", "Formula", "Text"]
    texts = [
        "# The mills of the valley",
        PARAGRAPHS[0],
        *[f"- {item}" for item in ITEMS],
        HTML,
        DOLLARS.replace("\n", "\\n"),
        PARAGRAPHS[1],
    ]
    entries = [
        f'{{"bbox": {place}, "category": "{kind}", "text": "{text}"}}'
        for place, kind, text in zip(places, kinds, texts, strict=True)
    ]
    return f"[{', '.join(entries)}]"


FRONT_MATTER = (
    "---\nprimary_language: en\nis_rotation_valid: True\nrotation_correction: 0\nis_table: False\n"
    "is_diagram: False\n---\n"
)

ANSWERS: Mapping[str, str] = {
    "glm_ocr": _markdown(HTML.replace("<table>", '<table border="1">'), DOLLARS),
    "hunyuan_vl": _markdown(HTML, DOLLARS),
    "lighton_ocr": _markdown(GROUPED_HTML, DOLLARS),
    "paddleocr_vl": _plain(OTSL, BRACKETS),
    "deepseek_ocr2": _markdown(HTML, BRACKETS),
    "granite_docling": _doclang(),
    "qianfan_ocr": _markdown(HTML, DOLLARS),
    "mineru": _plain(OTSL, BRACKETS),
    "olmocr": FRONT_MATTER + _markdown(GROUPED_HTML, BRACKETS),
    "minicpm_ocr": _markdown(HTML, DOLLARS),
    "dots_ocr": _layout_json(),
    "got_ocr2": _plain("Village Sacks\nHollen & Sons 1,240\nUpper Marsh", DOLLARS),
    "idefics3": _doctags(),
}
"""By the names of profiles."""

GROUNDED = _grounding()
"""Of DeepSeek-OCR-2 for its prompt with `<|grounding|>`."""
