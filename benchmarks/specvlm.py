"""SpecVLM on the embedded pair: acceptance by pruning, costs of the probe, and the resulting
speedups.

    python benchmarks/specvlm.py [--parts acceptance,focus,chat,guidance,turns,probe,step,tree,long,
    steps,self]
    python benchmarks/specvlm.py --parts trained,trained-focus --draft FOLDER \
        --out benchmarks/results/specvlm_trained

Clips are held-out ones of the world. The parts focus and chat repeat acceptance with questions
about a part of what is seen. Every answer is compared with stock `generate`, or with plain
decoding, which the tests compare with it. Times are medians of interleaved repeats. Writes OUT.json
and OUT.md after every part, so an interrupted run keeps the finished parts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from draftlens_lab.measure.options import frame_counts
from shared import argument_parser, configure, environment, environment_line, save
from specvlm_parts import acceptance, costs, guidance, long, steps, trained

import draftlens
from draftlens.engine import Engine

PREDICTION = """Written before the first run. The draft looks up facts by place and frame, and
the target's text attends to few tokens, so at r = 0.9 specvlm keeps 90% of the unpruned
acceptance and random about 85%; the margin grows with r up to 0.95. Stage I alone is as good as
both stages, since the world's backgrounds say little. Frame dropping and windows lose most. The
probe costs about 2% of a prefill at 8,000 visual tokens. The draft's step is flat from 1,000 to
16,000 tokens when 500 are kept. End to end at 16,000 visual tokens prefill dominates: 1.1x.
Before the second run (more clips, a better target, seen on a trial of 40 questions): a caption
asks for all of the picture, so no choice by attention beats chance there by more than 2% of the
length; a question asks for one thing, and the prompt's attention then beats chance by 2 to 4
points of tokens guessed at r = 0.97, the answer's own by 5.
Before the first run of focus and chat, with the second edition of the pair: at 16 frames the answer
of a focus question needs one shot of four or five, so a random tenth loses 5 to 8% of the unpruned
length and the tenth that the answer attends to most loses 2%. The prompt's attention lies between
the two, 1 to 3% above random at r = 0.9, since the target finds the shot that the question names
before it answers; stage I then helps by as much. In chats the text of the first answer names the
shot less directly, so the margin is half of that.
Before the run behind the phase of drills, in which heads of four late layers learn to attend to the
shot asked about, from the last eight tokens of the prompt on: the tenth most attended by the answer
holds 30 to 40% of its attention on focus questions (22% before), since a shot has at least four of
16 frames. The prompt's attention beats random by 1 to 3% on focus questions at r = 0.9, by 2 to 5%
at 0.97, and by half of that in chats, whose first answer is not in the prompt's last tokens; on
captions nothing changes.
Before the run behind the phase far, whose target finds shots among 64 and 256 frames: at 16 frames
the same as before. At 64 frames a shot is one of up to 16, so the tenth most attended by the answer
holds 40 to 50% of its attention on focus questions, and the prompt's attention beats random by 2
to 4% at r = 0.9 and by 3 to 6% at 0.97; a random tenth still shows each frame, so the unpruned
length is not reached. In chats the prompt's attention stays behind random at 16 frames and is level
with it at 64.
Before the run with the mean of the weights behind the stage polish and of those before seek, whose
heads find all appearances of a thing more often: at 16 frames the same as before within 2% of the
length, the tenth most attended by the answer holds 36 to 42% of its attention on focus questions.
At 64 frames the prompt's attention beats random by 5 to 8% at r = 0.9 on focus questions and by 0
to 4% in chats.
Before the run with guidance by the new question alone (part turns): at 16 frames the new question
beats random by 1 to 3% at r = 0.9 where all text lost 4%, since its tokens name the shot; at 64
frames by 3 to 6%. The oracle stays ahead of it by half of its gain.
Before the run of the parts steps and self: the accepted lengths of the first ten steps are those of
all within 5%. A target that drafts for itself is slower than plain decoding at 4,097 visual tokens,
0.7 to 0.9 of it with EAGLE's tree, since its own layers cost more than the cache that is pruned.
Before the run of the parts trained: seven tokens of 16 frames do not tell a caption, so the draft
that is trained with pruned prompts keeps 94% of the unpruned length at r = 0.97 there (90% before)
and 97% at 64 frames (92% before); on focus questions it gains 2 to 4%. Its unpruned length is the
same within 1%.
Before the second run of self, by the processor's time: 1.1 with EAGLE's tree, since the first run
saw 1.04 beside other programs."""


@dataclass(frozen=True)
class Part:
    """A part of the benchmark.

    Args:
        measure: returns its figures as JSON values.
        report: returns lines of Markdown for these figures.
    """

    measure: Callable[[Engine, argparse.Namespace], Any]
    report: Callable[[Any], list[str]]


def acceptance_part(kind: str) -> Part:
    """The part for one of the kinds of requests."""
    return Part(
        partial(acceptance.measure, kind=kind),
        partial(acceptance.report, kind=kind),
    )


def trained_part(kind: str) -> Part:
    """The part that compares two drafts, for one of the kinds of requests."""
    return Part(partial(trained.measure, kind=kind), partial(trained.report, kind=kind))


PARTS = {
    "acceptance": acceptance_part("caption"),
    "focus": acceptance_part("focus"),
    "chat": acceptance_part("chat"),
    "guidance": Part(guidance.measure, guidance.report),
    "turns": Part(guidance.measure_turns, guidance.report_turns),
    "probe": Part(costs.probe, costs.report_probe),
    "step": Part(costs.step, costs.report_step),
    "tree": Part(costs.tree, costs.report_tree),
    "long": Part(long.measure, long.report),
    "steps": Part(steps.measure, steps.report),
    "self": Part(steps.measure_self, steps.report_self),
    "trained": trained_part("caption"),
    "trained-focus": trained_part("focus"),
}
TRAINED = ("trained", "trained-focus")
"""Parts that compare the embedded draft with another one, which `--draft` names."""


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/specvlm", repeats=5)
    parser.add_argument("--parts", default=",".join(name for name in PARTS if name not in TRAINED))
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--target", default="embedded", help="a model that knows the world")
    parser.add_argument("--draft", default="auto", help="its draft")
    parser.add_argument(
        "--checked", type=int, default=8, help="clips that the engine itself decodes as well"
    )
    parser.add_argument("--frames", type=frame_counts, default=(16, 64))
    parser.add_argument("--long-frames", type=int, help="of long and probe [default: 1000 and 500]")
    parser.add_argument(
        "--minutes",
        type=float,
        default=inf,
        help="of acceptance, focus and chat for each number of frames: clips begin until then",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder that keeps each clip, or its answer by the target, for the next run",
    )
    args = parser.parse_args()
    configure(args.threads)
    engine = draftlens.load(args.target, draft=args.draft, device="cpu")
    file = args.out.with_suffix(".json")
    report = json.loads(file.read_text()) if file.exists() else {}
    report["prediction"] = " ".join(PREDICTION.split())
    for name in args.parts.split(","):
        figures = PARTS[name].measure(engine, args)
        report[name] = {"found": figures, "environment": environment(args)}
        save(args.out, report, markdown(report))
    print(markdown(report))


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a Markdown page: every measured part with its environment."""
    lines = ["# SpecVLM on the embedded pair", ""]
    for name, part in PARTS.items():
        if name in report:
            section = report[name]
            lines += [*part.report(section["found"]), ""]
            lines += [f"<sub>{environment_line(section['environment'])}</sub>", ""]
    return "\n".join([*lines, "Prediction. " + report["prediction"], ""])


if __name__ == "__main__":
    main()
