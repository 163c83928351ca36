"""What estimators for targets at every position share: the fit, attention maps, the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from ..problem import TokenDesign
from ..problem.sequence import AttentionParts, SequenceProblem, to_tokens
from ..solvers.matrix_targets import solve_sequence
from ..solvers.refit import refit_sequence
from ..solvers.solution import Clock
from ._base import OneBeta, all_or_nothing
from ._parameters import parameters
from ._reading import Array, Mask, blank, check_sample_weight, check_tokens, required


@dataclass(frozen=True)
class AttentionMaps:
    """What positions attend to, read from the coefficients of a :class:`ConvexSequenceRegressor`.

    Attributes
    ----------
    positive, negative : ndarray of shape (n_channels, n_outputs, n_tokens, n_tokens)
        Attention maps of the equivalent network, one of each sign per input channel and output:
        row r says how target position r weighs source positions. Rows sum to one (to at most one
        for substochastic attention). A map of weight zero is zero.
    positive_weights, negative_weights : ndarray of shape (n_channels, n_outputs)
        How strongly each map counts: ``coef_ = positive_weights * positive - negative_weights *
        negative``, and their sum is the penalty.
    aggregate : ndarray of shape (n_tokens, n_tokens)
        Share of source positions in the absolute coefficients of every target position, over all
        channels and outputs. Rows sum to one; a target position without coefficients has a row of
        zeros.
    """

    positive: Array
    negative: Array
    positive_weights: Array
    negative_weights: Array
    aggregate: Array


@parameters
class SequenceModel(OneBeta):
    r"""Attention from position to position; subclasses say how targets become a loss.

    Parameters
    ----------
    attention : {"stochastic", "substochastic"}, default="stochastic"
        Whether rows of the attention sum to one, or to at most one. The latter drops the condition
        on row sums; it is the program that the paper prints, and its optimum is the lower of the
        two.

    Attributes
    ----------
    coef_ : ndarray of shape (n_channels, n_outputs, n_tokens, n_tokens)
        :math:`Z`: input channel, output, target position, source position. A classifier of two
        classes has one output, whose positive scores mean ``classes_[1]``; else one per class.
    intercept_ : ndarray of shape (n_outputs,)
        The same at all positions.
    attention_maps_ : AttentionMaps
        The maps of the equivalent network with their weights, and one map over all of them.
    n_outputs_ : int
    """

    attention: str = "stochastic"

    refit = False
    _targets = "sequence"  # what a saved model says of its targets
    _groups_name = "matrices"
    _solve = staticmethod(solve_sequence)
    _refit = staticmethod(refit_sequence)
    _ridge_of_certified = 0.0  # there is none

    _read_targets: ClassVar[Any]  # of real positions
    _task_loss: ClassVar[Any]

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, mask: Any = None) -> Self:
        """Fit to a certified global optimum.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_tokens, n_channels)
        y : array-like of shape (n_samples, n_tokens, n_outputs), or (n_samples, n_tokens)
            Targets, one vector per position; of a classifier labels, one per position.
        sample_weight : array-like of shape (n_samples,), optional
            Non-negative weights :math:`a_i`.
        mask : array-like of shape (n_samples, n_tokens), optional
            True where a token is real. At padding, X reads as zero, what is attended there adds
            nothing, and the target does not count; X may hold anything there, NaN included.

        Returns
        -------
        self
        """
        clock = Clock(self.max_iter, self.max_time)  # for the solve and the refit
        self._check_parameters()
        X, mask = check_tokens(self, X, mask, reset=True)
        real = _real(X.shape[:2], mask)
        rows = self._read_targets(required(self, y), real)
        Y = np.zeros((*real.shape, rows.shape[1]))
        Y[real] = rows
        weight = check_sample_weight(sample_weight, len(X))
        self._warn_of_one_sample(len(X))
        intercept, loss = bool(self.fit_intercept), self._task_loss()
        problem = SequenceProblem(X, Y, self.attention, weight, mask, intercept, loss)
        self._keep(self._minimise(problem, self._absolute_beta(problem), clock))
        self.n_outputs_ = Y.shape[2]
        self._warn_unless_converged()
        return self

    def _as_coef(self, Z: Array) -> Array:
        return Z  # (d, c, n, n)

    # After the fit ----------------------------------------------------------------------------

    def _scores(self, X: Any, mask: Any) -> tuple[Array, Mask | None]:
        """Scores of all positions ``(N, n, c)``, and the mask as it was read."""
        check_is_fitted(self)
        X, mask = check_tokens(self, X, mask, reset=False)
        T = to_tokens(self.coef_)  # (n, d, n, c)
        F = TokenDesign(X, mask).predict(T.reshape(*T.shape[:2], -1))
        return F.reshape(-1, *T.shape[2:]) + self.intercept_, mask

    def _answer(self, answer: Callable[[Array], NDArray], X: Any, mask: Any) -> NDArray:
        """What `answer` makes of the scores, marked at padding."""
        F, mask = self._scores(X, mask)
        answers = answer(F)
        if mask is not None:
            answers[~mask] = blank(answers.dtype)
        return answers

    def _judged(self, X: Any, mask: Any, sample_weight: Any) -> tuple[Array, Mask, Array]:
        """Scores of real positions ``(positions, c)``, which these are, and their weights."""
        F, mask = self._scores(X, mask)
        real = _real(F.shape[:2], mask)
        return F[real], real, _weights(check_sample_weight(sample_weight, len(F)), real)

    def _parts(self) -> AttentionParts:
        """Coefficients as a difference of nonnegative parts, ``coef_ = A - B``.

        Their (largest) row sums are ``a``, ``b``; heads of the network are ``A / a``, ``B / b``.
        """
        check_is_fitted(self)
        return AttentionParts.of(self.coef_, self.attention)

    @property
    def attention_maps_(self) -> AttentionMaps:
        """Attention maps of the equivalent network, and one over all of them."""
        parts = self._parts()
        mass = np.abs(self.coef_).sum(axis=(0, 1))
        return AttentionMaps(
            _over(parts.A, parts.a[:, :, None, None]),
            _over(parts.B, parts.b[:, :, None, None]),
            parts.a,
            parts.b,
            _over(mass, mass.sum(axis=1, keepdims=True)),
        )

    def to_network(self) -> Any:
        """The network this model is equivalent to, as a PyTorch module in float64.

        It has two heads per nonzero :math:`Z_{jl}`, one where its entries have one sign, the same
        predictions, and the same objective with weight decay. It is nonconvex in its weights, as
        networks are, and stands at a global optimum to within the certificate. That of a refitted
        model has the same predictions, but stands at no optimum.

        Returns
        -------
        convexformer.nn.SequenceAttention
            Needs PyTorch: ``pip install "convexformer[nn]"``.
        """
        parts = self._parts()
        from ..nn import to_sequence_network  # torch only where it is asked for

        intercept = self.intercept_ if self.fit_intercept else None
        return to_sequence_network(parts.A, parts.B, intercept, self.attention)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.input_tags.two_d_array = False
        return tags


def _over(parts: Array, sums: Array) -> Array:
    """``parts / sums``, zero where there is nothing."""
    return np.divide(parts, sums, out=np.zeros_like(parts), where=sums > 0)


def _real(shape: tuple[int, int], mask: Mask | None) -> Mask:
    return np.ones(shape, dtype=bool) if mask is None else mask


def _weights(weight: Array | None, real: Mask) -> Array:
    """The weight of every real position."""
    return np.repeat(np.ones(len(real)) if weight is None else weight, real.sum(axis=1))
