"""The loss of coefficients: their scores, and the intercept that goes with these."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .designs import Design
from .weighted import MOST_KEPT, ROUNDING, WeightedLoss, same

Array = NDArray[np.float64]


class ScoredLoss(WeightedLoss):
    """A loss of the scores that a design gives coefficients.

    Inside, columns are less their means, and targets less a shift, wherever there is an intercept.
    What the last coefficients score is kept.
    """

    design: Design
    center: Array | None  # (n_groups, d), means of columns
    shift: Array  # (c,)

    def _forget(self) -> None:
        super()._forget()
        self._scored: tuple[Array, Array] | None = None
        self._followed: list[Array] = []

    def scores(self, Z: Array) -> Array:
        """Prediction without intercept, from centred columns: ``(N, c)``, to be read only.

        The last one is kept, for the certificate and the next point of a path.
        """
        kept = self._scored  # once: another thread may put its own there
        if kept is not None and same(kept[0], Z):
            return kept[1]
        lift = self._lift(Z)
        if self.follows:
            F, *self._followed = self.design.follow(Z, self.Y + lift, self.weight)
        else:
            groups = np.asarray(Z.any(axis=(1, 2))).nonzero()[0]
            everything = self.design.prefers_all(groups)
            F = self.design.predict(Z) if everything else self.design.predict(Z[groups], groups)
        # In the order of losses first: a row of few outputs is slow to subtract from.
        return self._keep_scores(Z, np.asarray(F, order=self.loss.order) - lift)

    @property
    def follows(self) -> bool:
        """Whether a point's scores and dual point come in one pass over X."""
        return self.loss.quadratic and self.design.follows(self.n_outputs)

    def _keep_scores(self, Z: Array, S: Array) -> Array:
        S = np.asarray(S, order=self.loss.order)
        S.flags.writeable = False
        self._scored = (Z.copy(), S) if Z.size + S.size < MOST_KEPT else None
        return S

    def _followed_correlations(self, V: Array) -> Array | None:
        """Correlations of `V`, if it is what the last scores left, less the intercept's part.

        As a squared loss's dual point is: both come in one pass over X where that is quicker.
        """
        kept = self._followed  # once: another thread may put its own there
        if not kept:
            return None
        off, M = kept[0] - V, kept[1]
        if self.center is not None:
            shift = off.sum(axis=0) / self._total
            off -= shift * self.weight[:, None]
            M = M - shift * (self._total * self.center[:, :, None])
        return None if np.abs(off).max() > 1e-13 * np.abs(V).max() else np.ascontiguousarray(M)

    def _lift(self, Z: Array) -> Array:
        """What centring takes from the scores, ``means . Z``: ``(c,)``."""
        if self.center is None:
            return np.zeros(self.n_outputs)
        return np.asarray(self.center.ravel() @ Z.reshape(-1, self.n_outputs))

    def inner_intercept(self, Z: Array, b: Array) -> Array:
        """The intercept that goes with `scores`."""
        return b - self.shift + self._lift(Z)

    def outer_intercept(self, Z: Array, b: Array) -> Array:
        """The user's intercept, for raw X and Y."""
        b = b + self.shift - self._lift(Z)
        if not (self.loss.joint and self.intercept):
            return b
        # Softmax does not see what all outputs share: of all intercepts return the balanced one.
        # One that is, but for rounding, stays as it is: to and fro ends where it began.
        mean = b.sum() / len(b)
        return b if abs(mean) <= ROUNDING * np.abs(b).max() else b - mean

    def settle(self, Z: Array, S: Array, b: Array) -> tuple[Array, Array, float]:
        """The best intercept at the scores `S` of `Z`, from `b` on; scores with it, and the loss.

        Scores are to be read only: what is known there is looked up by the array itself.
        """
        if self.loss.quadratic:
            left = self.residual(S)
            return left.b, left.F, left.loss
        here = self.point(S, self._returned(Z, b))
        if here is None or not here.settled:
            b = self._returned(Z, self.best_intercept(S, b))
            here = self.point(S, b)
        if here is not None:
            return here.b, here.F, here.loss
        F = S + b
        F.flags.writeable = False
        return b, F, self.loss_value(F)

    def _returned(self, Z: Array, b: Array) -> Array:
        """Inner intercept `b` to the last digit as a certificate will have it."""
        if self.loss.translates:  # then that is at its best anyway
            return b
        return self.inner_intercept(Z, self.outer_intercept(Z, b))

    def predict(self, Z: Array, b: Array) -> Array:
        """``F = sum_k X_k Z_k + b``, ``(N, c)``."""
        return self.scores(Z) + self.inner_intercept(Z, b) + self.shift
