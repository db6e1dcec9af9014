"""The options of the commands, and the values that they are parsed to.

Options are the fields of dataclasses, which commands share; their help is the text of the fields
in the docstring (`help.takes_options`). Nothing that takes long to import is imported here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import typer

from draftlens.cli import catalogue
from draftlens.core.errors import ConfigError
from draftlens.core.files import parse_json
from draftlens.core.names import AUTO, EMBEDDED, READER, UNQUANTIZED
from draftlens.core.names import IMAGE_PROMPT as IMAGE_PROMPT
from draftlens.core.names import VIDEO_PROMPT as VIDEO_PROMPT

if TYPE_CHECKING:
    from draftlens.core.forms import Form
    from draftlens.media import Limits
    from draftlens.methods.base import Method

MODELS = "Models and method"
ANSWER = "Answer"
MANY_FILES = "Many files"
LOADING = "How models are loaded"

NO_DRAFT = "none"
"""Value of `--draft` for no draft, even where the target's name is that of a pair."""

Loading = Mapping[str, Any]
"""The options of `draftlens.load` beside names and method, as they were given."""

PLAIN: Loading = MappingProxyType({})

Complete = Callable[[str], Sequence[str]]


def completes(find: Callable[[], Iterable[str]]) -> Complete:
    """What a shell offers for the value of an option: those of `find` that begin as typed. Of
    values separated by commas, the last one is completed."""

    def complete(incomplete: str) -> Sequence[str]:
        typed, comma, start = incomplete.rpartition(",")
        return [f"{typed}{comma}{name}" for name in find() if name.startswith(start)]

    return complete


def _of_catalogue(kind: str, *further: str) -> Complete:
    return completes(lambda: [*further, *catalogue.names(kind)])


def _of_pairs(role: str, *further: str) -> Complete:
    def find() -> Iterable[str]:
        from draftlens.models.known_pairs import PAIRS

        return dict.fromkeys([*further, *(getattr(pair, role) for pair in PAIRS)])

    return completes(find)


def _among(*values: str) -> Any:
    return option(None, autocompletion=completes(lambda: values))


def option(default: Any, *flags: str, **settings: Any) -> Any:
    """A field of a dataclass of options; the settings are those of `typer.Option`."""
    return field(default=default, metadata={"flags": flags, **settings})


complete_methods = _of_catalogue("methods")
complete_pruners = _of_catalogue("pruners")


@dataclass(frozen=True)
class DecodingOptions:
    """Models and how they decode.

    Args:
        target: Target model: a folder or a Hub id of a vision-language model, or `embedded` for the
            pair in the package.
        draft: Draft model: a smaller model with the same tokenizer, `auto` for the one known for
            the target (`draftlens pairs`), or `none`.
        method: Decoding method: `plain`, `lookup`, `speculative`, `specvlm`, `parallelvlm`,
            `tabed`, `hsd` or `mixed` (`draftlens methods`). The default, `auto`, is `mixed` with a
            draft, and `lookup` without one.
        schedule: Order of drafting and verifying: `serial`, or `parallel`, in which draft and
            target work at the same time. The default is that of the method.
        speculative_config: Decoding method and its options: JSON such as '{"tree": "eagle"}' or
            '{"method": "tabed", "views": ["multimodal", "text"]}', or the path of a .json or .yaml
            file.
        prefill: How the target reads prompts: a name, or JSON with its options, such as
            '{"name": "full"}'. `draftlens methods` lists them; those for long videos are faster,
            and most are approximate.
        calibrate: Measure the time of forwards when a pair is first loaded, for about two seconds.
    """

    panel: ClassVar[str] = MODELS

    target: str = option(EMBEDDED, "--target", "-t", autocompletion=_of_pairs("target", EMBEDDED))
    draft: str = option(AUTO, "--draft", "-d", autocompletion=_of_pairs("draft", AUTO, NO_DRAFT))
    method: str | None = option(None, "--method", "-m", autocompletion=complete_methods)
    schedule: str | None = option(None, autocompletion=_of_catalogue("schedules"))
    speculative_config: str | None = None
    prefill: str | None = option(None, autocompletion=_of_catalogue("prefills"))
    compile: str = option(
        AUTO,
        metavar="ENGINE",
        help=f"What computes decode forwards: {', '.join(catalogue.names('passes'))}, or `auto` "
        "for what suits each model. Without a value, they are compiled first, and the code is kept "
        "on disk; --no-compile is the same as `modules`.",
        autocompletion=_of_catalogue("passes", AUTO),
    )
    calibrate: bool = True

    def parsed(self) -> dict[str, Any]:
        """Arguments of `draftlens.load`; the draft may be `none`."""
        return {
            "target": self.target,
            "draft": self.draft,
            "method": parse_method(self.method, self.speculative_config, schedule=self.schedule),
            "prefill": parse_prefill(self.prefill),
            "compile": parse_compile(self.compile),
            "calibrate": self.calibrate,
        }


