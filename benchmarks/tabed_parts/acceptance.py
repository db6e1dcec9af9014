"""Block efficiency by kind of prompt, view and rule: the counterparts of Tables 1 to 3 and 10."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from shared import PAIR, Benchmark, Report, grid, pair_of, table

from draftlens import TABED
from draftlens.engine import Engine
from tabed_parts.cases import CASES, CHECKED, NAMES, VIEWS
from tabed_parts.kinds import KINDS, prompts, read
from tabed_parts.replay import GAMMA, Replay, Replayed, proposal, replay_hits
from tabed_parts.taught import Taught, Teacher

Counts = dict[str, list[tuple[int, int]]]
"""By case, for each prompt the tokens after the first one and the passes."""


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


def measure(args: argparse.Namespace) -> Report:
    """Teach, replay, and compare with the engine."""
    engine = pair_of(args)
    began = time.perf_counter()
    kinds = args.kinds or list(KINDS)
    report: Report = {"draft": "embedded" if args.draft == "auto" else args.draft}
    for temperature in args.temperatures:
        answers = taught_answers(engine, kinds, args, temperature)
        report[f"temperature {temperature}"] = replayed(answers)
        report[f"right, temperature {temperature}"] = right_shares(answers)
        if temperature == 0:
            report["checked"] = checked(engine, answers, args)
    return {**report, "minutes": (time.perf_counter() - began) / 60}


def page(report: Report) -> list[str]:
    """Block efficiency by case and kind, and the chances of rejection sampling."""
    blocks = [
        f"Draft: {report['draft']}. Chains of {GAMMA} draft tokens; figures are tokens a pass. "
        f"{report.get('checked', {}).get('answers', 0)} answers of the engine have the same "
        "tokens and passes as the replay.",
    ]
    names = [*[case.name for case in CASES], *BOUNDS]
    for temperature, title in (("0", "Greedy"), ("1", "Temperature 1, coupled noise")):
        counts = report.get(f"temperature {temperature}")
        if not counts:
            continue
        prompts_of_kind = len(next(iter(next(iter(counts.values())).values())))
        blocks += [
            f"## {title}, {prompts_of_kind} prompts of each kind",
            with_mean(names, counts, efficiency),
        ]
        if temperature == "1":
            blocks += [
                "## Temperature 1, rejection sampling",
                "Mean over the answers' tokens of 1 - TV(p, q_w), the chance that a draft token "
                "in their place is accepted:",
                with_mean([case.name for case in CASES], counts, chance),
            ]
        shares = report[f"right, temperature {temperature}"]
        blocks += [
            "Share of the tokens that each view would have proposed:",
            table(
                [{"view": v, **{kind: of[v] for kind, of in shares.items()}} for v in NAMES],
                {"": "{view}", **{kind: f"{{{kind}:.0%}}" for kind in shares}},
            ),
        ]
    return blocks


def with_mean(
    names: Sequence[str],
    counts: Mapping[str, Mapping[str, Any]],
    value: Callable[[Sequence[Any]], float],
) -> str:
    """A figure of the runs by name and kind, with the mean over kinds last; an earlier report lacks
    the cases that came later."""
    known = [name for name in names if all(name in of for of in counts.values())]

    def cell(name: str, column: str) -> str:
        if column == "mean":
            return f"{sum(value(of[name]) for of in counts.values()) / len(counts):.3f}"
        return f"{value(counts[column][name]):.2f}"

    return grid("", known, [*counts, "mean"], cell)


def chance(rows: Sequence[Sequence[Any]]) -> float:
    """The mean chance that rejection sampling accepts a draft token."""
    runs = [Replayed(*row) for row in rows]
    return sum(run.chances for run in runs) / max(1, sum(run.emitted for run in runs))


BENCHMARK = Benchmark(
    "tabed_acceptance",
    __doc__,
    "Acceptance by view and rule",
    measure,
    page,
    {
        "--prompts": {"type": int, "default": 60, "help": "prompts of each kind"},
        "--checked": {"type": int, "default": 8, "help": "of these, answered by the engine"},
        "--kinds": {"nargs": "+", "choices": tuple(KINDS), "help": "all by default"},
        **PAIR,
        "--temperatures": {"type": int, "nargs": "+", "choices": (0, 1), "default": [0, 1]},
        "--keep": {"type": Path, "help": "folder that keeps answers for the next run"},
        "--max-new-tokens": 128,
    },
)
