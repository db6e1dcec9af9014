"""The prompt profile of a loaded target."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json
from draftlens.documents.reading.targets import TargetProfile, profile_of
from draftlens.models.known_pairs import path_of
from draftlens.models.load import Loaded

PROFILE_FILE = "document_profile.json"
"""File beside the weights with fields of `documents.reading.targets.TargetProfile`."""


def profile_for(target: Loaded) -> TargetProfile:
    """The profile in the target's folder, else that of its architecture, else a general one.

    Raises:
        ConfigError: the file is not valid.
    """
    file = Path(path_of(target.name, "target")) / PROFILE_FILE
    if file.is_file():
        return _stored(file)
    return profile_of(target.backbone.model.config)


def _stored(file: Path) -> TargetProfile:
    try:
        values: Any = parse_json(file.read_bytes())
        return TargetProfile(**values)
    except (OSError, ValueError, TypeError) as error:
        names = ", ".join(field.name for field in dataclasses.fields(TargetProfile))
        raise ConfigError(
            f"{file} is not valid ({error}): it holds an object with fields among {names}"
        ) from error
