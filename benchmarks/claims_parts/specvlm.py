"""The claims of SpecVLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, difference, grows, growth, mean, once, share_of, times

OUT = "--out benchmarks/results"
SPECVLM = "python benchmarks/specvlm.py --parts"
KEPT = "--frames 64 --keep runs/specvlm"
CAPTIONS = f"{SPECVLM} acceptance --clips 300 {KEPT} {OUT}/specvlm"
FOCUS = f"{SPECVLM} focus --clips 130 {KEPT} {OUT}/specvlm_polish_64"
CHAT = f"{SPECVLM} chat --clips 130 {KEPT} {OUT}/specvlm_polish_64"
LONG = f"{SPECVLM} long --repeats 6 {OUT}/specvlm"
STEPS = f"{OUT}/specvlm_steps"
SMALL = "--clips 4 --checked {} --frames 64 --max-new-tokens 60 --out OUT"
"""The engine repeats the passes of one caption; those of questions follow from the same ranks."""

SMALL_LONG = "--long-frames 64 --repeats 3 --max-new-tokens 24 --out OUT/specvlm"

PARTS = {
    "captions": ("specvlm", "acceptance", CAPTIONS),
    "focus": ("specvlm_polish_64", "focus", FOCUS),
    "chat": ("specvlm_polish_64", "chat", CHAT),
}
"""What is asked about 64 frames: result file, part and command."""

OWN, PRINTED = "specvlm", "specvlm, λ 0.4"
"""SpecVLM with the λ that is best on other clips, and with the paper's."""

SETTINGS = (
    ("captions", OWN, "λ is 0.02, the best on other clips"),
    ("focus", OWN, "λ is 0.6, the best on other clips"),
    ("chat", OWN, "λ is 0.6, the best on other clips"),
    ("captions", PRINTED, "λ is 0.4, the paper's"),
    ("focus", PRINTED, "λ is 0.4, the paper's"),
    ("chat", PRINTED, "λ is 0.4, the paper's"),
)
"""What is asked, the case and its λ, of the rows a to f."""

SHARES = ("0.5", "0.75", "0.9", "0.97")
"""Prune ratios of claims at every r."""

TITLES = {"captions": "captions", "focus": "focus questions", "chat": "second questions"}
MANY_TOKENS = 8000
"""Visual tokens of a long prompt."""

CHAIN, TREE = 1, 2
"""Columns of passes in the counts; tokens are in front of them."""

Reader = Callable[[Report], Figure]


def margin(part: str, case: str, baseline: str, report: Report) -> Figure:
    """Tokens a forward of a case minus those of another one, as a share of the unpruned draft's."""
    counts = at(report, part, "found", "64", "counts")
    return difference(counts[case], counts[baseline], 0, TREE, counts["all"])


def kept(part: str, case: str, report: Report) -> Figure:
    """Tokens a forward of a case as a share of the unpruned draft's."""
    counts = at(report, part, "found", "64", "counts")
    return share_of(counts[case], counts["all"], 0, TREE)


def wider(part: str, case: str, report: Report) -> Figure:
    """How much the margin over random grows from r = 0.5 to 0.97."""
    counts = at(report, part, "found", "64", "counts")
    low, high = [
        (counts[f"{case} {share}"], counts[f"random {share}"]) for share in ("0.5", "0.97")
    ]
    return growth(low, high, counts["all"], TREE)


def chain_and_tree(case: str, report: Report) -> Figure:
    """Tokens a forward of EAGLE's tree, times those of a chain of 5."""
    rows = at(report, "acceptance", "found", "64", "counts", case)
    return share_of(rows, rows, 0, TREE, CHAIN)


def decode(slow: str, fast: str, report: Report) -> Figure:
    """How many times as fast one way decodes at 16,001 visual tokens, over repeats of one clip."""
    runs = at(report, "long", "found", "runs")
    return times(*([run["decode"] for run in runs[way]] for way in (slow, fast)))


def overhead(report: Report) -> Figure:
    """Seconds of pruning and of the draft's reading, as a share of an answer's. Raises LookupError
    for a prompt of few visual tokens, of which an answer takes so little time that the share says
    nothing about long ones."""
    runs = at(report, "long", "found", "runs", "specvlm")
    if min(run["visual"] for run in runs) < MANY_TOKENS:
        raise LookupError("a prompt of few visual tokens")
    return mean(
        [(run["phases"]["prune"] + run["phases"]["draft_prefill"]) / run["e2e"] for run in runs]
    )