@dataclass(frozen=True)
class AnswerOptions:
    """Length and sampling of answers.

    Args:
        max_new_tokens: Maximum number of tokens in an answer.
        sample: Sample tokens instead of choosing the most likely one.
        temperature: Sampling temperature; implies --sample. 0 is greedy decoding.
        top_k: Sample from the k most likely tokens; implies --sample.
        top_p: Sample from the most likely tokens that together have this probability (nucleus
            sampling); implies --sample.
        min_p: Sample from the tokens with at least this share of the highest probability; implies
            --sample.
        repetition_penalty: Penalty for repeated tokens; 1 is no penalty.
        seed: Seed of the sampling noise.
        allow_long_prompt: Also answer prompts with more positions than the target was trained for.
        form: Form of the answers: a JSON schema, or the path of a .json file with one or of a
            .lark or .gbnf file with a grammar.
    """

    panel: ClassVar[str] = ANSWER

    max_new_tokens: int = option(256, min=1)
    sample: bool = False
    temperature: float | None = option(None, min=0.0)
    top_k: int | None = option(None, min=1)
    top_p: float | None = option(None, min=0.0, max=1.0)
    min_p: float | None = option(None, min=0.0, max=1.0)
    repetition_penalty: float | None = option(None, min=0.001)
    seed: int | None = None
    allow_long_prompt: bool = False
    form: str | None = None

    @property
    def generation(self) -> dict[str, Any]:
        """The options of `Engine.answer`, with the seed; temperature 0 means greedy decoding."""
        values = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")}
        sampling = {name: value for name, value in values.items() if value is not None}
        generation: dict[str, Any] = {"do_sample": False}
        if self.temperature != 0 and (self.sample or sampling):
            generation = {"do_sample": True, **sampling}
        if self.repetition_penalty is not None:
            generation["repetition_penalty"] = self.repetition_penalty
        from draftlens.options import checked_options

        checked_options(generation)  # before anything is read or loaded
        if self.allow_long_prompt:
            generation["allow_long_prompt"] = True
        if self.form is not None:
            generation["form"] = parse_form(self.form)
        return {"max_new_tokens": self.max_new_tokens, "seed": self.seed, **generation}


@dataclass(frozen=True)
class SeededAnswerOptions(AnswerOptions):
    """`AnswerOptions` with a fixed seed, for the comparison of two answers."""

    seed: int | None = 0


@dataclass(frozen=True)
class FolderOptions:
    """Output and reading of many files.

    Args:
        out: File for the answers: one JSON line for each file.
        resume: With --out: continue the answers in the file, or discard them.
        batch: With --out: number of files that are answered together.
        clip_seconds: With --out: time limit for reading one file, in seconds.
    """

    panel: ClassVar[str] = MANY_FILES

    out: Path | None = option(None, "--out", "-o")
    resume: bool | None = option(None, "--resume/--restart")
    batch: int = option(4, min=1)
    clip_seconds: float = option(60.0, min=0.1)


@dataclass(frozen=True)
class CommonOptions:
    """Options that commands take one by one.

    Args:
        frames: Number of frames to sample from each clip.
        prompt: Prompt for the media; by default a request for a description.
        images: Read the files as images.
        limits: Limits on the size of media files: JSON such as '{"max_bytes": 1000000}'.
        as_json: Print the result as JSON and nothing else.
    """

    frames: int = option(8, min=1)
    prompt: str = option("", show_default=False)
    images: bool = False
    limits: str | None = None
    as_json: bool = option(False, "--json")


