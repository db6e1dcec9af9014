"""The README as a package index shows it.

Its links are relative, which an index cannot follow. A release names the repository, and the links
lead there:

    DRAFTLENS_REPOSITORY=https://host/owner/draftlens python -m hatchling build

Without it, links to files of the repository become plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "DRAFTLENS_REPOSITORY"
"""Environment variable with the address of the repository."""

_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>(?!\w+:|#)[^)\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling's `MetadataHookInterface`."""
        repository = os.environ.get(REPOSITORY, "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_links(text, repository, metadata["version"]),
        }
        metadata["urls"] = urls_of(repository)


def urls_of(repository: str) -> dict[str, str]:
    """The addresses of the project by name; none without a repository."""
    if not repository:
        return {}
    return {
        "Repository": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def with_links(text: str, repository: str, version: str) -> str:
    """A Markdown text whose links to files lead to a version of the repository.

    Args:
        text: the README.
        repository: its address; empty for none, which leaves the words of links and no pictures.
        version: of the package; its tag is `v` and the version.
    """

    def replaced(link: re.Match[str]) -> str:
        is_picture = bool(link["picture"])
        if not repository:
            return "" if is_picture else link["text"]
        kind = "raw" if is_picture else "blob"
        address = f"{repository}/{kind}/v{version}/{link['path']}"
        return f"{link['picture']}[{link['text']}]({address})"

    return _LINK.sub(replaced, text)
