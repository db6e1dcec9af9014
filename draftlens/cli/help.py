"""The help of a command: its options in groups, and one example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from draftlens.cli import options as opt

SERVER = "Server"
CLIENTS = "What clients may send"

_ORDER = (
    *("Arguments", "Options", opt.MODELS, opt.ANSWER, opt.MANY_FILES),
    *(SERVER, CLIENTS, opt.LOADING),
)


class GroupedCommand(TyperCommand):
    """A command with one section of its help for each group of options.

    An option names its group by `rich_help_panel`, which typer shows only where rich draws the
    help; rich takes longer to import than the help to print.
    """

    def get_short_help_str(self, limit: int = 45) -> str:
        """The first sentence of the help, whole: click would cut it at `limit` characters."""
        paragraph = " ".join((self.help or "").partition("\n\n")[0].split())
        return re.split(r"(?<=\.) ", paragraph)[0]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options by group."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in _ORDER}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                title = "Arguments"
            sections[title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def example(words: str) -> dict[str, Any]:
    """Arguments of `typer.Typer.command` for a command with this example below its help."""
    return {"cls": GroupedCommand, "epilog": f"Example: draftlens {words}"}


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer.

    The fields of each parameter that is a dataclass become parameters, and those of `ModelOptions`,
    for the target and, where there is an option `--draft`, with the prefix `draft-` for the draft,
    take the place of a parameter `loading`. A parameter that is listed under `Args:` in the
    docstring, which the help leaves out, is an argument, or an option if it is keyword-only; one
    with a name of the dataclasses in `options` is that option.
    """
    signature = inspect.signature(command, eval_str=True)
    texts = documented(command)
    has_draft = _has_draft(signature)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "loading":
            parameters += _of_models(has_draft)
        elif is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _of_group(parameter.annotation)
        else:
            parameters.append(_of_command(parameter, texts))

    @wraps(command)
    def with_options(**values: Any) -> None:
        if "loading" in signature.parameters:
            names = [parameter.name for parameter in _of_models(has_draft)]
            loading = {name: opt.parse_loading(values.pop(name)) for name in names}
            opt.check_names(values.get("target"), values.get("draft"), loading)
            values["loading"] = loading
        for name, group in groups.items():
            values[name] = group(**{item.name: values.pop(item.name) for item in fields(group)})
        command(**values)

    with_options.__doc__ = (inspect.getdoc(command) or "").partition("\n\nArgs:")[0]
    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return with_options


def documented(subject: Any) -> dict[str, str]:
    """The texts under `Args:` in a docstring, also in those of base classes."""
    texts: dict[str, str] = {}
    for part in reversed(getattr(subject, "__mro__", [subject])):
        name = ""
        listed = inspect.cleandoc(part.__doc__ or "").partition("\nArgs:\n")[2]
        for line in listed.splitlines():
            if not line.startswith("    "):
                break
            begun = re.match(r"    (\w+): (.*)", line)
            name = begun[1] if begun else name
            texts[name] = begun[2] if begun else f"{texts[name]} {line.strip()}"
    return texts


def _of_command(parameter: inspect.Parameter, texts: Mapping[str, str]) -> inspect.Parameter:
    name, kind = parameter.name, parameter.annotation
    if hasattr(kind, "__metadata__"):
        info = kind.__metadata__[0]
        info.help = info.help or texts.get(name)
    elif name in texts and parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        kind = Annotated[kind, typer.Argument(help=texts[name])]
    elif name in texts:
        kind = Annotated[kind, typer.Option(*_flags(name, parameter.default), help=texts[name])]
    elif name in _SHARED:
        kind = Annotated[kind, _info(*_SHARED[name])]
    # typer passes everything by name.
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)


def _of_group(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    texts = documented(group)
    for item in fields(group):
        assert item.default is not MISSING, item.name
        kind = hints[item.name]
        if item.metadata or item.name in texts:
            kind = Annotated[kind, _info(item, group)]
        yield _of_command(_parameter(item.name, item.default, kind), {})


def _has_draft(signature: inspect.Signature) -> bool:
    """Whether a command, or one of its dataclasses, has an option `--draft`."""
    kinds = [parameter.annotation for parameter in signature.parameters.values()]
    names = {item.name for kind in kinds if is_dataclass(kind) for item in fields(kind)}
    return "draft" in names | set(signature.parameters)


def _of_models(has_draft: bool) -> list[inspect.Parameter]:
    own = list(_of_group(opt.ModelOptions))
    for parameter in list(own) if has_draft else []:
        kind, info = get_args(parameter.annotation)
        text = f"The same for the draft: {parameter.name}."
        settings = {"rich_help_panel": opt.LOADING, "autocompletion": info.autocompletion}
        kind = Annotated[kind, typer.Option(help=text, **settings)]
        own.append(_parameter(f"draft_{parameter.name}", None, kind))
    return own


def _parameter(name: str, default: Any, kind: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=kind)


def _info(item: Any, group: Any) -> Any:
    settings = dict(item.metadata)
    flags = settings.pop("flags", ()) or _flags(item.name, item.default)
    settings.setdefault("help", documented(group).get(item.name))
    settings.setdefault("rich_help_panel", getattr(group, "panel", None))
    return typer.Option(*flags, **settings)


def _flags(name: str, default: Any) -> tuple[str, ...]:
    """A switch that is off has no `--no-`."""
    return (f"--{name.replace('_', '-')}",) if default is False else ()


_SHARED: Mapping[str, tuple[Any, Any]] = {
    item.name: (item, group)
    for group in (opt.DecodingOptions, opt.AnswerOptions, opt.CommonOptions)
    for item in fields(group)
}
"""By name, the options that commands take one by one, with their dataclass."""
