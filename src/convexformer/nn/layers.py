"""Layers whose training is a convex problem on fixed inputs: the program itself, and with gates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._network import Network, check_choice, real_tokens
from ._simplex import check_gates

OUTPUTS = ("sequence", "vector")
PENALTIES = ("token", "token-output")


class GatedLayer(Network):
    r"""The paper's gated layer: tokens ``(B, n, d)`` in, ``(B, n, c)`` or a vector ``(B, c)`` out.

    .. math:: Y_p = \sum_j m_j \sum_k X_k Z_{jkp} + b_p, \qquad
              m_j = 1\{\langle U_j, X\rangle \ge t_j\}

    Every output position p has weights of its own; a vector is a single position. Gates read the
    whole input through fixed Gaussian directions, :math:`U_j = u_j v_j^T` as in the paper, and are
    worked out anew from every input. They are hard, so no gradient flows through them.

    The layer is convex in its weights as long as its inputs are fixed (``is_convex``). Below a
    trained embedding, or in a stack, training it is not a convex problem: see
    :class:`GatedTransformer`, whose ``is_convex`` says so.

    Parameters
    ----------
    n_tokens, dim : int
    n_outputs : int, optional
        Width c of the output; `dim` if omitted.
    n_gates : int
        Number h of gates; ignored where `directions` are given.
    outputs : {"sequence", "vector"}
    causal : bool
        Whether output position p reads only tokens ``k <= p``, and its gates too:
        :math:`m_{jp} = 1\{\sum_{k \le p} \langle U_{jk}, X_k\rangle \ge t_j\}`. Only finite
        tokens are kept from earlier positions: zero times NaN is NaN.
    penalty : {"token", "token-output"}
        What is one group of the penalty: the block :math:`Z_{jkp}`, or each of its columns.
    intercept : bool
        Whether to add b, which is not penalised.
    directions : Tensor of shape (h, n, d), optional
        Drawn if omitted.
    thresholds : Tensor of shape (h,), optional
        Zeros if omitted; ``-inf`` for a gate that is always open.

    Attributes
    ----------
    Z : Parameter of shape (h, n, d, P, c)
        P is n for a sequence and 1 for a vector. Drawn so that outputs are as large as inputs,
        with half of the gates open; zero where a causal layer must not look.

    Examples
    --------
    >>> import torch
    >>> from convexformer.nn import GatedLayer
    >>> X = torch.randn(10, 5, 3)
    >>> GatedLayer(n_tokens=5, dim=3)(X).shape
    torch.Size([10, 5, 3])
    >>> network = torch.nn.Sequential(
    ...     GatedLayer(5, 3, n_gates=8),
    ...     GatedLayer(5, 3, n_outputs=2, outputs="vector"),
    ... )
    >>> network(X).shape
    torch.Size([10, 2])
    """

    is_convex = True
    directions: Tensor
    thresholds: Tensor
    seen: Tensor | None

    def __init__(
        self,
        n_tokens: int,
        dim: int,
        n_outputs: int | None = None,
        n_gates: int = 64,
        *,
        outputs: str = "sequence",
        causal: bool = False,
        penalty: str = "token",
        intercept: bool = False,
        directions: Tensor | None = None,
        thresholds: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("outputs", outputs, OUTPUTS)
        check_choice("penalty", penalty, PENALTIES)
        self.outputs, self.penalty = outputs, penalty
        if causal and outputs == "vector":
            raise ValueError('A vector reads all tokens. Pass outputs="sequence" with causal=True.')
        if directions is None:
            directions = gaussian_directions(n_gates, n_tokens, dim, dtype)
        if thresholds is None:
            thresholds = torch.zeros(len(directions), dtype=directions.dtype)
        check_gates(directions, thresholds)
        c, P = dim if n_outputs is None else n_outputs, n_tokens if outputs == "sequence" else 1
        if directions.shape[1:] != (n_tokens, dim) or min(c, directions.numel()) < 1:
            raise ValueError(
                "n_tokens, dim, n_outputs and n_gates must be at least 1, and directions of shape "
                f"(g, {n_tokens}, {dim}), got {tuple(directions.shape)} for {c} outputs."
            )
        self.register_buffer("directions", directions)
        self.register_buffer("thresholds", thresholds)
        self.Z = nn.Parameter(torch.empty(len(directions), n_tokens, dim, P, c, dtype=dtype))
        self._add_intercept(intercept, P, c, dtype=dtype)
        seen = torch.ones(n_tokens, P, dtype=torch.bool).triu() if causal else None  # k <= p
        self.register_buffer("seen", seen, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw Z anew and set the intercept to zero."""
        h, n, d = self.directions.shape
        with torch.no_grad():
            self.Z.normal_(std=(2 / (h * n * d)) ** 0.5)
            if self.seen is not None:  # (n, P): positions that see few tokens have larger weights
                scale = self.seen * (n / self.seen.sum(0)) ** 0.5
                self.Z.mul_(scale[:, None, :, None])
            if self.intercept is not None:
                self.intercept.zero_()

    @property
    def group_axes(self) -> tuple[int, ...]:
        """Axes of `Z` that lie within a group of the penalty, for :class:`ProximalAdam`."""
        return (2, 4) if self.penalty == "token" else (2,)

    def group_norms(self) -> Tensor:
        """Norms of the groups of the penalty: ``(h, n, P)``, or ``(h, n, P, c)``."""
        return torch.linalg.vector_norm(self.Z, dim=self.group_axes)

    def decay(self) -> Tensor:
        """Twice the penalty, so that ``beta / 2 * decay`` is ``beta * penalty``."""
        return 2 * self.group_norms().sum()

    @torch.no_grad()
    def gates(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """Which gates are open, bool ``(B, h, 1)``; ``(B, h, n)`` if causal."""
        with torch.autocast(X.device.type, enabled=False):  # a sign needs all its digits
            X = real_tokens(X, mask).to(self.directions.dtype)
            if self.seen is None:
                score = (X.flatten(1) @ self.directions.flatten(1).T)[:, :, None]  # (B, h, 1)
            else:
                score = torch.einsum("bkd,hkd->bhk", X, self.directions).cumsum(2)  # (B, h, n)
            return score >= self.thresholds[:, None]

    def forward(self, X: Tensor, mask: Tensor | None = None, gates: Tensor | None = None) -> Tensor:
        """Tokens ``(B, n, c)`` or a vector ``(B, c)`` of tokens ``(B, n, d)``.

        Parameters
        ----------
        X : Tensor of shape (B, n, d)
        mask : Tensor of bool of shape (B, n), optional
            True where a token is real. Padding is read as zeros; what is returned at padded
            positions means nothing.
        gates : Tensor of bool, optional
            Frozen gates, of the shape that :meth:`gates` returns, in place of those of `X`.
        """
        self._check(X, mask, gates)
        X = real_tokens(X, mask)
        m = self.gates(X) if gates is None else gates
        h, _, _, P, c = self.Z.shape
        Z = self.Z if self.seen is None else self.Z.where(self.seen[:, None, :, None], 0.0)
        W = Z.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)  # (n d, h P c)
        by_gate = (X.flatten(1) @ W).unflatten(1, (h, P, c))  # (B, h, P, c)
        m = m.to(by_gate.dtype)
        if self.seen is None:  # all positions share the gates (B, h, 1): one product per sample
            Y = (m.transpose(1, 2) @ by_gate.flatten(2)).view_as(by_gate[:, 0])
        else:
            Y = (by_gate * m[..., None]).sum(1)
        return self._finish(Y)

    def from_table(
        self,
        tokens: Tensor,
        table: Tensor,
        mask: Tensor | None = None,
        gates: Tensor | None = None,
    ) -> Tensor:
        """The same as ``self(table[tokens], mask, gates)``, faster where the table is small.

        Every token meets the weights once, whatever the number of samples that have it, if these
        are at least twice as many as the tokens of the table. Gates that differ by position, as
        those of a causal layer, leave nothing to share.

        Parameters
        ----------
        tokens : Tensor of int of shape (B, n)
        table : Tensor of shape (V, d)
            The embedding of every token.
        mask, gates
            As in :meth:`forward`.
        """
        _, n, _, P, c = self.Z.shape
        X = functional.embedding(tokens, table)  # (B, n, d); unlike an index, it refuses -1
        self._check(X, mask, gates)
        if self.seen is not None or 2 * len(table) > len(tokens):  # too few repeat
            return self(X, mask, gates)
        m = (self.gates(X, mask) if gates is None else gates)[:, :, 0]  # (B, h)
        parts = []
        for k in range(n):
            read = (m if mask is None else m & mask[:, k, None]).to(table.dtype)
            parts.append(sum_by_token(tokens[:, k], table, self.Z[:, k].flatten(2), read))
        return self._finish(torch.stack(parts).sum(0).unflatten(1, (P, c)))

    def _finish(self, Y: Tensor) -> Tensor:
        """Outputs ``(B, P, c)``, or ``(B, c)``, of gated sums ``(B, P, c)``."""
        Y = self._shifted(Y)
        return Y if self.outputs == "sequence" else Y[:, 0]

    def _check(self, X: Tensor, mask: Tensor | None, gates: Tensor | None) -> None:
        (h, n, d), B = self.directions.shape, len(X)
        shapes = {"X": (B, n, d), "mask": (B, n), "gates": (B, h, 1 if self.seen is None else n)}
        for (name, shape), given in zip(shapes.items(), (X, mask, gates), strict=True):
            if given is not None and given.shape != shape:
                raise ValueError(
                    f"In a layer of {n} tokens {name} must have shape {shape}, got "
                    f"{tuple(given.shape)}. Pad sequences and pass a mask."
                )


