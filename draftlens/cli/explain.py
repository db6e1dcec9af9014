"""`draftlens explain`: what the draft saw of a clip or of pictures, as a sheet and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.loading import load_engine, make_folder, read_media
from draftlens.cli.progress import working
from draftlens.cli.show import console, print_json
from draftlens.core.errors import ConfigError, InputError
from draftlens.models.zoo import EMBEDDED, draft_for

if TYPE_CHECKING:
    from draftlens.explain import Trace

AUTO = "auto"


def explain(
    media: Annotated[list[Path], typer.Argument(help="A clip, or images with --images.")],
    images: Annotated[bool, typer.Option("--images", help="The files are images.")] = False,
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            help="As elsewhere; `auto` takes the one known for the target, `none` the target itself.",
        ),
    ] = AUTO,
    method: Annotated[str | None, typer.Option("--method", "-m", help="`specvlm`.")] = "specvlm",
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "",
    max_new_tokens: opt.MaxNewTokens = 320,
    out: Annotated[Path, typer.Option(help="Folder for the sheet and the page.")] = Path("explain"),
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Measure plain decoding beside it.")
    ] = True,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show which parts of which frames a pruned draft saw, and why: a picture and a page."""
    from draftlens.explain import pruning_method, trace

    chosen = pruning_method(opt.method_of(method, speculative_config))
    title, sheet_file, page_file = names_of(media, images, out)
    shown: dict[str, Any] = {"images": list(media)} if images else {"video": media[0]}
    chat = read_media(as_json, limits, opt.prompt_of(prompt, images), frames, **shown)
    make_folder(out)
    engine = load_engine(
        target, draft_for(target) if draft == AUTO else draft, chosen, device, dtype, as_json
    )
    with working("answering", as_json):
        found = trace(
            engine, chat, title, method=chosen, compare=compare, max_new_tokens=max_new_tokens
        )
    with working("drawing", as_json):
        write(found, sheet_file, page_file)
    if as_json:
        print_json({"sheet": str(sheet_file), "page": str(page_file), **found.to_dict()})
        return
    for line in summary(found):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{sheet_file}\n{page_file}", markup=False, soft_wrap=True)


def names_of(media: list[Path], images: bool, out: Path) -> tuple[str, Path, Path]:
    """Title, sheet and page of some media.

    Raises:
        InputError: several clips, or the sheet would be written over one of the media.
    """
    if len(media) > 1 and not images:
        raise InputError("explain takes one clip, or several images with --images")
    more = f"-and-{len(media) - 1}-more" if len(media) > 1 else ""
    stem = f"{media[0].stem}{more}"
    title = media[0].name + (f" and {len(media) - 1} more" if more else "")
    sheet_file, page_file = out / f"{stem}.png", out / f"{stem}.html"
    if any(file.resolve() in (sheet_file.resolve(), page_file.resolve()) for file in media):
        raise InputError(
            f"the sheet would be written over {media[0]}: name another folder with --out"
        )
    return title, sheet_file, page_file


def write(found: Trace, sheet_file: Path, page_file: Path) -> None:
    """Draw the sheet and the page.

    Raises:
        ConfigError: a file cannot be written.
    """
    from draftlens.explain import page, sheet

    try:
        sheet(found).save(sheet_file, optimize=True)
        page_file.write_text(page(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {sheet_file} and {page_file}: {error.strerror or error}"
        ) from error


def summary(found: Trace) -> list[str]:
    """A few lines for a terminal."""
    kept, total = found.shown.counts
    stats, views = found.stats, found.shown.views
    most = max(views, key=lambda view: view.share)
    lines = [
        f"{found.title}: the draft saw {kept} of {total} visual tokens "
        f"({kept / max(1, total) * 100:.1f} %)"
    ]
    if len(views) > 1 and kept:
        where = f"{most.name} ({most.when})" if most.when else most.name
        none = sum(not view.kept.any() for view in views)
        lines.append(
            f"most of {where}, {most.counts[0]} of {most.counts[1]}; nothing of {none} of "
            f"{len(views)}"
        )
    lines.append(
        f"{len(found.rounds)} rounds, mean acceptance length {stats.mean_acceptance_length:.2f}"
    )
    if found.speedup and found.plain:
        same = "the same answer" if found.plain.identical else "ANOTHER ANSWER"
        lines.append(
            f"{found.speedup[0]:.2f}x plain decoding end to end, {found.speedup[1]:.2f}x "
            f"decoding only, {same}"
        )
    return [*lines, *found.notes]
