"""Groups of options that several commands share: dataclasses with a field for each option."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from draftlens.cli import options as opt
from draftlens.core.names import AUTO, EMBEDDED

if TYPE_CHECKING:
    from draftlens.methods.base import Method


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the fields of each parameter that is a dataclass as its own parameters.

    The fields need defaults. Their annotations are those of typer.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _parameters(parameter.annotation)
        else:
            # typer passes everything by name.
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_groups(**values: Any) -> None:
        for name, group in groups.items():
            members = {item.name: values.pop(item.name) for item in fields(group)}
            values[name] = group(**members)
        command(**values)

    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_groups


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for item in fields(group):
        assert item.default is not MISSING, item.name
        parameters.append(
            inspect.Parameter(
                item.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=item.default,
                annotation=hints[item.name],
            )
        )
    return parameters


@dataclass(frozen=True)
class Decoding:
    """Models and how they decode.

    Args:
        target, draft: names of models; the draft may be `auto` or `none`.
        method: a method or its name; None for the default.
        prefill: how the target reads prompts; None for the method's way.
        compile: as for `draftlens.load`.
    """

    target: str
    draft: str
    method: Method | str | None
    prefill: Any
    compile: Any


@dataclass(frozen=True)
class DecodingOptions:
    """The options for a `Decoding`."""

    target: opt.Target = EMBEDDED
    draft: opt.Draft = AUTO
    method: opt.MethodName = None
    schedule: opt.ScheduleName = None
    speculative_config: opt.SpeculativeConfig = None
    prefill: opt.Prefill = None
    compile: opt.Compile = "no"

    def parsed(self) -> Decoding:
        return Decoding(
            target=self.target,
            draft=self.draft,
            method=opt.parse_method(self.method, self.speculative_config, schedule=self.schedule),
            prefill=opt.parse_prefill(self.prefill),
            compile=opt.parse_compile(self.compile),
        )


@dataclass(frozen=True)
class AnswerOptions:
    """Length and sampling of answers."""

    max_new_tokens: opt.MaxNewTokens = 256
    sample: opt.Sample = False
    temperature: opt.Temperature = None
    top_k: opt.TopK = None
    top_p: opt.TopP = None
    min_p: opt.MinP = None
    repetition_penalty: opt.RepetitionPenalty = None
    seed: opt.Seed = None
    allow_long_prompt: opt.AllowLongPrompt = False

    @property
    def generation(self) -> dict[str, Any]:
        """The options of `Engine.answer`, with the seed."""
        sampling = opt.sampling_options(
            self.sample,
            self.temperature,
            self.top_k,
            self.top_p,
            self.min_p,
            self.repetition_penalty,
        )
        generation = {"max_new_tokens": self.max_new_tokens, "seed": self.seed, **sampling}
        if self.allow_long_prompt:
            generation["allow_long_prompt"] = True
        return generation


@dataclass(frozen=True)
class SeededAnswerOptions(AnswerOptions):
    """`AnswerOptions` with a fixed seed, for the comparison of two answers."""

    seed: opt.Seed = 0


@dataclass(frozen=True)
class FolderOptions:
    """Output and reading of many files."""

    out: opt.Answers = None
    resume: opt.Resume = None
    batch: opt.BatchSize = 4
    clip_seconds: opt.ClipSeconds = 60.0
