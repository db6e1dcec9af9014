"""What is compared: single views, static mixtures, the paper's rules and ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.methods.tabed.views import make_view
from draftlens.methods.tabed.weights import Weighting, make_weighting

VIEWS: dict[str, Any] = {
    "M": "multimodal",
    "T": "text",
    "P": "pooled",
    "C": "caption",
    "W": {"name": "text", "instead": "an image"},
    "N": {"name": "text", "instead": ""},
}
"""Views by letter. W and N are the other ways to write T (App. I.2): words in place of a picture,
and nothing. The paper's words, ``<image>``, are the placeholder of the pair itself."""

NAMES = {letter: make_view(view).label for letter, view in VIEWS.items()}


@dataclass(frozen=True)
class Case:
    """A way to mix views.

    Args:
        name: as the paper writes it, where it has it.
        views: letters of the views.
        weights: the rule, see `TABED`.
    """

    name: str
    views: str
    weights: Any

    @property
    def chosen(self) -> tuple[str, ...]:
        """Names of the views."""
        return tuple(NAMES[letter] for letter in self.views)

    @property
    def weighting(self) -> Weighting:
        """The rule."""
        return make_weighting(self.weights)


SINGLE = tuple(Case(letter, letter, "uniform") for letter in NAMES)
STATIC = tuple(
    Case(f"MT {1 - j / 10:.1f}/{j / 10:.1f}", "MT", [1 - j / 10, j / 10]) for j in range(1, 10)
)
PAPER = (
    Case("MT", "MT", "uniform"),
    Case("MTC", "MTC", "uniform"),
    Case("MTCP", "MTPC", "uniform"),
    Case("MT*", "MT", "grid"),
    Case("MT*, by KL", "MT", {"name": "grid", "criterion": "kl"}),
    Case("MT*, by TV", "MT", {"name": "grid", "criterion": "tvd"}),
    Case("MTCP*", "MTPC", "kld"),
    Case("MTCP*, 1/e", "MTPC", {"name": "kld", "form": "inverse"}),
    Case("MTCP*, TV", "MTPC", "tvd"),
    Case("MTCP*, TV, 1/e", "MTPC", {"name": "tvd", "form": "inverse"}),
)
WINDOWS = tuple(
    Case(f"MT*, h = {window}", "MT", {"name": "grid", "window": window}) for window in (1, 4, 16)
)
OURS = (
    Case("MT, Bayes", "MT", "bayes"),
    Case("MTCP, Bayes", "MTPC", "bayes"),
    Case("MT, Bayes, rate 0.3", "MT", {"name": "bayes", "rate": 0.3}),
    Case("MTCP, Bayes, rate 0.3", "MTPC", {"name": "bayes", "rate": 0.3}),
    Case("MT, Bayes, never forgets", "MT", {"name": "bayes", "forget": 0.0}),
)
CASES = (*SINGLE, *PAPER, *WINDOWS, *OURS, *STATIC)

CHECKED = ("M", "T", "MT", "MT*", "MTCP*", "MT, Bayes", "MTCP, Bayes")
"""Cases whose counts are compared with those of the engine."""
