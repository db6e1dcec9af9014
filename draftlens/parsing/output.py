"""Parsed pages as files: each page whole or not at all, each document when its last page ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from draftlens.core.files import parse_json, write_json, write_text
from draftlens.documents.open import find_files
from draftlens.models.load import Loaded
from draftlens.parsing.results import ParsedPage

FORMAT = 1
"""Version of the JSON files."""

_DIGITS = 4
"""Of page numbers in names of files."""

_CHUNK = 2**20


class OutputFolder:
    """A folder with a subfolder for each document, which holds a Markdown and a JSON file for each
    page. Beside it is a Markdown file with all pages of the document that are there.

    Args:
        folder: is made if it does not exist.
        inputs: the files and folders that are parsed; they decide about names.
        answers: everything but the files that the answers depend on, as JSON values: settings and
            target. A page that is there was parsed with it, or it is parsed anew.
    """

    def __init__(self, folder: Path, inputs: Sequence[Path], answers: Mapping[str, Any]) -> None:
        self.folder = folder
        self._names = names_of(inputs)
        self._answers = dict(answers)
        self._prints: dict[str, str] = {}

    def name_of(self, source: str) -> str:
        """The name of a document's subfolder."""
        return self._names[source]

    def has(self, source: str, number: int) -> bool:
        """Whether a page is there, of the same file, and parsed with the same settings and target.

        A page that failed, or whose timeout cut it, is not.
        """
        markdown, description = self._files(source, number)
        try:
            values = parse_json(description.read_bytes())
            same = values["fingerprint"] == self._fingerprint(source)
            is_whole = values["error"] is None and values["ended"] != "timeout"
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(same and is_whole and markdown.is_file())

    def write(self, page: ParsedPage) -> None:
        """Write the files of a page. A page that failed has a JSON file only.

        Raises:
            OSError: they cannot be written.
        """
        markdown, description = self._files(page.source, page.number)
        markdown.parent.mkdir(parents=True, exist_ok=True)
        values = {"format": FORMAT, **page.to_dict()}
        if page.error is None:
            write_text(markdown, f"{page.markdown.rstrip()}\n")
            values["fingerprint"] = self._fingerprint(page.source)
        else:
            values["fingerprint"] = None
            markdown.unlink(missing_ok=True)
        # The description comes last: where it is, the page is whole.
        write_json(description, values)

    def join(self, source: str) -> Path | None:
        """Put the pages of a document that are there into one Markdown file; None if there are
        none.

        Raises:
            OSError: it cannot be written.
        """
        pages = sorted((self.folder / self.name_of(source)).glob("page-*.md"))
        if not pages:
            return None
        texts = [page.read_text(encoding="utf-8").strip() for page in pages]
        whole = self.folder / f"{self.name_of(source)}.md"
        write_text(whole, "\n\n".join(text for text in texts if text) + "\n")
        return whole

    def _files(self, source: str, number: int) -> tuple[Path, Path]:
        stem = f"page-{number:0{_DIGITS}}" if number else "document"
        base = self.folder / self.name_of(source) / stem
        return base.with_suffix(".md"), base.with_suffix(".json")

    def _fingerprint(self, source: str) -> str:
        if source not in self._prints:
            digest = hashlib.sha256(json.dumps(self._answers, sort_keys=True).encode())
            with open(source, "rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
            self._prints[source] = digest.hexdigest()
        return self._prints[source]


def names_of(inputs: Sequence[Path]) -> dict[str, str]:
    """Names of documents' subfolders by path: that of the file, with its folders below a folder
    that was given. Files of the same name are numbered."""
    names: dict[str, str] = {}
    used: set[str] = set()
    for given in inputs:
        root = given if given.is_dir() else given.parent
        for file in find_files([given]):
            if str(file) in names:
                continue
            plain = str(file.relative_to(root).with_suffix(""))
            name = plain
            count = 1
            while name in used:
                count += 1
                name = f"{plain}-{count}"
            used.add(name)
            names[str(file)] = name
    return names


def describe_target(target: Loaded) -> dict[str, Any]:
    """What tells one target from another, as JSON values: its name, its architecture, the dtype it
    computes in, and the files of its folder with their sizes and times."""
    folder = Path(target.name)
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
