"""Parsed pages as files, and an index of the documents in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from draftlens.core.errors import ConfigError
from draftlens.core.files import name_fields, only_writer, parse_json, write_json, write_text
from draftlens.core.text import printable
from draftlens.documents.lines import LINES, DocumentLines
from draftlens.documents.results import ParsedPage

if TYPE_CHECKING:
    from draftlens.models.load import Loaded

FORMAT = 2
"""Version of the JSON files."""

INDEX = "index.json"
"""File of an output folder that lists its documents."""

_WRITER = "draftlens parse"

_DIGITS = 4
"""Of page numbers in names of files."""

_PAGE = re.compile(r"page-(\d+)\.json")

_CHUNK = 2**20


@dataclass
class IndexEntry:
    """A document in the index.

    Args:
        input: its absolute path.
        size: in bytes, when its pages were parsed; None if none was.
        digest: its SHA-256.
        options: settings and target, on which its answers depend.
        pages: how each page ended, by its number.
    """

    input: str
    size: int | None = None
    digest: str | None = None
    options: dict[str, Any] | None = None
    pages: dict[str, str] = field(default_factory=dict)


class OutputFolder:
    """A folder with a Markdown file and a folder of pages for each document, an index of them, and
    a line for each (`lines.LINES`).

    The names of a document follow from its path alone (`document_name`). Inside the `with`
    statement no other process writes to the folder; at its end the index and the documents are
    written.

    Raises:
        ConfigError: it cannot be created, another process writes to it, or its index is foreign.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = ExitStack()
        self._entries: dict[str, IndexEntry] = {}
        self._owners: dict[str, str] = {INDEX: "the index", LINES: "the lines"}
        self._ancestors: set[str] = set()
        self._names: dict[str, str] = {}
        self._options: dict[str, Any] = {}
        self._digests: dict[str, str] = {}
        self._touched: dict[str, None] = {}
        self._cleaned: set[str] = set()
        self._writing: str | None = None
        self._lines: DocumentLines | None = None
        self._errors: dict[str, str] = {}

    def __enter__(self) -> OutputFolder:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"--out must be a folder: {self.folder} is a file") from error
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot write to the folder {self.folder}: {reason}") from error
        with ExitStack() as lock:
            lock.enter_context(only_writer(self.folder))
            for name, entry in self._read_index().items():
                self._entries[name] = entry
                self._own(name)
            self._lock = lock.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            for source in list(self._touched):
                self._finish(source)
            self._write_index()
            if self._lines is not None:
                self._lines.close()

    def claim(self, source: str) -> None:
        """Reserve the names of a document before writing. Raises ConfigError if they belong to
        another document or file, or are outside of the folder."""
        name = document_name(source)
        entry = self._entries.get(name)
        path = os.path.realpath(source)
        if entry is None:
            self._check_free(source, name)
            self._entries[name] = IndexEntry(path)
            self._own(name)
        elif entry.input != path:
            raise self._taken(source, f"{name} belongs to {entry.input}")
        self._check_inside(source, name)
        self._names[source] = name

    def refuse(self, source: str, sentence: str) -> None:
        """Note a document whose names cannot be claimed."""
        self._errors[source] = sentence

    def begin(self, options: Mapping[str, Any]) -> None:
        """Write the index with the claimed documents; `options` are JSON values on which the
        answers depend. Raises ConfigError if it cannot be written."""
        self._options = dict(options)
        try:
            self._write_index()
            self._lines = DocumentLines(self.folder / LINES)
            for source in self._errors:
                self._write_line(source, None, [])
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot write to the folder {self.folder}: {reason}") from error

    def has(self, source: str, number: int) -> bool:
        """Whether a page of this version is in the folder, not failed or cut by a timeout."""
        self._touched[source] = None
        entry = self._entries[self._names[source]]
        if entry.size is not None and entry.size != os.stat(source).st_size:
            return False
        markdown, description = self._files(source, number)
        page = self._current(source, description)
        if page is None or not markdown.is_file():
            return False
        return page["error"] is None and page["ended"] != "timeout"

    def write(self, page: ParsedPage) -> None:
        """Write the files of a page, only JSON for a failed one. Raises OSError."""
        source = page.file
        if self._writing not in (None, source):
            self._finish(str(self._writing))
        self._touched[source] = None
        self._writing = source
        if page.number == 0 and page.error is not None:
            self._errors[source] = page.error
        markdown, description = self._files(source, page.number)
        markdown.parent.mkdir(parents=True, exist_ok=True)
        values = {"format": FORMAT, **page.to_dict()}
        values["version"] = self._version(source) if os.path.isfile(source) else None
        if page.error is None:
            self._remove_outdated(source)
            for name, picture in page.pictures.items():
                picture.save(markdown.with_name(name))
            write_text(markdown, f"{page.markdown.rstrip()}\n")
        else:
            markdown.unlink(missing_ok=True)
        # The description comes last: where it is, the page is whole.
        write_json(description, values)

    def _finish(self, source: str) -> None:
        """Join the pages of a document into one Markdown file, except those read with other
        options, and update its entry and its line."""
        self._touched.pop(source, None)
        if not os.path.isfile(source):
            self._write_line(source, None, [])
            return
        texts = []
        pages = []
        for number, description in self._numbered(source):
            page = self._current(source, description)
            if page is None:
                continue
            pages.append((number, page))
            markdown = description.with_suffix(".md")
            if page["error"] is None and markdown.is_file():
                text = markdown.read_text(encoding="utf-8").strip()
                # Pictures lie beside the pages, whose folder lies beside the whole.
                folder = quote(os.fsencode(self._pages(source).name))
                texts.append(text.replace("![](page-", f"![]({folder}/page-"))
        name = f"{self._names[source]}.md" if texts else None
        self._write_line(source, name, pages)
        if name is None:
            return
        write_text(self.folder / name, "\n\n".join(text for text in texts if text) + "\n")
        entry = self._entries[self._names[source]]
        entry.size = os.stat(source).st_size
        entry.digest = self._digest(source)
        entry.options = self._options
        entry.pages = {str(number): str(page["ended"]) for number, page in pages}

    def _write_line(
        self, source: str, markdown: str | None, pages: list[tuple[int, dict[str, Any]]]
    ) -> None:
        """The line of a document: how many of its pages are there, and what has failed."""
        failed = {str(number): page["error"] for number, page in pages if page["error"] is not None}
        line = {
            **name_fields(source),
            "markdown": None if markdown is None else printable(markdown),
            "pages": len(pages) - len(failed),
            "doubtful": sum(page.get("doubt") is not None for _, page in pages),
            "failed": failed,
            "error": self._errors.get(source),
        }
        if self._lines is not None:
            self._lines.write(line)

    def _version(self, source: str) -> dict[str, str]:
        """Identifies file and options of a document."""
        options = json.dumps(self._options, sort_keys=True).encode()
        return {"digest": self._digest(source), "options": hashlib.sha256(options).hexdigest()}

    def _digest(self, source: str) -> str:
        if source not in self._digests:
            digest = hashlib.sha256()
            with open(source, "rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
            self._digests[source] = digest.hexdigest()
        return self._digests[source]

    def _current(self, source: str, description: Path) -> dict[str, Any] | None:
        """A page's JSON file, if it has the document's current version."""
        page = _read_page(description)
        return page if page is not None and page["version"] == self._version(source) else None

    def _remove_outdated(self, source: str) -> None:
        """Remove pages of an earlier version of a file, which may have had more of them."""
        if source in self._cleaned:
            return
        self._cleaned.add(source)
        digest = self._digest(source)
        for _, description in self._numbered(source):
            page = _read_page(description)
            version = None if page is None else page["version"]
            if version is None or version["digest"] != digest:
                for picture in description.parent.glob(f"{description.stem}-*.png"):
                    picture.unlink()
                description.with_suffix(".md").unlink(missing_ok=True)
                description.unlink()

    def _numbered(self, source: str) -> list[tuple[int, Path]]:
        pages = []
        for path in self._pages(source).glob("page-*.json"):
            match = _PAGE.fullmatch(path.name)
            if match:
                pages.append((int(match[1]), path))
        return sorted(pages)

    def _pages(self, source: str) -> Path:
        return self.folder / f"{self._names[source]}.pages"

    def _files(self, source: str, number: int) -> tuple[Path, Path]:
        stem = f"page-{number:0{_DIGITS}}" if number else "document"
        return self._pages(source) / f"{stem}.md", self._pages(source) / f"{stem}.json"

    def _own(self, name: str) -> None:
        for root in _roots_of(name):
            self._owners[root] = self._entries[name].input
            self._ancestors.update(map(str, PurePosixPath(root).parents))

    def _check_free(self, source: str, name: str) -> None:
        for root in _roots_of(name):
            around = (root, *map(str, PurePosixPath(root).parents))
            for part in around:
                if part in self._owners:
                    raise self._taken(source, f"{part} belongs to {self._owners[part]}")
            if root in self._ancestors:
                raise self._taken(source, f"{root} is a folder with pages of other documents")
            if os.path.lexists(self.folder / root):
                raise self._taken(source, f"{root} is there, and {INDEX} does not name it")

    def _check_inside(self, source: str, name: str) -> None:
        """Refuse names that lead out of the folder, as symbolic links in it may."""
        home = self.folder.resolve()
        for root in _roots_of(name):
            if not (self.folder / root).resolve().is_relative_to(home):
                raise self._taken(source, f"{root} leads out of the folder")

    def _taken(self, source: str, cause: str) -> ConfigError:
        return ConfigError(
            f"cannot write the pages of {source} to {self.folder}: {cause}; choose another --out"
        )

    def _read_index(self) -> dict[str, IndexEntry]:
        path = self.folder / INDEX
        try:
            values = parse_json(path.read_bytes())
            if values["writer"] != _WRITER or values["format"] != FORMAT:
                raise ValueError
            entries = values["documents"].items()
            return {name: _checked(IndexEntry(**entry)) for name, entry in entries}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no index of draftlens parse: choose another --out, or remove the file"
            ) from error

    def _write_index(self) -> None:
        documents = {name: asdict(self._entries[name]) for name in sorted(self._entries)}
        values = {"writer": _WRITER, "format": FORMAT, "documents": documents}
        write_json(self.folder / INDEX, values)


