"""Anderson acceleration of fixed-point iterations, in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MEMORY = 5  # earlier iterations whose changes are combined
REJECT = 2.0  # an extrapolation may raise the residual by this factor at most


class Anderson:
    """Anderson acceleration of several independent fixed-point iterations, one per last index.

    An extrapolated point whose residual is more than `REJECT` times the smallest one so far is
    given up for the plain step, whose residual never rises.
    """

    def __init__(self, size: int, n_outputs: int) -> None:
        self.changes = np.zeros((MEMORY, size, n_outputs))  # of residuals
        self.moves = np.zeros((MEMORY, size, n_outputs))  # of plain steps
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        c = self.changes.shape[2]
        self.changes[:], self.moves[:] = 0.0, 0.0
        self.gram = np.zeros((c, MEMORY, MEMORY))
        self.g = self.plain = self.changes[0]  # of the last point
        self.best = np.full(c, np.inf)
        self.count = 0
        self.known = np.zeros(c, dtype=bool)  # whether there is a last point

    def __call__(self, S: Array, residual: Array) -> Array:
        """The next point after `S`."""
        g = residual.reshape(self.changes.shape[1:])
        plain = S.reshape(g.shape) + g
        size = np.einsum("xl,xl->l", g, g)
        rejected = self.known & (size > REJECT**2 * self.best)
        if np.any(self.known):
            self._remember(g, plain, rejected)
        following = plain - np.einsum("axl,la->xl", self.moves, self._weights(g))
        if np.any(rejected):
            following[:, rejected] = self.plain[:, rejected]
        self.best = np.where(rejected, self.best, np.minimum(self.best, size))
        self.g, self.plain, self.known = g, plain, ~rejected
        return following.reshape(S.shape)

    def _remember(self, g: Array, plain: Array, rejected: NDArray[np.bool_]) -> None:
        slot = self.count % MEMORY
        self.count += 1
        keep = self.known & ~rejected
        self.changes[slot] = np.where(keep, g - self.g, 0.0)
        self.moves[slot] = np.where(keep, plain - self.plain, 0.0)
        products = np.einsum("axl,xl->la", self.changes, self.changes[slot])
        self.gram[:, slot], self.gram[:, :, slot] = products, products
        if np.any(rejected):
            self.changes[:, :, rejected], self.moves[:, :, rejected] = 0.0, 0.0
            self.gram[rejected] = 0.0

    def _weights(self, g: Array) -> Array:
        """Least squares: which combination of changes cancels the residual, ``(c, memory)``."""
        right = np.einsum("axl,xl->la", self.changes, g)
        trace = np.einsum("laa->l", self.gram)
        ridge = (1e-10 * trace + np.finfo(float).tiny)[:, None, None] * np.eye(MEMORY)
        return np.linalg.solve(self.gram + ridge, right[:, :, None])[:, :, 0]
