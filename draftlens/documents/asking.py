"""Profiles, prompts, limits and methods by which the target answers pages and crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from PIL import Image

from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json
from draftlens.core.references import GivenText
from draftlens.core.repetition import LoopCriterion
from draftlens.core.stats import Clock
from draftlens.documents.reading.formats import FormatWithSpecialTokens, LearningFormat, make_format
from draftlens.documents.reading.targets import TargetProfile, named_profile, profile_of
from draftlens.documents.settings import ParseSettings
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.media.conversation import ask, read
from draftlens.models.known_pairs import path_of
from draftlens.models.load import Loaded
from draftlens.request import Request
from draftlens.streaming import Stream

PROFILE_FILE = "document_profile.json"
"""File next to the weights with fields of `documents.reading.targets.TargetProfile`."""


def profile_for(target: Loaded) -> TargetProfile:
    """The profile in the target's folder, or else that of its architecture or name. Raises
    ConfigError for an invalid file."""
    file = Path(path_of(target.name, "target")) / PROFILE_FILE
    if file.is_file():
        return _stored(file)
    return profile_of(target.backbone.model.config, target.name)


def _stored(file: Path) -> TargetProfile:
    try:
        values: Any = dict(parse_json(file.read_bytes()))
        name = values.pop("profile", None)
        return TargetProfile(**values) if name is None else replace(named_profile(name), **values)
    except (OSError, ValueError, TypeError) as error:
        names = ", ".join(field.name for field in fields(TargetProfile))
        raise ConfigError(
            f"{file} is not valid ({error}): it holds an object with fields among {names}, and "
            "profile, the name of a known one that they change"
        ) from error


@dataclass(frozen=True)
class Ending:
    """Limits of the answers of one call: tokens of each row, seconds (None for no timeout), and
    whether a loop ends an answer."""

    max_new_tokens: int
    seconds: float | None = None
    stops_loops: bool = True

    def options(self, prompt_length: int) -> dict[str, Any]:
        """Options of `generate`; `prompt_length` counts padding."""
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.max_new_tokens}
        if self.stops_loops:
            options["stopping_criteria"] = [LoopCriterion(prompt_length)]
        if self.seconds is not None:
            options["max_time"] = self.seconds
        return options


class Asker:
    """A target with the prompts and methods of pages and crops. `settings` override `profile`; the
    engine's own method and draft are not used."""

    def __init__(self, engine: Engine, profile: TargetProfile, settings: ParseSettings) -> None:
        self.engine = engine
        self.settings = settings
        self.profile = _with_settings(profile, settings)
        # An unknown format is refused before pages are read.
        given = settings.form
        self.form = self.profile.make_form() if given is None else make_format(given)

    def learn(self, answer: str) -> None:
        """Write the drafts of further pages in the notations of a finished answer."""
        if isinstance(self.form, LearningFormat):
            self.form = self.form.after(answer)

    @property
    def tokenizer(self) -> Any:
        return self.engine.target.processor.tokenizer

    @property
    def page_method(self) -> dict[str, Any]:
        return self._method(self.settings.tolerance)

    @property
    def region_method(self) -> dict[str, Any]:
        return self._method(self.settings.tolerance_of_crops)

    def _method(self, tolerance: float) -> dict[str, Any]:
        name = self.settings.method
        if name == "hsd":
            return {"method": name, "tolerance": tolerance}
        return {"method": name}

    def process(self, pictures: Sequence[Image.Image], prompts: Sequence[str]) -> Inputs:
        """The processor's output for a picture and a prompt per row; may raise InputError."""
        chats = []
        for picture, prompt in zip(pictures, prompts, strict=True):
            messages = ask(prompt, images=[picture])
            if self.profile.prompt_first:
                messages[0]["content"].reverse()
            chats.append(read(messages, num_frames=1))
        return self.engine.process(chats)

    def answer(
        self,
        inputs: Inputs,
        drafts: Sequence[Sequence[GivenText]],
        method: Mapping[str, Any],
        ending: Ending,
        clock: Clock | None = None,
    ) -> Stream:
        """Answer the result of `process`, one row for each picture.

        `drafts` are texts or token ids that each row's answer may repeat; `method` is `page_method`
        or `region_method`; `clock` was started with the page.
        """
        options = self._options(inputs, drafts, method, ending)
        return self.engine.answer(inputs, clock=clock, **options)

    def request(
        self,
        inputs: Inputs,
        drafts: Sequence[Sequence[GivenText]],
        method: Mapping[str, Any],
        ending: Ending,
    ) -> Request:
        """What `answer` answers, for a session that has other rows."""
        return self.engine.request(inputs, **self._options(inputs, drafts, method, ending))

    def _options(
        self,
        inputs: Inputs,
        drafts: Sequence[Sequence[GivenText]],
        method: Mapping[str, Any],
        ending: Ending,
    ) -> dict[str, Any]:
        references = None if self.settings.method == "plain" else [list(row) for row in drafts]
        options = ending.options(inputs.target["input_ids"].shape[1])
        return {"method": dict(method), "references": references, **options}

    def text(self, tokens: Sequence[int]) -> str:
        form = self.form
        keeps = isinstance(form, FormatWithSpecialTokens) and form.special_tokens
        if keeps:
            tokens = [token for token in tokens if token not in self.eos]
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=not keeps)
        return text

    def count_tokens(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    @cached_property
    def eos(self) -> frozenset[int]:
        ids = self.engine.target.backbone.model.generation_config.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset([ids]) if isinstance(ids, int) else frozenset(ids)

    def why_ended(self, tokens: Sequence[int], ending: Ending) -> str:
        """One of `results.ENDINGS`."""
        if tokens and tokens[-1] in self.eos:
            return "end"
        if ending.stops_loops and LoopCriterion(0).is_loop(list(tokens)):
            return "loop"
        if len(tokens) >= ending.max_new_tokens:
            return "length"
        return "timeout"


def _with_settings(profile: TargetProfile, settings: ParseSettings) -> TargetProfile:
    changes: dict[str, Any] = {}
    if settings.prompt is not None:
        changes["page_prompt"] = settings.prompt
    if settings.region_prompt is not None:
        changes |= {"region_prompt": settings.region_prompt, "region_prompts": {}}
    if settings.max_new_tokens is not None:
        changes["max_new_tokens"] = settings.max_new_tokens
    if settings.dpi is not None:
        changes["dpi"] = settings.dpi
    return replace(profile, **changes)