@dataclass(frozen=True)
class ModelOptions:
    """How a model is loaded: the fields of `draftlens.models.loading.LoadOptions`, of which None
    leaves one out.

    Args:
        device: Device: cpu, cuda, cuda:1, ..., or `auto` to spread a large model over several
            devices. The default is a GPU if there is one.
        dtype: Data type: float32, bfloat16 (or bf16), float16, or `auto` for that of the
            checkpoint. The default is float32 on the CPU and `auto` on other devices.
        revision: Branch, tag or commit on the Hub.
        trust_remote_code: Run the code of this checkpoint; set for each model.
        quantization: Quantization: int8, int8-weights, int4 or int4-weights in passes of an engine
            of --compile that has them, else int8 or int4 (torchao), 4bit or 8bit (bitsandbytes), or
            JSON as in the `quantization_config` of a checkpoint. Quantized checkpoints need none. A
            draft has int8 by default where --compile auto makes it faster; `none` prevents that.
        attn_implementation: Attention implementation: sdpa or eager.
        device_map: Placement by accelerate instead of --device: auto, balanced, sequential, or JSON
            of modules and devices.
        cache_dir: Folder of downloads.
    """

    panel: ClassVar[str] = LOADING

    device: str | None = _among("cpu", "cuda", "auto")
    dtype: str | None = _among("auto", "float32", "bfloat16", "float16")
    revision: str | None = None
    trust_remote_code: bool | None = None
    quantization: str | None = _among(
        "4bit", "8bit", "int8", "int4", "int8-weights", "int4-weights", UNQUANTIZED
    )
    attn_implementation: str | None = _among("sdpa", "eager")
    device_map: str | None = _among("auto", "balanced", "balanced_low_0", "sequential")
    cache_dir: str | None = None


