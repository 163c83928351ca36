"""What a probe found: of every head, and of the layer."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from ..problem import Certificate
from ..problem.arrays import Array

_SHARES = ("share", "share_error", "attention_share", "model_attention_share")
_ARRAYS = ("strengths", "weights", "attention", "model_attention", "betas", "validation")


@dataclass(frozen=True)
class HeadProbe:
    """What is static in a head.

    Attributes
    ----------
    head : int
        Counted from 0.
    share : float
        Share of the variance of what the head writes into the layer that static mixing explains,
        on texts that were neither trained nor validated on. 0 is predicting the training mean; it
        can be negative.
    share_error : float
        Its standard error over test texts.
    attention_share : float
        The same of static attention alone: one weight per place, none negative, in all at most 1.
    model_attention_share : float
        The same of the model's own mean attention, frozen; nothing is fitted.
    names : tuple of str
        Places: offsets from the target and landmarks.
    strengths : ndarray of shape (places,)
        How much a place contributes: deviation of its contribution over that of the head's output.
    weights : ndarray of shape (places,)
        How far the certified coefficients of a place only weigh its values: by which number.
    attention : ndarray of shape (places,)
        Static attention to the place: the weights that explain most, none negative, in all at most
        1; what is missing goes to what does not vary.
    model_attention : ndarray of shape (places,)
        The model's own mean attention to it; of "mean", what is left. A landmark is also at some
        offset and counts for both, so that the sum may exceed 1.
    certificate : Certificate
        Of the fit: by how much, at most, another static mixing could lower its objective.
    betas, validation : ndarray of shape (B,)
        Penalties tried, as fractions of beta_max, and the share on validation texts at each.

    Notes
    -----
    A head that writes the same everywhere is `constant`: there is no variance to explain, and its
    shares are NaN.
    """

    head: int
    share: float
    share_error: float
    attention_share: float
    model_attention_share: float
    names: tuple[str, ...]
    strengths: Array
    weights: Array
    attention: Array
    model_attention: Array
    certificate: Certificate
    betas: Array
    validation: Array

    @classmethod
    def of_constant(cls, head: int, names: tuple[str, ...], model_attention: Array) -> Self:
        """A head that writes the same everywhere: the mean explains all of it."""
        nothing = np.zeros(len(names))
        found: dict[str, Any] = dict.fromkeys(_SHARES, math.nan) | dict.fromkeys(_ARRAYS, nothing)
        found |= {"model_attention": model_attention, "certificate": Certificate(0, 0, 0, 0)}
        found |= dict.fromkeys(("betas", "validation"), nothing[:0])
        return cls(head=head, names=names, **found)

    @property
    def constant(self) -> bool:
        """Whether the head writes the same everywhere."""
        return math.isnan(self.share)

    @property
    def top(self) -> list[str]:
        """Places in use, the one that contributes most first."""
        order = np.argsort(-self.strengths, kind="stable")
        return [self.names[k] for k in order if self.strengths[k] > 0]

    @property
    def offset(self) -> str:
        """The offset that certified mixing weighs most."""
        return self._largest(self.weights)

    @property
    def model_offset(self) -> str:
        """The offset with most of the model's own mean attention."""
        return self._largest(self.model_attention)

    def _largest(self, by_place: Array) -> str:
        n_offsets = sum(name.lstrip("+-").isdigit() for name in self.names)
        return self.names[int(np.argmax(by_place[:n_offsets]))]

    @property
    def beta(self) -> float:
        """Penalty of the fit, as a fraction of beta_max."""
        return 0.0 if self.constant else float(self.certificate.beta / self.certificate.beta_max)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        described = asdict(self) | {"certificate": self.certificate.to_dict()}
        described |= {"top": self.top, "offset": self.offset, "model_offset": self.model_offset}
        return described | {"relative_gap": self.certificate.relative_gap, "beta": self.beta}

    @classmethod
    def from_dict(cls, described: dict[str, Any]) -> Self:
        """What :meth:`to_dict` described, also after JSON."""
        given = {name: described[name] for name in cls.__dataclass_fields__}
        given |= {name: np.asarray(given[name], dtype=np.float64) for name in _ARRAYS}
        given |= {name: math.nan for name in _SHARES if given[name] is None}  # JSON has no NaN
        names = ("primal", "dual", "beta", "beta_max")
        certificate = [given["certificate"][name] for name in names]
        given |= {"certificate": Certificate(*certificate), "names": tuple(given["names"])}
        return cls(**given)


@dataclass(frozen=True)
class LayerProbe:
    """What is static in the heads of a layer.

    Attributes
    ----------
    model : str
    layer, n_layers : int
    causal : bool
        Whether attention looks back only.
    n_texts, n_targets : tuple of int
        Of training, validation and test.
    heads : list of HeadProbe
    tol : float
        Relative duality gap that was asked for.
    seed : int
    seconds : float
    """

    model: str
    layer: int
    n_layers: int
    causal: bool
    n_texts: tuple[int, ...]
    n_targets: tuple[int, ...]
    heads: list[HeadProbe]
    tol: float
    seed: int
    seconds: float

    @property
    def varying(self) -> list[HeadProbe]:
        """Heads that do not write the same everywhere."""
        return [head for head in self.heads if not head.constant]

    @property
    def agreement(self) -> int:
        """Heads whose `offset` is that of the model's own mean attention; constant ones not."""
        return sum(head.offset == head.model_offset for head in self.varying)

    @property
    def worst_gap(self) -> float:
        """Largest relative duality gap of all heads."""
        return max(float(head.certificate.relative_gap) for head in self.heads)

    def __repr__(self) -> str:
        shares = ", ".join(f"{head.share:.2f}" for head in self.heads)
        return (
            f"LayerProbe({self.model!r}, layer {self.layer} of {self.n_layers}; static shares "
            f"{shares}; relative gap at most {self.worst_gap:.1e})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        described = {name: getattr(self, name) for name in self.__dataclass_fields__}
        described["heads"] = [head.to_dict() for head in self.heads]
        return described | {"agreement": self.agreement, "worst_gap": self.worst_gap}

    @classmethod
    def from_dict(cls, described: dict[str, Any]) -> Self:
        """What :meth:`to_dict` described, also after JSON."""
        given = {name: described[name] for name in cls.__dataclass_fields__}
        given["heads"] = [HeadProbe.from_dict(head) for head in described["heads"]]
        return cls(**given | {name: tuple(given[name]) for name in ("n_texts", "n_targets")})
