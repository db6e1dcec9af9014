"""What drafting and checking at the same time should gain: closed formulas.

Symbols, as in the paper ParallelVLM: T_p is the time of a target forward, T_q that of a draft step,
c = T_p / T_q, γ the number of tokens that the draft writes in a round, and β the chance that a
draft token is right when all before it are. "Lock-step" is the paper's Algorithm 1: in every round
the draft writes γ tokens and the target judges those of the round before, and both wait for the
slower one. After a correction the target has nothing to judge but its own next token (pre-verify).
"""

from __future__ import annotations

import math


def acceptance_of_run(length: float) -> float:
    """β from the mean run length M between corrections: β = M / (M + 1).

    A run is a geometric number of right draft tokens, whose mean is β / (1 - β).

    Raises:
        ValueError: the length is negative.
    """
    if length < 0:
        raise ValueError(f"a mean run length must not be negative, but is {length}")
    return length / (length + 1)


def chain_tokens(acceptance: float, gamma: int) -> float:
    """Tokens of a serial round: right draft tokens of a chain and the target's own token.

    (1 - β^(γ+1)) / (1 - β); Leviathan et al. 2022, equation 1.
    """
    return math.fsum(acceptance**depth for depth in range(gamma + 1))


def acceptance_of_chain(tokens: float, gamma: int) -> float:
    """β for which a chain gives this many tokens a pass: the inverse of `chain_tokens`.

    Raises:
        ValueError: a chain of this length cannot give as many tokens.
    """
    if not 1 <= tokens <= gamma + 1:
        raise ValueError(f"a chain of {gamma} gives 1 to {gamma + 1} tokens, not {tokens}")
    low = 0.0
    high = 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if chain_tokens(middle, gamma) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def lockstep_tokens(acceptance: float, window: int) -> float:
    """R(β, γ), the tokens a round in lock-step: (1 - β^γ) / ((1 - β)(1 + β - β^γ)).

    A post-verify judges γ draft tokens and emits (1 - β^γ) / (1 - β) tokens in the mean; another
    one follows with chance β^γ. A pre-verify emits one token, and a post-verify follows with chance
    β. R is the mean over the stationary state of this chain of two states. The formula is not in
    the paper; it reads Algorithm 1 for independent misses.

    Raises:
        ValueError: the window is less than 1.
    """
    if window < 1:
        raise ValueError(f"a window has at least one draft token, not {window}")
    if acceptance >= 1:
        return float(window)
    all_right = acceptance**window
    return (1 - all_right) / ((1 - acceptance) * (1 + acceptance - all_right))


def lockstep_speedup(acceptance: float, window: int, ratio: float) -> float:
    """Speedup of lock-step over plain decoding: R · T_p / max(γ·T_q, T_p).

    Args:
        acceptance: β.
        window: γ.
        ratio: c.
    """
    return lockstep_tokens(acceptance, window) * ratio / max(window, ratio)


def emitted_rate(acceptance: float, window: int) -> float:
    """Table 7's τ as R / γ: tokens emitted for each one that the draft had time to write."""
    return lockstep_tokens(acceptance, window) / window


def equation_7(rate: float, ratio: float) -> float:
    """Theorem 1 and Equation 7: the speedup τ · c, which needs τ = emitted / (γ · rounds)."""
    return rate * ratio


def theorem_2(window: int, ratio: float) -> float:
    """Speedup of a serial chain of which all is accepted: c (γ + 1) / (γ + c)."""
    return ratio * (window + 1) / (window + ratio)


def theorem_3(window: int, ratio: float) -> float:
    """Speedup of lock-step of which all is accepted: min(γ, c)."""
    return min(float(window), ratio)


def theorem_4(rate: float, window: int, ratio: float) -> float:
    """Speedup of a serial chain: c (τγ + 1) / (γ + c), with τ = accepted / drafted."""
    return ratio * (rate * window + 1) / (window + ratio)


def theorem_5(rate: float, window: int, ratio: float) -> float:
    """Speedup of lock-step: τγ · c / max(γ, c); true if τ = emitted / (γ · rounds)."""
    return rate * window * ratio / max(window, ratio)


def theorem_6(rate: float, ratio: float) -> float:
    """Speedup of lock-step at γ = c with rollbacks: half the sum of τ^k for k = 1 to 2c.

    τ is the chance of a single draft token here (the proof draws independent ω_i), unlike Theorem
    5's. Equation 13 prints the factor 1 + τγ; the proof and this sum have 1 + τ^γ.
    """
    if rate >= 1:
        return ratio
    return rate * (1 - math.pow(rate, 2 * ratio)) / (2 * (1 - rate))


def tree_nodes(branches: int, depth: int) -> int:
    """Nodes of a full tree without its root: b + b² + ... + b^depth (the paper's App. A)."""
    return sum(branches**level for level in range(1, depth + 1))
