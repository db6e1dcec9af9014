"""Prompts and formats of known document models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box

GENERAL_PAGE = (
    "Convert this page to Markdown in its reading order. Write tables as HTML and formulas as "
    "LaTeX. Leave out running heads, running feet and page numbers. Write nothing else."
)
GENERAL_REGION = "Write down the text of this image in Markdown. Write nothing else."
GENERAL_TABLE = "Write down this table as HTML. Write nothing else."
GENERAL_FORMULA = "Write down this formula as LaTeX. Write nothing else."


@dataclass(frozen=True)
class TargetProfile:
    """Prompts and limits of a target.

    Args:
        page_prompt: of a page; may be empty.
        region_prompt: of a region.
        region_prompts: other prompts for some kinds of regions.
        form: name of the format of its answers (`documents.reading.formats.FORMATS`).
        dpi: pixels per inch of the pictures that it was trained on.
        longest_side: most pixels of a picture's longer side.
        max_pixels: most pixels of a picture.
        max_new_tokens: of a page's answer.

    Raises:
        ConfigError: a number is not positive.
    """

    page_prompt: str = GENERAL_PAGE
    region_prompt: str = GENERAL_REGION
    region_prompts: Mapping[str, str] = field(default_factory=dict)
    form: str = "markdown-html"
    dpi: float = 144.0
    longest_side: int = 2048
    max_pixels: int = 3_000_000
    max_new_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("dpi", "longest_side", "max_pixels", "max_new_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")

    def prompt_for(self, kind: str) -> str:
        return self.region_prompts.get(kind, self.region_prompt)

    def dpi_of(self, page: Box) -> float:
        """Pixels per inch for a page, within the bounds on its picture."""
        width = page.width / POINTS_PER_INCH
        height = page.height / POINTS_PER_INCH
        by_side = self.longest_side / max(width, height)
        by_area: float = (self.max_pixels / (width * height)) ** 0.5
        return min(self.dpi, by_side, by_area)


_DOTS_PAGE = """\
Please output the layout information from the PDF image, including each layout element's bbox, \
its category, and the corresponding text content within the bbox.

1. Bbox format: [x1, y1, x2, y2]

2. Layout Categories: The possible categories are ['Caption', 'Footnote', 'Formula', 'List-item', \
'Page-footer', 'Page-header', 'Picture', 'Section-header', 'Table', 'Text', 'Title'].

3. Text Extraction & Formatting Rules:
    - Picture: For the 'Picture' category, the text field should be omitted.
    - Formula: Format its text as LaTeX.
    - Table: Format its text as HTML.
    - All Others (Text, Title, etc.): Format their text as Markdown.

4. Constraints:
    - The output text must be the original text from the image, with no translation.
    - All layout elements must be sorted according to human reading order.

5. Final Output: The entire output must be a single JSON object.
"""

_HUNYUAN_PAGE = (
    "提取文档图片中正文的所有信息用markdown格式表示，其中页眉、页脚部分忽略，"
    "表格用html格式表达，文档中公式用latex格式表示，按照阅读顺序组织进行解析。"
)

_GENERAL_KINDS: Mapping[str, str] = MappingProxyType(
    {"table": GENERAL_TABLE, "formula": GENERAL_FORMULA}
)
_RECOGNITION: Mapping[str, str] = MappingProxyType(
    {"table": "Table Recognition:", "formula": "Formula Recognition:"}
)

GENERAL = TargetProfile(region_prompts=_GENERAL_KINDS)
"""For unknown models that follow instructions."""

PROFILES: Mapping[str, TargetProfile] = MappingProxyType(
    {
        "dots_ocr": TargetProfile(
            _DOTS_PAGE,
            "Extract the text content from this image.",
            form="layout-json",
            dpi=200.0,
            longest_side=4096,
            max_pixels=11_289_600,
            max_new_tokens=24_000,
        ),
        "hunyuan_vl": TargetProfile(
            _HUNYUAN_PAGE,
            "提取图中的文字。",
            {
                "table": "把图中的表格解析为 HTML。",
                "formula": "识别图片中的公式，用 LaTeX 格式表示。",
            },
            dpi=200.0,
            max_new_tokens=16_384,
        ),
        "lighton_ocr": TargetProfile(
            "", "", form="markdown-html", dpi=200.0, longest_side=1540, max_new_tokens=4096
        ),
        "got_ocr2": TargetProfile(
            "OCR with format:", "OCR:", form="text", dpi=150.0, longest_side=1024
        ),
        "paddleocr_vl": TargetProfile("OCR:", "OCR:", _RECOGNITION, form="text", dpi=150.0),
        "glm_ocr": TargetProfile(
            "Text Recognition:",
            "Text Recognition:",
            _RECOGNITION,
            dpi=200.0,
            max_new_tokens=8192,
        ),
        "deepseek_ocr2": TargetProfile(
            "Convert the document to markdown.", "Free OCR.", dpi=144.0, longest_side=1280
        ),
        "qwen2_vl": GENERAL,
        "qwen2_5_vl": GENERAL,
        "qwen3_vl": GENERAL,
        "idefics3": TargetProfile(
            "Convert this page to docling.",
            "Convert this page to docling.",
            {"table": "Convert this table to OTSL.", "formula": "Convert formula to LaTeX."},
            form="doctags",
            dpi=144.0,
            max_new_tokens=8192,
        ),
    }
)
"""Profiles by `model_type`, from the model cards."""


def profile_of(config: Any) -> TargetProfile:
    """The profile of a configuration's `model_type`, or `GENERAL`."""
    return profile_of_type(str(getattr(config, "model_type", "")))


def profile_of_type(model_type: str) -> TargetProfile:
    return PROFILES.get(model_type, GENERAL)
