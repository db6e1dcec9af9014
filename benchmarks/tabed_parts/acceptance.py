"""Block efficiency by kind of prompt, view and rule: the counterparts of Tables 1 to 3 and 10."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from draftlens import TABED, load
from draftlens.engine import Engine
from tabed_parts.cases import CASES, CHECKED, NAMES, VIEWS
from tabed_parts.kinds import KINDS, prompts, read
from tabed_parts.replay import GAMMA, Replay, Replayed, proposal, replay_hits
from tabed_parts.taught import Taught, Teacher

PREDICTION = """\
Written before the first run. On the embedded pair M is the best view of every kind but text-only
questions after a picture; P comes within 0.1 of it on pictures; T loses most on needles and
captions of clips. So no mixture beats M by more than 2%, equal weights lose 2 to 4%, the paper's
grid loses 1 to 2% because most answers are two to ten blocks long, and Bayes along the path loses
less than 1%. With the near-sighted draft M fails on five pictures
and on clips of 64 frames, and T and C are the best views there."""

Counts = dict[str, list[tuple[int, int]]]
"""By case, for each prompt the tokens after the first one and the passes."""


def main() -> None:
    """Teach, replay, compare with the engine, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(draft=args.draft, device="cpu") if args.draft else load(device="cpu")
    began = time.perf_counter()
    kinds = args.kinds or list(KINDS)
    report: dict[str, Any] = {"environment": environment(args), "prediction": PREDICTION}
    report["draft"] = args.draft or "embedded"
    for temperature in args.temperatures:
        answers = taught_answers(engine, kinds, args, temperature)
        counts = replayed(answers)
        report[f"temperature {temperature}"] = counts
        report[f"right, temperature {temperature}"] = right_shares(answers)
        if temperature == 0:
            report["checked"] = checked(engine, answers, args)
    report["minutes"] = (time.perf_counter() - began) / 60
    save(args.out, report, page(report, args))
    print(page(report, args))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/tabed_acceptance", repeats=1)
    parser.add_argument("--prompts", type=int, default=60, help="prompts of each kind")
    parser.add_argument("--checked", type=int, default=8, help="of these, answered by the engine")
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), help="all by default")
    parser.add_argument("--draft", help="folder of another draft for the embedded target")
    parser.add_argument("--temperatures", type=int, nargs="+", choices=(0, 1), default=[0, 1])
    parser.add_argument("--keep", type=Path, help="folder that keeps answers for the next run")
    parser.set_defaults(max_new_tokens=128)
    return parser.parse_args()


def taught_answers(
    engine: Engine, kinds: Sequence[str], args: argparse.Namespace, temperature: int
) -> list[Taught]:
    """The answers to all prompts, with what the views say about them."""
    name = Path(args.draft).name if args.draft else "embedded"
    teacher = Teacher(engine, list(VIEWS.values()), args.max_new_tokens, args.keep, name)
    return [
        teacher.taught(kind, number, clip, number if temperature else None)
        for kind in kinds
        for number, clip in enumerate(prompts(engine, kind, args.prompts))
    ]


def replayed(answers: Sequence[Taught]) -> dict[str, dict[str, list[Any]]]:
    """Counts by kind and case, in the order of the answers."""
    names = tuple(NAMES.values())
    by_case: dict[str, dict[int, Any]] = {}
    for case in CASES:
        replay = Replay(names, case.chosen, case.weighting)
        by_case[case.name] = {
            index: [round(value, 3) for value in astuple(replay.run(answer))]
            for index, answer in enumerate(answers)
        }
    for name, hits_of in BOUNDS.items():
        by_case[name] = {
            index: replay_hits(hits_of(answer), answer.longest)
            for index, answer in enumerate(answers)
        }
    counts: dict[str, dict[str, list[Any]]] = {}
    for index, answer in enumerate(answers):
        of_kind = counts.setdefault(answer.kind, {})
        for name, runs in by_case.items():
            of_kind.setdefault(name, []).append(runs[index])
    return counts


def right_shares(answers: Sequence[Taught]) -> dict[str, dict[str, float]]:
    """By kind and view, the share of all tokens that the view would have proposed."""
    shares: dict[str, dict[str, float]] = {}
    for kind in dict.fromkeys(answer.kind for answer in answers):
        of_kind = [answer for answer in answers if answer.kind == kind]
        number = sum(len(answer.tokens) for answer in of_kind)
        shares[kind] = {}
        for view, letter in enumerate(NAMES):
            right = sum(
                proposal(answer.log_q[view, place], answer, place) == token
                for answer in of_kind
                for place, token in enumerate(answer.tokens)
            )
            shares[kind][letter] = right / number
    return shares


