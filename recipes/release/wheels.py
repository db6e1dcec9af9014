"""What two wheels of a release say about themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

NAMES = ("draftlens", "draftlens-lab")
LICENSES = ("LICENSE", "NOTICE")
"""Files that each wheel has among its licences."""

MEDIA = (".safetensors", ".mp4", ".png", ".jpg", ".ttf", ".otf", ".woff", ".woff2", ".pdf")
"""Files with these endings need a line in NOTICE that names them or a folder of theirs."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that was built.

    Args:
        path: the file.
        metadata: its METADATA.
        files: names of the files in it.
        notice: the text of its NOTICE; empty without one.
    """

    path: Path
    metadata: Message
    files: tuple[str, ...]
    notice: str

    @property
    def name(self) -> str:
        return str(self.metadata["Name"])

    @property
    def version(self) -> str:
        return str(self.metadata["Version"])

    @property
    def requirements(self) -> list[str]:
        return self.metadata.get_all("Requires-Dist") or []


def read_wheel(path: Path) -> Wheel:
    with ZipFile(path) as archive:
        files = tuple(archive.namelist())
        (metadata,) = [name for name in files if name.endswith(".dist-info/METADATA")]
        notices = [name for name in files if name.endswith("/licenses/NOTICE")]
        notice = archive.read(notices[0]).decode() if notices else ""
        return Wheel(path, message_from_bytes(archive.read(metadata)), files, notice)


def problems(wheels: Sequence[Wheel]) -> list[str]:
    """What keeps wheels from being a release, one sentence each; empty if nothing does."""
    found = {wheel.name: wheel for wheel in wheels}
    if sorted(found) != sorted(NAMES) or len(wheels) != len(NAMES):
        return [f"A release has one wheel each of {' and '.join(NAMES)}, not {sorted(found)}."]
    package, lab = (found[name] for name in NAMES)
    sentences = []
    if package.version != lab.version:
        sentences.append(f"The versions differ: {package.version} and {lab.version}.")
    if f"draftlens=={package.version}" not in lab.requirements:
        sentences.append(f"draftlens-lab does not require draftlens=={package.version}.")
    if f"draftlens-lab=={package.version}; extra == 'lab'" not in package.requirements:
        sentences.append(f"draftlens[lab] does not require draftlens-lab=={package.version}.")
    for wheel in wheels:
        sentences += _licence_problems(wheel)
    return sentences


def _licence_problems(wheel: Wheel) -> list[str]:
    licences = [name for name in wheel.files if ".dist-info/licenses/" in name]
    missing = [name for name in LICENSES if not any(file.endswith(f"/{name}") for file in licences)]
    sentences = [f"{wheel.path.name} has no {name}." for name in missing]
    for file in wheel.files:
        parts = file.split("/")
        folders = ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]
        named = any(f"`{folder}`" in wheel.notice for folder in folders)
        if file.endswith(MEDIA) and not named:
            sentences.append(f"NOTICE of {wheel.path.name} does not name {file}.")
    return sentences
