"""The tokens that a row of a cache holds, as a prompt cache knows them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class HeldTokens:
    """The first tokens of a row.

    Args:
        namespace: of the request; rows of different namespaces share nothing.
        digests: of the tokens, uint8 ``[n, 16]`` (`models.token_digests`).
    """

    namespace: str
    digests: np.ndarray

    def followed_by(self, digests: np.ndarray) -> HeldTokens:
        return replace(self, digests=np.concatenate([self.digests, digests]))
