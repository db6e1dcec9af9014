"""The command line of `python -m benchmarks.claims`."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import full, own_pair, quick
from .claim import RESULTS
from .page import page, without_marks

PAGE = Path("docs/claims.md")


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="Write docs/claims.md from the result files.")
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with 1 if the page is out of date with the results",
    )
    parser.add_argument(
        "--quick",
        type=Path,
        nargs="?",
        const=Path("runs/claims"),
        metavar="FOLDER",
        help="run small versions of the commands into this folder (%(const)s), go on with those "
        "that are missing there, print every row that has a command and flag those that disagree",
    )
    parser.add_argument(
        "--run",
        type=Path,
        nargs="?",
        const=RESULTS,
        metavar="FOLDER",
        help="print how many hours the commands whose results in this folder (%(const)s) are "
        "stale or missing need, and run them",
    )
    parser.add_argument("--jobs", type=int, help="commands of --quick side by side (cores)")
    own = parser.add_argument_group(
        "a pair of your own",
        "Run the commands whose figures depend on the pair on yours, go on with those that are "
        "missing, and write the verdicts to claims.md in runs/claims/TARGET-DRAFT.",
    )
    own.add_argument("--target", help="folder or Hub id")
    own.add_argument("--draft", default="auto", help="by default the target's known draft")
    own.add_argument("--clips", type=Path, metavar="FOLDER", help="clips to caption")
    own.add_argument("--device", help="by default a GPU if there is one")
    own.add_argument("--small", action="store_true", help="small versions of the commands")
    own.add_argument(
        "--long-frames",
        type=int,
        default=64,
        help="frames of the longest prompts [default: %(default)s]",
    )
    args = parser.parse_args()
    if args.clips is not None and not args.clips.is_dir():
        parser.error(f"--clips: {args.clips} is no folder")
    if args.target is not None:
        device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
        pair = own_pair.OwnPair(
            args.target, args.draft, device, args.clips, args.small, args.long_frames
        )
        return own_pair.run(pair)
    if args.quick is not None:
        return quick.run(args.quick, args.jobs)
    if args.run is not None:
        return full.run(args.run)
    text = page()
    if not args.check:
        PAGE.write_text(text)
        return 0
    if without_marks(PAGE.read_text()) == without_marks(text):
        return 0
    print(f"{PAGE} is out of date; run: python -m benchmarks.claims")
    return 1
