"""A design that counts what is read of X, in passes over all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from convexformer.problem import Problem, TokenDesign


class CountingDesign(TokenDesign):
    """Tokens whose products are counted; a product with half of the groups is half a pass.

    What reads X by rows is counted in `gather`, as `predict` does; nothing gets hold of X itself.
    Attribute `stage` says to which part of a fit passes are put down, and `passes` has their number
    by stage.
    """

    def __init__(self, X: np.ndarray, mask: np.ndarray | None = None) -> None:
        super().__init__(X, mask)
        self.float64 = None  # else compiled code reads X without being seen
        self.stage, self.passes, self.inside = "problem", defaultdict[str, float](float), 0

    def _count(self, share: float, read: Callable[[], Any]) -> Any:
        if not self.inside:
            self.passes[self.stage] += share
        self.inside += 1
        try:
            return read()
        finally:
            self.inside -= 1

    def _of(self, *groups: Any) -> float:
        """Part of all groups."""
        if groups[0] is None:
            return 1.0
        return sum(len(some) for some in groups) / self.n_groups

    def correlate(self, V, groups=None):
        return self._count(self._of(groups), lambda: TokenDesign.correlate(self, V, groups))

    def follow(self, *given):
        return self._count(1.0, lambda: TokenDesign.follow(self, *given))

    def means(self, *given):
        return self._count(1.0, lambda: TokenDesign.means(self, *given))

    def gram(self, groups, *given):
        return self._count(self._of(groups), lambda: TokenDesign.gram(self, groups, *given))

    def cross_gram(self, old, new, *given):
        read = self._of(old, new)
        return self._count(read, lambda: TokenDesign.cross_gram(self, old, new, *given))

    def kernel(self, groups, *given, **more):
        return self._count(
            self._of(groups), lambda: TokenDesign.kernel(self, groups, *given, **more)
        )

    def contributions(self, groups, *given):
        return self._count(
            self._of(groups), lambda: TokenDesign.contributions(self, groups, *given)
        )

    def listed(self, groups):
        return self._count(self._of(groups), lambda: TokenDesign.listed(self, groups))

    def whole(self, groups, dtype):
        return self._count(self._of(groups), lambda: TokenDesign.whole(self, groups, dtype))

    def gather(self, rows, groups):
        read = self._rows(rows) * self._of(groups)
        return self._count(read, lambda: TokenDesign.gather(self, rows, groups))

    def _rows(self, rows: slice) -> float:
        """Part of all samples."""
        return len(range(*rows.indices(self.n_samples))) / self.n_samples


def count_certificates(monkeypatch: Any) -> None:
    """Put down passes of certificates to a stage of their own."""
    plain = Problem.certificate

    def certificate(problem: Problem, *given: Any, **more: Any) -> Any:
        design = problem.design
        before, design.stage = design.stage, "certificate"
        try:
            return plain(problem, *given, **more)
        finally:
            design.stage = before

    monkeypatch.setattr(Problem, "certificate", certificate)