def either_is_right(taught: Taught) -> list[bool]:
    """Whether M or T would have proposed each token: no mixture of the two can do better, but for
    tokens that neither prefers."""
    return [
        any(proposal(taught.log_q[view, place], taught, place) == token for view in (0, 1))
        for place, token in enumerate(taught.tokens)
    ]


def second_choice_is_right(taught: Taught) -> list[bool]:
    """Whether each token is one of M's first two choices: what a tree of two branches can do."""
    hits = []
    for place, token in enumerate(taught.tokens):
        ranking = taught.log_q[0, place]
        if taught.noise is not None:
            ranking = ranking + taught.noise[place]
        hits.append(token in ranking.topk(2).indices.tolist())
    return hits


BOUNDS = {"M or T right": either_is_right, "M's two best": second_choice_is_right}


def checked(engine: Engine, answers: Sequence[Taught], args: argparse.Namespace) -> dict[str, int]:
    """Compare the replay with the engine on some prompts of each kind, in greedy decoding.

    Raises:
        AssertionError: tokens or passes differ.
    """
    cases = [case for case in CASES if case.name in CHECKED]
    names = tuple(NAMES.values())
    compared = 0
    by_kind: dict[str, list[Taught]] = {}
    for answer in answers:
        by_kind.setdefault(answer.kind, []).append(answer)
    for kind, of_kind in by_kind.items():
        clips = prompts(engine, kind, args.prompts)[: args.checked]
        for clip, answer in zip(clips, of_kind, strict=False):
            inputs = read(engine, clip)
            for case in cases:
                views = [VIEWS[letter] for letter in case.views]
                method = TABED(views=views, weights=case.weights, rest=False)
                run = engine.answer(inputs, method=method, max_new_tokens=answer.longest).run()
                expected = Replay(names, case.chosen, case.weighting).run(answer)
                assert run.tokens[0] == list(answer.tokens), (clip.name, case.name)
                assert run.stats.passes == expected.passes, (clip.name, case.name)
                compared += 1
    return {"answers": compared}


def efficiency(pairs: Sequence[Sequence[float]]) -> float:
    """Tokens a pass."""
    return sum(pair[0] for pair in pairs) / max(1, sum(pair[1] for pair in pairs))


def table(counts: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Block efficiency by case and kind, with the mean over kinds last."""
    kinds = list(counts)
    rows = []
    for name in names:
        values = [efficiency(counts[kind][name]) for kind in kinds]
        rows.append([name, *[f"{v:.2f}" for v in values], f"{sum(values) / len(values):.3f}"])
    return markdown_table(["", *kinds, "mean"], rows)


def chance_table(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """By case and kind, the mean chance that rejection sampling accepts a draft token, with the
    mean over kinds last."""
    kinds = list(counts)
    rows = []
    for case in CASES:
        values = []
        for kind in kinds:
            runs = [Replayed(*run) for run in counts[kind][case.name]]
            tokens = sum(run.emitted for run in runs)
            values.append(sum(run.chances for run in runs) / max(1, tokens))
        mean = sum(values) / len(values)
        rows.append([case.name, *[f"{value:.2f}" for value in values], f"{mean:.3f}"])
    return markdown_table(["", *kinds, "mean"], rows)


def page(report: Mapping[str, Any], args: argparse.Namespace) -> str:
    """The report as Markdown."""
    lines = [
        "# Acceptance by view and rule",
        "",
        environment_line(report["environment"]),
        "",
        f"Draft: {report['draft']}. {args.prompts} held-out prompts of each kind, chains of "
        f"{GAMMA} draft tokens. Figures are tokens a pass. "
        f"{report.get('checked', {}).get('answers', 0)} answers of the engine have the same "
        "tokens and passes as the replay.",
        "",
        "## Prediction",
        "",
        report["prediction"],
        "",
    ]
    names = [*[case.name for case in CASES], *BOUNDS]
    for temperature in args.temperatures:
        counts = report[f"temperature {temperature}"]
        title = "Greedy" if temperature == 0 else "Temperature 1, coupled noise"
        lines += [f"## {title}", "", *table(counts, names), ""]
        if temperature == 1:
            lines += [
                "## Temperature 1, rejection sampling",
                "",
                "Mean over the answers' tokens of 1 - TV(p, q_w), the chance that a draft token "
                "in their place is accepted:",
                "",
                *chance_table(counts),
                "",
            ]
        shares = report[f"right, temperature {temperature}"]
        rows = [
            [letter, *[f"{of_kind[letter]:.0%}" for of_kind in shares.values()]] for letter in NAMES
        ]
        lines += ["Share of the tokens that each view would have proposed:", ""]
        lines += [*markdown_table(["", *shares], rows), ""]
    return "\n".join(lines)