def probe(report: Report) -> Figure:
    """The target's prefill with the probe of attention, over that without."""
    seconds = at(report, "probe", "found", "times")
    return times(seconds["with"], seconds["without"])


def step_growth(name: str, report: Report) -> Figure:
    """A draft step with the most visual tokens over one with the fewest: 16,001 and 1,025 here."""
    found = at(report, "step", "found")
    sizes = sorted(int(case.removeprefix(name)) for case in found if case.startswith(name))
    return grows(found[f"{name} {sizes[0]}"], found[f"{name} {sizes[-1]}"])


def first_steps(report: Report) -> Figure:
    """Accepted length of the first ten decoding steps over that of all."""
    clips = at(report, "steps", "found", "64")
    first = [[sum(clip[:10]), len(clip[:10])] for clip in clips]
    return share_of(first, [[sum(clip), len(clip)] for clip in clips], 0, 1)


def self_drafting(way: str, report: Report) -> Figure:
    """Decode seconds of plain decoding over those of a target that drafts for itself."""
    (seconds,) = [found["seconds"] for found in at(report, "self", "found").values()]
    return times(seconds["plain"], seconds[way])


def tenth(report: Report) -> Figure:
    """The share of the prompt's attention that the most attended tenth holds, over clips."""
    found = at(report, "guidance", "found", "focus")
    way = "the prompt, target"
    return mean(found["tenths"][way]) if "tenths" in found else once(found["top_tenth"][way])


def by_attention(report: Report) -> Figure:
    """Second questions: the tenth by the new question's attention, minus a random tenth."""
    counts = at(report, "turns", "found", "64", "counts")
    rows = [counts[f"{name} 0.9"] for name in ("most by the new question, target", "random")]
    return difference(rows[0], rows[1], 1, 3, counts["all of it 0.9"])


def check(
    kind: str, label: str, read: Reader, above: float | None = 0.0, form: str = "+.1%"
) -> Check:
    file, part, _ = PARTS[kind]
    return Check(label, file, read, above=above, form=form, part=part)


def versus(kind: str, case: str, *baselines: str) -> tuple[Check, ...]:
    """The case beats each of the others at r = 0.9."""
    part = PARTS[kind][1]
    return tuple(
        check(kind, f"{case} - {other}", partial(margin, part, f"{case} 0.9", f"{other} 0.9"))
        for other in baselines
    )


def row(
    number: str,
    kind: str,
    place: str,
    says: str,
    paper: str,
    checks: tuple[Check, ...],
    why: str = "",
    title: str = "",
) -> Claim:
    """A claim on what is asked."""
    file, part, command = PARTS[kind]
    says = f"{says} ({title or TITLES[kind]})."
    small = f"{SPECVLM} {part} {SMALL}/{file}".format(int(kind == "captions"))
    return Claim(number, place, says, paper, command, checks, why, quick=small)


def rows(number: str, place: str, says: str, paper: str, case: str, *others: str) -> list[Claim]:
    """The same claim on captions, focus questions and second questions."""
    return [
        row(f"{number}{letter}", kind, place, says, paper, versus(kind, case, *others))
        for letter, kind in zip("abc", PARTS, strict=True)
    ]


def settings(
    number: str, place: str, says: str, paper: str, checks: Callable[[str, str], tuple[Check, ...]]
) -> list[Claim]:
    """The same claim with each of `SETTINGS`; `checks` takes what is asked and the case."""
    found = []
    for letter, (kind, case, why) in zip("abcdef", SETTINGS, strict=True):
        title = TITLES[kind] + ", λ = 0.4" * (case == PRINTED)
        found.append(
            row(f"{number}{letter}", kind, place, says, paper, checks(kind, case), why, title)
        )
    return found


def self_claim(
    number: str, tokens: str, options: str, file: str, runs: str, small: str = ""
) -> Claim:
    """A claim about a target that drafts for itself with so many visual tokens."""
    command = f"{SPECVLM} self --clips 1"
    check = Check(
        f"EAGLE's tree at {tokens} visual tokens, over plain",
        file,
        partial(self_drafting, "self, gather"),
        above=1.0,
        part="self",
    )
    return Claim(
        number,
        "Tables 1, 2",
        "A target that drafts for itself from a pruned cache decodes faster than plainly "
        f"({tokens} visual tokens).",
        "1.26 to 1.59 times",
        f"{command} {options} --max-new-tokens 60 {OUT}/{file}",
        (check,),
        f"the processor's time; {runs}",
        quick=f"{command} {small}" if small else "",
    )


