"""The options of `parse`."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError
from draftlens.core.options import real, shown, switch, wrong
from draftlens.documents.reading.formats import make_format
from draftlens.documents.reading.open import PageNumbers

STAGES = ("page", "regions")
"""What the target reads: the page, or crops of its regions."""

ON_LOOP = ("stop", "ignore")
"""Whether an answer that repeats itself endlessly is stopped."""

METHODS = ("hsd", "lookup", "plain")
"""With drafts, with draft tokens from the prompt and the answer, or plain decoding."""

OF_READING = (
    "pages",
    "drafter",
    "layout",
    "ocr_languages",
    "running_heads",
    "pictures",
    "password",
    "form",
    "ahead",
)
"""Settings that have a meaning without a target."""


@dataclass(frozen=True)
class ParseSettings:
    """How documents are parsed.

    Args:
        pages: such as `1-3,7`, from 1; None for all.
        drafter: `auto`, `none`, or names of readers (`documents.reading.readers.READERS`), joined
            by commas or as a sequence of names or objects; or a JSON file or a folder of them by
            Docling, MinerU or PP-StructureV3 (`documents.reading.stored`).
        layout: `auto`, the name of a layout (`documents.reading.layouts.LAYOUTS`), or an object.
        ocr_languages: of pictures, names of tesseract's data, joined by `+`, such as `deu+eng`;
            None for those that are installed of the script of a file's first page, or for what
            RapidOCR knows where tesseract is not installed.
        running_heads: whether running heads and feet and page numbers are kept; only without a
            target, whose prompt decides.
        pictures: whether the pictures of a page are cut out without a target, and named in its
            Markdown.
        stages: one of `STAGES`. With `regions` the crops' answers are joined without a pass over
            the page, which is approximate.
        tolerance: τ of the page, or of the crops alone. 1 keeps the tokens of stock `generate`;
            below 1 a draft token may replace a likelier one, and the page is approximate.
        batch: pages that are answered at once.
        dpi: pixels per inch of the target's picture; None for those of its profile.
        password: of encrypted files.
        page_timeout: seconds after which a page's answer is cut; None for never.
        on_loop: one of `ON_LOOP`.
        prompt, region_prompt: of a page and of a crop; None for those of the target's profile.
        form: the format of the target's answers (`documents.reading.formats.FORMATS`); None for
            that of its profile.
        max_new_tokens: of a page; None for those of the target's profile.
        method: one of `METHODS`.
        verify: whether the tokens are compared with stock `generate`.
        ahead: whether the next page is rendered and read while a page is answered.

    Raises:
        ConfigError: a value is out of range.

    Example:

        >>> ParseSettings(pages="1-3").on_loop
        'stop'
    """

    known_stages: ClassVar[tuple[str, ...]] = STAGES

    pages: str | None = None
    drafter: Any = "auto"
    layout: Any = "auto"
    ocr_languages: str | None = None
    running_heads: bool = False
    pictures: bool = False
    stages: str = "page"
    tolerance: float = 1.0
    batch: int = 1
    dpi: float | None = None
    password: str | None = None
    page_timeout: float | None = None
    on_loop: str = "stop"
    prompt: str | None = None
    region_prompt: str | None = None
    form: Any = None
    max_new_tokens: int | None = None
    method: str = "hsd"
    verify: bool = False
    ahead: bool = True

    def __post_init__(self) -> None:
        PageNumbers.parse(self.pages)
        _check_choice("stages", self.stages, self.known_stages)
        _check_choice("on_loop", self.on_loop, ON_LOOP)
        _check_choice("method", self.method, METHODS)
        real(0, 1, above=True)("tolerance", self.tolerance)
        _check_whole("batch", self.batch)
        if self.max_new_tokens is not None:
            _check_whole("max_new_tokens", self.max_new_tokens)
        for name in ("dpi", "page_timeout"):
            value = getattr(self, name)
            if value is not None:
                real(0, above=True)(name, value)
        for name in ("ocr_languages", "password", "prompt", "region_prompt"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise wrong(name, value, "a text, or None")
        for name in ("running_heads", "pictures", "verify", "ahead"):
            switch(name, getattr(self, name))
        languages, readers = self.ocr_languages, self.drafter
        if languages is not None and not re.fullmatch(r"\w[\w/]*(\+\w[\w/]*)*", languages):
            raise wrong("ocr_languages", languages, "names of tesseract's data, such as deu+eng")
        named = readers if isinstance(readers, str | list | tuple) else ()
        if languages and named != "auto" and "tesseract" not in named:
            raise ConfigError("ocr_languages needs the reader tesseract among those of drafter")
        if self.form is not None:
            make_format(self.form)
        if self.method == "plain" and self.stages != "page":
            raise ConfigError("plain decoding has no use for crops: leave out stages")

    def check_without_target(self) -> None:
        """Raise ConfigError if a setting about a target's answers differs from its default, or no
        reader is left."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in OF_READING and value != item.default:
                raise needs_target(item.name, value)
        if self.drafter == "none" or self.stored_results is not None:
            raise needs_target("drafter", str(self.drafter))

    def check_with_target(self) -> None:
        """Raise ConfigError if a setting differs from its default that a target has no use for."""
        for name in ("running_heads", "pictures"):
            if getattr(self, name):
                raise ConfigError(
                    f"{name} works without a target alone; its prompt says what it writes"
                )

    @property
    def tolerance_of_crops(self) -> float:
        """τ of crops."""
        return self.tolerance

    @property
    def stored_results(self) -> Path | None:
        """The file or folder that `drafter` names; None for readers."""
        readers = self.drafter
        if isinstance(readers, Path):
            return readers
        is_path = isinstance(readers, str) and (readers.endswith(".json") or "/" in readers)
        return Path(readers) if is_path else None

    @property
    def page_numbers(self) -> PageNumbers:
        return PageNumbers.parse(self.pages)

    def of_answers(self) -> dict[str, Any]:
        """The settings on which answers depend, as JSON values."""
        values = asdict(self)
        for name in ("pages", "password", "verify", "ahead", "page_timeout"):
            del values[name]
        for name in ("drafter", "layout", "form"):
            values[name] = repr(values[name])
        # Pages of folders that were begun before these settings keep their version.
        for name in ("ocr_languages", "running_heads", "pictures"):
            if not values[name]:
                del values[name]
        return values


def needs_target(option: str, value: Any) -> ConfigError:
    return ConfigError(
        f"{option}={value!r} needs a document model: name one with --target (target=... in "
        f"Python), or leave out {option}"
    )


def _check_choice(option: str, value: Any, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise wrong(option, value, f"one of {', '.join(known)}")


def _check_whole(option: str, value: Any) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{option} must be a whole number of at least 1, not {shown(value)}")
