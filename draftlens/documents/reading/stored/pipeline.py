"""A pipeline whose texts are those of another one, from its JSON files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from types import MappingProxyType

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json
from draftlens.documents.reading.page import Page, Region
from draftlens.documents.reading.pipeline import LayoutPipeline, Phase, untimed
from draftlens.documents.reading.stored.docling import pages_of_docling
from draftlens.documents.reading.stored.mineru import pages_of_content_list, pages_of_middle
from draftlens.documents.reading.stored.paddle import BLOCKS, pages_of_paddle
from draftlens.documents.reading.stored.values import (
    MOST_REGIONS,
    StoredPage,
    Value,
    WrongValueError,
)
from draftlens.media.limits import refusal

SUFFIX = ".json"

MOST_BYTES = 2**28
"""Of a file, 256 MiB."""

_SAME = 0.5
"""Share of the smaller of two regions in the other one from which they overlap."""

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "Docling": "{stem}.json",
        "MinerU, by lines": "{stem}_middle.json",
        "MinerU": "{stem}_content_list.json",
        "PP-StructureV3": "{stem}_res.json",
    }
)
"""Names of files in a folder, the most exact first."""

_PAGE = re.compile(r"(.*)_\d{1,6}_res\.json")
_PAGES_OF = "{stem}_*_res.json"


class StoredPipeline:
    """Reads pages from the JSON files of Docling, MinerU or PP-StructureV3.

    Where a page is missing, its regions overlap, or the file is damaged, another pipeline reads the
    page. The texts are drafts: no answer depends on them.

    Args:
        path: the file of one document, or a folder with those of many, which bear the names that
            their pipelines have given them.
        otherwise: reads the other pages.

    Raises:
        ConfigError: there is no such file or folder.
    """

    def __init__(self, path: Path, otherwise: LayoutPipeline) -> None:
        if not path.exists():
            raise ConfigError(f"drafter: there is no file or folder {path}")
        self._path = path
        self._otherwise = otherwise
        self._source = ""
        self._pages: dict[int, StoredPage] = {}
        self._note: str | None = None

    def read(self, page: Page, phase: Phase = untimed) -> Sequence[Region]:
        with phase("read"):
            if page.source != self._source:
                self._pages = self._pages_of(page.source)
                self._source = page.source
            stored = self._pages.get(page.number)
            regions = [] if stored is None else stored.on(page.box)
        if any(_overlap(*both) for both in combinations(regions, 2)):
            cause = f"regions overlap in {self._path}: the text layer is its draft"
            self._note = f"{page.source}, page {page.number}: {cause}"
            regions = []
        return regions or self._otherwise.read(page, phase)

    def take_note(self) -> str | None:
        """Why the last pages were read otherwise, as a sentence, once."""
        note, self._note = self._note, None
        return note

    def _pages_of(self, source: str) -> dict[int, StoredPage]:
        """The pages of a document; none if its files are missing or damaged."""
        files = self._files(source)
        if not files:
            self._note = f"{self._path} holds nothing about {source}: the text layer is its draft"
        pages: dict[int, StoredPage] = {}
        for file in files:
            try:
                pages |= read_pages(file)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                self._note = f"{refusal(str(file), f'{reason}')}; the text layer is the draft"
                return {}
        return pages

    def _files(self, source: str) -> list[Path]:
        if not self._path.is_dir():
            return [self._path] if self._source in ("", source) else []
        stem = Path(source).stem
        for name in _NAMES.values():
            if files := self._by_name.get(name.format(stem=stem)):
                return files[:1]
        return self._by_name.get(_PAGES_OF.format(stem=stem), [])

    @cached_property
    def _by_name(self) -> Mapping[str, list[Path]]:
        """The files of the folder by name, and the pages of a document by `_PAGES_OF`."""
        found: dict[str, list[Path]] = {}
        for file in sorted(self._path.rglob(f"*{SUFFIX}")):
            found.setdefault(file.name, []).append(file)
            if page := _PAGE.fullmatch(file.name):
                found.setdefault(_PAGES_OF.format(stem=page[1]), []).append(file)
        return found


def _overlap(region: Region, other: Region) -> bool:
    """Whether two regions with texts hold the same part of a page. Parts of a list or table that
    have only its box, and words in figures, do not count."""
    kinds = {region.kind, other.kind}
    if not (region.texts and other.texts) or "figure" in kinds or region.box == other.box:
        return False
    smaller, larger = sorted((region.box, other.box), key=lambda box: box.area)
    return smaller.share_in(larger) > _SAME


def read_pages(file: Path) -> dict[int, StoredPage]:
    """The pages of a JSON file of Docling, MinerU or PP-StructureV3, by their numbers.

    Raises:
        ValueError: the file is damaged or of another form; the text is a clause with the place.
        OSError: it cannot be read.
    """
    if file.stat().st_size > MOST_BYTES:
        raise WrongValueError(f"it has more than {MOST_BYTES} bytes")
    try:
        whole = Value(parse_json(file.read_bytes()))
    except ValueError as error:
        raise WrongValueError(f"it is no JSON: {error}") from error
    pages = _reader_of(whole)(whole)
    for number, page in pages.items():
        if len(page.regions) > MOST_REGIONS:
            raise WrongValueError(f"page {number} has more than {MOST_REGIONS} regions")
    return pages


def _reader_of(whole: Value) -> Callable[[Value], dict[int, StoredPage]]:
    if whole.is_list and all(block.is_object and block.get("page_idx") for block in whole.items()):
        return pages_of_content_list
    if whole.is_object:
        if whole.get("schema_name") is not None:
            return pages_of_docling
        if whole.get("pdf_info") is not None:
            return pages_of_middle
        result = whole.get("res")
        if result is not None and result.is_object and result.get(BLOCKS) is not None:
            return lambda whole: pages_of_paddle(whole.need("res"))
        if whole.get(BLOCKS) is not None:
            return pages_of_paddle
    raise WrongValueError("it is no result of Docling, MinerU or PP-StructureV3")