def gaussian_directions(h: int, n: int, d: int, dtype: torch.dtype | None = None) -> Tensor:
    """The paper's: ``U_j = u v'`` with Gaussian u and v, ``(h, n, d)``."""
    return torch.randn(h, n, 1, dtype=dtype) * torch.randn(h, 1, d, dtype=dtype)


def sum_by_token(tokens: Tensor, table: Tensor, W: Tensor, m: Tensor) -> Tensor:
    r"""What one position adds: :math:`\sum_j m_{ij} E_{t_i} W_j`, ``(B, q)``.

    Samples with the same token t share :math:`E_t W`, so they are multiplied with it together.

    Parameters
    ----------
    tokens : Tensor of int of shape (B,)
    table : Tensor of shape (V, d)
    W : Tensor of shape (h, d, q)
    m : Tensor of shape (B, h)
        Open gates as numbers.
    """
    h, _, q = W.shape
    present, which, count = tokens.unique(return_inverse=True, return_counts=True)
    brought = (table[present] @ W.transpose(0, 1).flatten(1)).unflatten(1, (h, q))  # (T, h, q)
    order = which.argsort()
    gates = m[order].split(count.tolist())  # (samples, h) of every token
    parts = [rows @ block for rows, block in zip(gates, brought, strict=True)]  # (samples, q)
    return torch.cat(parts)[order.argsort()]
