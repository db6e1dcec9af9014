"""Documents to Markdown: `parse`. torch is imported only where a target is named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlens.core.errors import ConfigError
from draftlens.core.options import wrong
from draftlens.documents.pipeline_parser import PipelineParser
from draftlens.documents.reading.pipeline import LayoutPipeline
from draftlens.documents.reading.targets import TargetProfile
from draftlens.documents.results import ParsedPage
from draftlens.documents.settings import ParseSettings, needs_target
from draftlens.media import Limits

if TYPE_CHECKING:
    from draftlens.engine import Engine
    from draftlens.passes import Compile


def parse(
    inputs: str | Path | Iterable[str | Path],
    *,
    target: str | None = None,
    engine: Engine | None = None,
    pipeline: LayoutPipeline | None = None,
    profile: TargetProfile | str | None = None,
    limits: Limits | None = None,
    device: str | None = None,
    dtype: str | None = None,
    compile: Compile | None = None,
    **settings: Any,
) -> Iterator[ParsedPage]:
    """Read PDF files, images and folders of them, page by page.

    Without a target, the answer is the text of a pipeline: the text layer of a PDF, or else
    optical character recognition where an engine for it is installed. With a target, a document
    model reads the pages, and the text of the pipeline is the draft: the tokens are those of stock
    `generate`.

    Args:
        inputs: a file or a folder, or several.
        target: a folder or Hub id of a vision-language model, or `reader` for the one in the
            package, trained on one generator of pages; None for the pipeline alone.
        engine: a loaded target, instead of `target`.
        pipeline: reads pages, instead of the one that `drafter` and `layout` describe.
        profile: prompts and limits of the target, instead of the known ones; or the name of known
            ones, such as `olmocr` (`documents.reading.targets.named_profile`).
        limits: bounds on the size of files and pages.
        device, dtype: as for `draftlens.load`.
        compile: as for `draftlens.load`, and applied to `engine`, too; None for `"auto"` with a
            target that is named, and for what computes the passes of an engine already.
        settings: fields of `draftlens.ParseSettings`: `pages`, `drafter`, `layout`,
            `ocr_languages`, `password`, `form`, and with a target also `stages`, `tolerance`,
            `batch`, `dpi`, `page_timeout`, `on_loop`, `prompt`, `verify` and others.

    Yields:
        One `ParsedPage` for each page as soon as it is answered. A page or file that cannot be read
        comes as a result with an `error`, and the others go on.

    Raises:
        ConfigError, MediaError, UnsupportedModelError: before any page is read.

    Example:

        >>> import draftlens
        >>> draftlens.parse("paper.pdf", stages="backwards")
        Traceback (most recent call last):
            ...
        draftlens.core.errors.ConfigError: stages must be one of page, regions, not 'backwards'
    """
    if isinstance(inputs, bytes) or not isinstance(inputs, str | Path | Iterable):
        raise wrong("inputs", inputs, "a file, a folder, or a list of them")
    if not isinstance(limits, Limits | None):
        raise wrong("limits", limits, "a draftlens.media.Limits, or None")
    try:
        parse_settings = ParseSettings(**settings)
    except TypeError as error:
        raise ConfigError(f"parse has no such setting: {error}") from error
    if engine is not None and target is not None:
        raise ConfigError("give parse a target or an engine, not both")
    if engine is None and target is None:
        asked = None if compile is False else compile
        _check_without_target(profile=profile, device=device, dtype=dtype, compile=asked)
        return PipelineParser(parse_settings, pipeline, limits).parse(inputs)

    from draftlens.documents.run import DocumentParser
    from draftlens.engine import Engine
    from draftlens.load_engine import load

    if engine is None:
        options: dict[str, Any] = {} if compile is None else {"compile": compile}
        engine = load(str(target), method="plain", device=device, dtype=dtype, **options)
        parser = DocumentParser(engine, parse_settings, pipeline, profile, limits)
        parser.calibrate()
        return parser.parse(inputs)
    if not isinstance(engine, Engine):
        raise wrong("engine", engine, "a draftlens.Engine")
    if compile is not None:
        engine.compile(compile)
    return DocumentParser(engine, parse_settings, pipeline, profile, limits).parse(inputs)


def _check_without_target(**options: Any) -> None:
    """Refuse options that concern a target. Raises ConfigError."""
    for name, value in options.items():
        if value is not None:
            raise needs_target(name, value)
