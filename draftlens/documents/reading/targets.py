"""Prompts and formats of known document models."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.options import suggestion
from draftlens.documents.reading.formats import DraftFormat, LearningFormat, make_format
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
        sample: a short answer with a table or a formula, whose notation the drafts of the first
            page have; later ones follow the answers. Empty for the likeliest notation of `form`.
        prompt_first: whether the prompt stands before the picture.
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
    sample: str = ""
    prompt_first: bool = False
    dpi: float = 144.0
    longest_side: int = 2048
    max_pixels: int = 3_000_000
    max_new_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("dpi", "longest_side", "max_pixels", "max_new_tokens"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")

    def make_form(self) -> DraftFormat:
        """The format of its answers, in the notation of `sample`. Raises ConfigError for an unknown
        one."""
        form = make_format(self.form)
        return form.after(self.sample) if isinstance(form, LearningFormat) and self.sample else form

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

_OLMOCR_PAGE = (
    "Attached is one page of a document that you must process. Just return the plain text "
    "representation of this document as if you were reading it naturally. Convert equations to "
    "LateX and tables to HTML.\nIf there are any figures or charts, label them with the following "
    "markdown syntax ![Alt text describing the contents of the figure]"
    "(page_startx_starty_width_height.png)\nReturn your output as markdown, with a front matter "
    "section on top specifying values for the primary_language, is_rotation_valid, "
    "rotation_correction, is_table, and is_diagram parameters."
)

_BORDERED = (
    '<table border="1"><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr>'
    "<tr><td>e</td><td>f</td></tr></table>"
)
_INDENTED = (
    "<table>\n  <thead>\n    <tr>\n      <th>a</th>\n      <th>b</th>\n    </tr>\n  </thead>\n"
    "  <tbody>\n    <tr>\n      <td>c</td>\n      <td>d</td>\n    </tr>\n    <tr>\n"
    "      <td>e</td>\n      <td>f</td>\n    </tr>\n  </tbody>\n</table>"
)
_BRACKETED = "\\[\na\n\\]"

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
                "table": "把图中的表格解析为HTML。",
                "formula": "识别图片中的公式，用LaTeX格式表示。",
            },
            dpi=200.0,
            max_pixels=2048 * 2048,
            max_new_tokens=16_384,
        ),
        "lighton_ocr": TargetProfile("", "", dpi=200.0, longest_side=1540),
        "got_ocr2": TargetProfile(
            "OCR with format:", "OCR:", form="text", dpi=150.0, longest_side=1024
        ),
        "paddleocr_vl": TargetProfile(
            "OCR:", "OCR:", _RECOGNITION, form="text-otsl", dpi=150.0, max_pixels=2_822_400
        ),
        "glm_ocr": TargetProfile(
            "Text Recognition:",
            "Text Recognition:",
            _RECOGNITION,
            sample=_BORDERED,
            dpi=200.0,
            longest_side=4096,
            max_pixels=6144 * 28 * 28,
            max_new_tokens=8192,
        ),
        "deepseek_ocr2": TargetProfile(
            "Convert the document to markdown.", "Free OCR.", sample=_BRACKETED
        ),
        "qianfan_ocr": TargetProfile(
            "Parse this document to Markdown.",
            "OCR the text in the image.",
            _GENERAL_KINDS,
            dpi=200.0,
            max_pixels=12 * 448 * 448,
            max_new_tokens=8192,
        ),
        "minicpm_ocr": TargetProfile(
            "Text Recognition:",
            "Text Recognition:",
            _RECOGNITION,
            dpi=200.0,
            max_pixels=9 * 448 * 448,
            max_new_tokens=8192,
        ),
        "granite_docling": TargetProfile(
            "<doclang>", "<doclang>", form="doclang", max_new_tokens=8192
        ),
        "idefics3": TargetProfile(
            "Convert this page to docling.",
            "Convert this page to docling.",
            {
                "table": "Convert table to OTSL.",
                "formula": "Convert formula to LaTeX.",
                "code": "Convert code to text.",
            },
            form="doctags",
            max_new_tokens=8192,
        ),
        "qwen2_vl": GENERAL,
        "qwen2_5_vl": GENERAL,
        "qwen3_vl": GENERAL,
    }
)
"""Profiles by `model_type`. The sources are in docs/parse.md."""

NAMED: Mapping[str, TargetProfile] = MappingProxyType(
    {
        "mineru": TargetProfile(
            "\nText Recognition:",
            "\nText Recognition:",
            {kind: f"\n{prompt}" for kind, prompt in _RECOGNITION.items()},
            form="text-otsl",
            dpi=200.0,
            max_pixels=1_605_632,
            max_new_tokens=8192,
        ),
        "olmocr": TargetProfile(
            _OLMOCR_PAGE,
            GENERAL_REGION,
            _GENERAL_KINDS,
            form="markdown-yaml",
            sample=_INDENTED,
            prompt_first=True,
            dpi=200.0,
            longest_side=1288,
            max_new_tokens=8000,
        ),
    }
)
"""Profiles of models that have the `model_type` of a general one, by how their names begin."""

_NAME = re.compile(r"[A-Za-z0-9]+")


def profile_of(config: Any, name: str = "") -> TargetProfile:
    """The profile of a model: by its architecture, or by its name where the architecture is that of
    a general model, or else a general one.

    Args:
        config: its configuration.
        name: the folder or Hub id that it was loaded from.

    Example:

        >>> profile_of(None, "allenai/olmOCR-2-7B-1025") is NAMED["olmocr"]
        True
    """
    names = (name, str(getattr(config, "_name_or_path", "")))
    return profile_of_type(str(getattr(config, "model_type", "")), *names)


def profile_of_type(model_type: str, *names: str) -> TargetProfile:
    known = PROFILES.get(model_type, GENERAL)
    if known is not GENERAL:
        return known
    words = [word.lower() for each in names for part in _own(each) for word in _NAME.findall(part)]
    found = (profile for begin, profile in NAMED.items() if _begins_one(words, begin))
    return next(found, GENERAL)


def _own(name: str) -> list[str]:
    """The parts of a path that name the model: the last one, and those of the Hub's cache."""
    parts = [part for part in re.split(r"[/\\]", name) if part]
    return parts[-1:] + [part for part in parts if part.startswith("models--")]


def _begins_one(words: Sequence[str], begin: str) -> bool:
    return any(word.startswith(begin) for word in words)


def named_profile(name: str) -> TargetProfile:
    """A profile by its key in `PROFILES` or `NAMED`. Raises ConfigError for an unknown one."""
    profiles = {**PROFILES, **NAMED}
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise ConfigError(f"unknown profile {name!r}{suggestion(name, profiles)}; known: {known}")
    return profiles[name]