CLAIMS = (
    Claim(
        "1",
        "Tables 1, 2",
        "With a pruned draft decoding is faster than with the same draft unpruned, for long "
        "videos.",
        "1.29 and 1.43 times SD-Tree",
        LONG,
        (
            Check(
                "chain of 5 at 16,001 visual tokens, decoding",
                "specvlm",
                partial(decode, "chain, unpruned", "specvlm, chain"),
                above=1.0,
                part="long",
            ),
        ),
        "one clip, six runs",
        quick=f"{SPECVLM} long {SMALL_LONG}",
    ),
    Claim(
        "2",
        "Tables 1, 2",
        "SpecVLM decodes faster than plain decoding.",
        "up to 2.68 times (72B), 2.11 times (32B)",
        LONG,
        (
            Check(
                "EAGLE's tree at 16,001 visual tokens, over stock",
                "specvlm",
                partial(decode, "hf-generate", "specvlm"),
                above=1.0,
                part="long",
            ),
        ),
        "one clip, six runs",
    ),
    self_claim(
        "3a",
        "4,097",
        "--repeats 6 --frames 256",
        "specvlm_steps",
        "one clip, six repeats",
        "--repeats 3 --frames 64 --max-new-tokens 40 --out OUT/specvlm_steps",
    ),
    self_claim(
        "3b",
        "16,001",
        "--repeats 3 --frames 1000",
        "specvlm_steps_1000",
        "one clip, three repeats",
    ),
    *settings(
        "4",
        "Section 4.1",
        "With a tenth of the visual tokens the accepted length falls by 5% only",
        "-5% (7B draft, captions)",
        lambda kind, case: (
            check(
                kind,
                "share of the unpruned length",
                partial(kept, PARTS[kind][1], f"{case} 0.9"),
                0.95,
                ".1%",
            ),
        ),
    ),
    Claim(
        "5a",
        "Fig. 2(b)",
        "Random pruning of half of the tokens does not lower the accepted length much.",
        "none at r <= 0.5",
        CAPTIONS,
        (
            check(
                "captions",
                "random, r = 0.5, of the unpruned length",
                partial(kept, "acceptance", "random 0.5"),
                0.95,
                ".1%",
            ),
        ),
    ),
    Claim(
        "5b",
        "Fig. 2(b)",
        "Without any visual token the accepted length falls.",
        "a significant drop",
        CAPTIONS,
        (
            Check(
                "no visual tokens, of the unpruned length",
                "specvlm",
                partial(kept, "acceptance", "none"),
                below=1.0,
                form=".1%",
                part="acceptance",
            ),
        ),
    ),
    *settings(
        "6",
        "Fig. 6",
        "At every r SpecVLM's choice of tokens beats a random one",
        "above 0 at every r",
        lambda kind, case: tuple(
            check(
                kind,
                f"specvlm - random, r = {share}",
                partial(margin, PARTS[kind][1], f"{case} {share}", f"random {share}"),
            )
            for share in SHARES
        ),
    ),
    *settings(
        "7",
        "Fig. 6",
        "The margin over random pruning grows with r",
        "widens gradually",
        lambda kind, case: (
            check(kind, "margin at 0.97 - at 0.5", partial(wider, PARTS[kind][1], case)),
        ),
    ),
    *rows(
        "8",
        "Fig. 7(a)",
        "Choice by attention beats a window at the front, in the middle and at the end",
        "above each",
        "attention",
        "window front",
        "window middle",
        "window end",
    ),
    *rows(
        "9",
        "Fig. 7(b)",
        "An even spread in space beats dropping by time",
        "above each",
        "uniform",
        "fastvid",
        "dycoke",
    ),
    *settings(
        "10",
        "Fig. 8",
        "Stage I (the tokens with most attention) helps",
        "above 0 in most cases",
        lambda kind, case: versus(kind, case, "uniform"),
    ),
    *settings(
        "11",
        "Fig. 8",
        "Stage II (an even spread of the rest) helps",
        "above 0",
        lambda kind, case: versus(kind, case, "attention"),
    ),
    Claim(
        "12",
        "Fig. 2(a), Table 6",
        "A draft step becomes at least twice as slow with a longer prompt, and hardly so with a "
        "pruned one.",
        "4.5 times from 1k to 48k tokens (0.5B)",
        f"{SPECVLM} step {STEPS}",
        tuple(
            Check(label, "specvlm_steps", partial(step_growth, name), above, below, part="step")
            for label, name, above, below in (
                ("all tokens, 16,001 over 1,025", "all", 2.0, None),
                ("500 kept, the same", "500 kept", None, 1.2),
            )
        ),
        "the processor's time on a quiet machine",
        quick=f"{SPECVLM} step --repeats 2 --out OUT/specvlm_steps",
    ),
    Claim(
        "13",
        "Table 3",
        "The accepted length of the first ten decoding steps is that of all steps.",
        "3.39 beside 3.48 (0.97); within 10%",
        f"{SPECVLM} steps --clips 8 --frames 64 --max-new-tokens 160 {STEPS}",
        (
            Check(
                "first ten steps over all, captions",
                "specvlm_steps",
                first_steps,
                0.9,
                1.1,
                part="steps",
            ),
        ),
        "eight clips",
        quick=f"{SPECVLM} steps --clips 2 --frames 64 --max-new-tokens 80 --out OUT/specvlm_steps",
    ),
    Claim(
        "14",
        "Table 4",
        "A tree accepts more than a chain, with and without pruning.",
        "3.68 / 3.12 = 1.18, 3.48 / 2.79 = 1.25",
        CAPTIONS,
        tuple(
            Check(
                f"{label}, tree over chain of 5",
                "specvlm",
                partial(chain_and_tree, case),
                above=1.0,
                part="acceptance",
            )
            for label, case in (("unpruned", "all"), ("r = 0.9", "specvlm 0.9"))
        ),
        quick=f"{SPECVLM} acceptance {SMALL}/specvlm".format(1),
    ),
    Claim(
        "15a",
        "Table 5",
        "Pruning and the draft's reading take a negligible share of an answer.",
        "0.88 of 57.4 s (1.5%)",
        LONG,
        (
            Check(
                "share of the seconds, 16,001 visual tokens",
                "specvlm",
                overhead,
                below=0.03,
                form=".1%",
                part="long",
            ),
        ),
        "one clip, six runs",
    ),
    Claim(
        "15b",
        "Table 5",
        "Reading the attention does not slow the target's prefill.",
        "24.01 s with and without",
        f"{SPECVLM} probe --repeats 12 {OUT}/specvlm",
        (Check("with the probe over without", "specvlm", probe, below=1.05, part="probe"),),
        "twelve pairs of one prompt of 8,001 visual tokens",
        quick=f"{SPECVLM} probe {SMALL_LONG}",
    ),
    Claim(
        "16",
        "Fig. 5",
        "A tenth of the visual tokens holds most of the attention to them.",
        "10% hold over 50%",
        f"{SPECVLM} guidance --clips 30 --frames 64 {OUT}/specvlm_polish_64",
        (
            Check(
                "share of the top tenth, focus questions",
                "specvlm_polish_64",
                tenth,
                above=0.5,
                form=".0%",
                part="guidance",
            ),
        ),
        quick=f"{SPECVLM} guidance --clips 2 --frames 64 --max-new-tokens 60 "
        "--out OUT/specvlm_polish_64",
    ),
    Claim(
        "17",
        "not in the paper",
        "In a chat the attention of the new question alone guides the draft better than chance.",
        "",
        f"{SPECVLM} turns --clips 30 {OUT}/specvlm_turns",
        (
            Check(
                "new question - random, 64 frames",
                "specvlm_turns",
                by_attention,
                above=0.0,
                form="+.1%",
                part="turns",
            ),
        ),
        quick=f"{SPECVLM} turns {SMALL}/specvlm_turns".format(0),
    ),
)

PAPER = Paper(
    "SpecVLM",
    "draftlens/methods/specvlm",
    "draftlens/embedded/target/model.safetensors",
    CLAIMS,
    "The embedded pair, 64 frames (1,025 visual tokens); differences are shares of the accepted "
    "length of the unpruned draft. Second questions are those of a chat: the attention of what "
    "follows the first answer guides.",
)
