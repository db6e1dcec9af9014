"""Artificial timelines with known spans."""

from __future__ import annotations

from draftlens.core.timeline import DISCARDED, Span, Timeline


def plain(rounds: int, check: float = 5.0, prefill: float = 60.0, scale: float = 1e-3) -> Timeline:
    """Plain decoding; times in units of `scale` seconds."""
    spans = [Span("target", "vision", 0.0, 20.0), Span("target", "prefill", 20.0, 20.0 + prefill)]
    now = 20.0 + prefill
    for _ in range(rounds):
        spans.append(Span("target", "verify", now, now + check))
        now += check
    return scaled(spans, 20.0 + prefill, scale)


def serial(rounds: int, prefill: float = 60.0, scale: float = 1e-3) -> Timeline:
    """The target waits for the draft and the draft for the target; every third round no draft token
    of five is right, else 1 to 5."""
    spans = [Span("target", "vision", 0.0, 20.0), Span("target", "prefill", 20.0, 20.0 + prefill)]
    first = 20.0 + prefill
    spans.append(Span("draft", "prune", first, first + 2.0))
    now = first + 12.0
    spans.append(Span("draft", "prefill", first + 2.0, now))
    for number in range(rounds):
        accepted = 0 if number % 3 == 2 else 1 + number % 5
        outcome = "" if accepted else DISCARDED
        spans.append(Span("draft", "draft", now, now + 5.0, 5, outcome))
        spans.append(Span("target", "verify", now + 5.0, now + 12.0, 5, accepted=accepted))
        spans.append(Span("target", "rollback", now + 12.0, now + 12.4))
        now += 12.4
    return scaled(spans, first, scale)


def parallel(rounds: int, prefill: float = 60.0, scale: float = 1e-3) -> Timeline:
    """The draft reads while the target prefills, and writes a window while the last one is checked.
    After every third round the target starts anew without draft tokens."""
    first = 20.0 + prefill
    spans = [
        Span("target", "vision", 0.0, 20.0),
        Span("target", "prefill", 20.0, first),
        Span("draft", "vision", 0.0, 8.0),
        Span("target", "prune", first - 30.0, first - 29.0),
        Span("draft", "prune", first - 29.0, first - 28.0),
        Span("draft", "prefill", first - 28.0, first - 16.0),
        Span("draft", "draft", first - 16.0, first - 11.0, 5),
    ]
    # The target's own prefill is split around its pruning.
    spans[1] = Span("target", "prefill", 20.0, first - 30.0)
    spans.append(Span("target", "prefill", first - 29.0, first))
    now = first
    draft_tokens = 5
    for number in range(rounds):
        missed = number % 3 == 2
        accepted = 2 if missed else draft_tokens
        outcome = DISCARDED if missed else ""
        spans.append(Span("draft", "draft", now, now + 5.0, 5, outcome))
        spans.append(Span("target", "verify", now, now + 7.0, draft_tokens, accepted=accepted))
        spans.append(Span("target", "rollback", now + 7.0, now + 7.3))
        spans.append(Span("target", "wait", now + 7.3, now + 7.6))
        now += 7.6
        draft_tokens = 0 if missed else 5
    return scaled(spans, first, scale)


def scaled(spans: list[Span], first: float, scale: float) -> Timeline:
    """A timeline of spans that are given in other units than seconds."""
    in_seconds = []
    for span in spans:
        start, end = span.start * scale, span.end * scale
        in_seconds.append(
            Span(span.lane, span.kind, start, end, span.tokens, span.outcome, span.accepted)
        )
    return Timeline(tuple(in_seconds), first * scale, in_seconds[-1].end)