def parse_loading(value: Any) -> Any:
    """Return the value of one of `ModelOptions`, which may be a JSON object."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r} is not valid JSON: {error}") from error


def check_names(target: str | None, draft: str | None, loading: Loading) -> None:
    """Refuse models that are neither on the Hub nor in its local cache, before torch is imported.

    Folders are looked at when the models are loaded.
    """
    for role, prefix, name in (("target", "", target), ("draft", "draft_", draft)):
        no_hub_names = (None, EMBEDDED, READER, AUTO, NO_DRAFT)
        if name is None or name in no_hub_names or Path(name).exists():
            continue
        from draftlens.core.hub import check_hub, is_cached, is_local, refuse_gguf

        revision = loading[f"{prefix}revision"]
        cache_dir = loading[f"{prefix}cache_dir"] or loading["cache_dir"]
        refuse_gguf(name, role)
        if not is_local(name) and not is_cached(name, revision, cache_dir):
            check_hub(name, role, revision)


def prompt_or_default(prompt: str, images: bool) -> str:
    """Return the prompt, or a request for a description if it is empty."""
    return prompt or (IMAGE_PROMPT if images else VIDEO_PROMPT)


def parse_method(
    name: str | None,
    config: str | None,
    default: str | None = None,
    schedule: str | None = None,
) -> Method | str | None:
    """Return the method from the values of `--method`, `--speculative-config` and `--schedule`.

    Args:
        default: the method's name if neither names one; None for that of the library.
    """
    if config is None and schedule is None:
        return name or default
    options = {} if config is None else _read_config(config)
    for option, value in (("method", name), ("schedule", schedule)):
        if value is not None and options.setdefault(option, value) != value:
            raise ConfigError(
                f"--{option} {value} and the configuration's {option} {options[option]!r} "
                f"contradict each other"
            )
    if default is not None:
        options.setdefault("method", default)
    from draftlens.methods.base import from_dict

    return from_dict(options)


def parse_prefill(text: str | None) -> Any:
    """Return the prefill from the value of `--prefill`: a name, or a JSON object with `name`."""
    if text is None:
        return None
    from draftlens.prefill.base import make_prefill

    is_object = text.lstrip().startswith("{")
    return make_prefill(parse_text(text, "--prefill") if is_object else text)


def check_media(names: Iterable[str | Path], limits: Limits) -> None:
    """Refuse files that cannot be read, before torch is imported."""
    from draftlens.media.files import check_file, is_url

    for name in map(str, names):
        if not is_url(name) and not Path(name).is_dir():
            check_file(name, limits)


def read_text(path: Path, noun: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {noun} {path}: {error}") from error


def parse_compile(value: str) -> bool | str:
    """Return the option `compile` of a word."""
    return {"yes": True, "no": False}.get(value, value)


FORMER_OPTIONS: dict[str, str] = {}
"""Present options of the commands by former ones (`--old`), which go on to work for one version."""


def with_present_names(words: Iterable[str]) -> list[str]:
    """The words of a command line with the present names of its options; a line on standard error
    says the present name of each former one."""
    renamed: list[str] = []
    for word in words:
        option, *value = word.split("=", 1)
        if option in FORMER_OPTIONS:
            present = FORMER_OPTIONS[option]
            print(f"warning: {option} is deprecated: use {present}", file=sys.stderr)
            word = "=".join([present, *value])
        renamed.append(word)
    return renamed


def with_values(words: Iterable[str]) -> list[str]:
    """The words of a command line with `--compile=VALUE` for every way to write it, such as
    `--compile VALUE`, `--compile` (yes) and `--VALUE` for an engine of passes of draftlens."""
    values = ("yes", "no", AUTO, *catalogue.names("passes"))
    short = {"--no-compile": "no", f"--compile-{AUTO}": AUTO}
    short |= {f"--{name}": name for name in catalogue.own_names("passes")}
    rewritten: list[str] = []
    for word in words:
        if rewritten[-1:] == ["--compile"]:
            rewritten[-1] = f"--compile={word if word in values else 'yes'}"
            if word in values:
                continue
        rewritten.append(f"--compile={short[word]}" if word in short else word)
    if rewritten[-1:] == ["--compile"]:
        rewritten[-1] = "--compile=yes"
    return rewritten


def check_compile_words(words: Iterable[str]) -> None:
    """Refuse values of `--compile`, as `with_values` writes them, that contradict each other."""
    given = dict.fromkeys(word for word in words if word.startswith("--compile="))
    if len(given) > 1:
        named = " and ".join(word.replace("=yes", "").replace("=no", "=modules") for word in given)
        raise ConfigError(f"{named} contradict each other: give one of them")


def parse_text(text: str, source: str) -> Any:
    """Return the values of a text: YAML if `source` ends with .yaml or .yml, otherwise JSON."""
    import yaml

    try:
        if source.endswith((".yaml", ".yml")):
            return yaml.safe_load(text)
        return parse_json(text)
    except RecursionError:
        raise ConfigError(f"{source} is not valid: it is nested too deeply") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{source} is not valid: {' '.join(str(error).split())}") from error


def _read_config(config: str) -> dict[str, Any]:
    source = "--speculative-config" if config.lstrip().startswith("{") else config
    text = config if source != config else read_text(Path(config), "configuration")
    options = parse_text(text, source)
    if not isinstance(options, dict):
        raise ConfigError(f"{source} must hold an object with a method and its options")
    return options


def parse_form(text: str) -> Form:
    """Return the form from the value of `--form`: a schema as JSON, or the path of a file."""
    from draftlens.core.forms import Form

    if text.lstrip().startswith("{"):
        return Form.json(parse_text(text, "--form"))
    content = read_text(Path(text), "form")
    if Path(text).suffix in (".lark", ".gbnf"):
        return Form.lark(content)
    return Form.json(parse_text(content, text))


def parse_limits(text: str | None, defaults: Limits | None = None) -> Limits:
    """Return the limits on media from the value of `--limits`; others keep their defaults."""
    from draftlens.media import Limits

    values = parse_text(text or "{}", "--limits")
    if not isinstance(values, dict) or not all(isinstance(v, int | float) for v in values.values()):
        raise ConfigError("--limits is not valid: it must be an object of numbers")
    names = [field.name for field in fields(Limits)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ConfigError(
            f"--limits does not know {', '.join(map(repr, unknown))}; known: {', '.join(names)}"
        )
    return replace(defaults or Limits(), **values)