def document_name(source: str | Path) -> str:
    """The name of a document in an output folder: its path without root and leading `..`.

    Example:

        >>> document_name("/data/letters/may.pdf"), document_name("../may.pdf")
        ('data/letters/may.pdf', 'may.pdf')
    """
    path = Path(os.path.normpath(source))
    return "/".join(part for part in path.parts if part not in (path.anchor, ".."))


def describe_target(target: Loaded) -> dict[str, Any]:
    """A target's name, architecture, dtype, and files with sizes and times, as JSON values."""
    from draftlens.models.known_pairs import path_of

    folder = Path(path_of(target.name, "target"))
    files: list[Any] = []
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            status = file.stat()
            files.append([file.name, status.st_size, status.st_mtime_ns])
    config = target.backbone.model.config
    return {
        "name": target.name,
        "kind": str(getattr(config, "model_type", "")),
        "dtype": str(target.backbone.dtype),
        "files": files,
    }


def _roots_of(name: str) -> tuple[str, str]:
    """The file and the folder of a document."""
    return f"{name}.md", f"{name}.pages"


def _checked(entry: IndexEntry) -> IndexEntry:
    """An entry of an index; raises TypeError if a used value has the wrong type."""
    if not isinstance(entry.input, str) or not isinstance(entry.size, int | None):
        raise TypeError
    return entry


def _read_page(description: Path) -> dict[str, Any] | None:
    """The JSON file of a page; None if it is not one."""
    with suppress(OSError, ValueError):
        page = parse_json(description.read_bytes())
        if isinstance(page, dict) and page.keys() >= {"version", "error", "ended"}:
            return page
    return None
