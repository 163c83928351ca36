"""Modular division, the algorithmic task on which grokking was first seen."""

from dataclasses import dataclass, replace
from math import gcd
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ModularDivision:
    """All equations ``a / b = c (mod p)`` as tokens, and a split of them.

    Attributes
    ----------
    modulus : int
    tokens : ndarray of shape (N, 4), int64
        The tokens ``a, ÷, b, =`` of every equation: numbers stand for themselves, ``p`` is the sign
        of division and ``p + 1`` the sign of equality.
    answers : ndarray of shape (N,), int64
        The number ``c`` that follows.
    train, test : ndarray of int64
        Rows on either side of the split, in random order.
    """

    modulus: int
    tokens: Integers
    answers: Integers
    train: Integers
    test: Integers

    @property
    def vocabulary(self) -> int:
        """Number of different tokens: the numbers and two signs."""
        return self.modulus + 2

    def validation(self, share: float = 0.1) -> Self:
        """The training half split again: its last `share` takes the place of the test half.

        For choosing hyperparameters without a look at the test half, whose rows are on neither side
        of the new split.
        """
        kept = len(self.train) - round(share * len(self.train))
        return replace(self, train=self.train[:kept], test=self.train[kept:])


def modular_division(p: int = 97, *, train: float = 0.5, seed: int = 0) -> ModularDivision:
    r"""All equations of division modulo `p`, randomly split, as in Power et al. (2022).

    .. math:: a \div b = a\, b^{-1} \bmod p, \qquad 0 \le a < p, \quad \gcd(b, p) = 1

    For a prime p every b but 0 can be divided by, and there are ``p (p - 1)`` equations: 9,312 for
    97. Otherwise only the units can: modulo 15 those are 1, 2, 4, 7, 8, 11, 13 and 14, and there
    are 15 x 8 = 120 equations.

    Parameters
    ----------
    p : int
        Modulus.
    train : float
        Share of the equations to train on.
    seed : int
        Of the split.

    Returns
    -------
    ModularDivision

    References
    ----------
    A. Power et al., "Grokking: generalization beyond overfitting on small algorithmic datasets",
    2022.

    Examples
    --------
    >>> from experiments.grokking.division import modular_division
    >>> equations = modular_division(97)
    >>> len(equations.train), len(equations.answers)
    (4656, 9312)
    >>> modular_division(15).tokens.shape
    (120, 4)
    >>> a, _, b, _ = equations.tokens[5000]
    >>> bool((equations.answers[5000] * b - a) % 97 == 0)
    True
    """
    units = [b for b in range(p) if gcd(b, p) == 1]
    inverses = np.array([pow(b, -1, p) for b in units])
    a, j = np.divmod(np.arange(p * len(units)), len(units))  # every a with every unit
    b, c = np.array(units)[j], a * inverses[j] % p
    tokens = np.stack([a, np.full_like(a, p), b, np.full_like(a, p + 1)], axis=1)
    order = np.random.default_rng(seed).permutation(len(a))
    kept = round(train * len(a))
    return ModularDivision(p, tokens, c, order[:kept], order[kept:])
