r"""What the models cost: Table 1 of the paper, corrected, beside counts of the actual modules.

Notation: n tokens, d channels, h heads (or gates), c outputs, m hidden units. FLOPs are those of
matrix products for one sample, two per multiplication and addition; element-wise work (softmax,
LayerNorm, masks) is not counted, by the formulas as little as by PyTorch's counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Sizes:
    """Sizes that the formulas speak of."""

    n: int
    d: int
    h: int
    c: int
    m: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{_WORDS[name]} must be at least 1, got {value}.")


_WORDS = {"n": "tokens", "d": "dim", "h": "heads", "c": "outputs", "m": "hidden"}


@dataclass(frozen=True)
class Cost:
    """One model of Table 1.

    Attributes
    ----------
    model : str
    layer : {"attention", "attention + FCN"}
    paper_parameters, paper_flops : str
        The formulas as printed; FLOPs are orders, without constants.
    parameters_formula, flops_formula : str
        The formulas as they should be; FLOPs exact.
    parameters, flops : int
        Their values.
    correction : str
        What the printed formulas lack; empty where they are right.
    counted_parameters, counted_flops : int, optional
        What PyTorch counts in the module itself.
    """

    model: str
    layer: str
    paper_parameters: str
    paper_flops: str
    parameters_formula: str
    flops_formula: str
    parameters: int
    flops: int
    correction: str = ""
    counted_parameters: int | None = None
    counted_flops: int | None = None


def costs(
    tokens: int,
    dim: int,
    heads: int,
    outputs: int,
    hidden: int | None = None,
    *,
    counted: bool = True,
) -> list[Cost]:
    """Parameters and FLOPs of the six models of Table 1.

    Parameters
    ----------
    tokens, dim, heads, outputs : int
        n, d, h and c; with a feed-forward part, h is also the number of gates.
    hidden : int, optional
        Hidden units of the standard block; ``4 * dim`` if omitted.
    counted : bool
        Whether to build the modules and count, which needs PyTorch.

    Returns
    -------
    list of Cost

    Examples
    --------
    >>> from convexformer.costs import costs
    >>> convex = costs(tokens=9, dim=20, heads=4, outputs=1, counted=False)[2]
    >>> convex.model, convex.parameters, convex.flops
    ('convex', 180, 360)
    """
    s = Sizes(tokens, dim, heads, outputs, 4 * dim if hidden is None else hidden)
    table = [*_attention(s), *_with_fcn(s)]
    if not counted:
        return table
    from .nn.counts import count

    return [
        replace(cost, counted_parameters=parameters, counted_flops=flops)
        for cost, (parameters, flops) in zip(table, count(s), strict=True)
    ]


def _attention(s: Sizes) -> Iterator[Cost]:
    n, d, h, c = s.n, s.d, s.h, s.c
    yield Cost(
        model="standard",
        layer="attention",
        paper_parameters="h(3d² + dc)",
        paper_flops="n²dh + ndhc",
        parameters_formula="h(3d² + dc)",
        flops_formula="2h(2n²d + 3nd² + ndc)",
        parameters=h * (3 * d * d + d * c),
        flops=2 * h * (2 * n * n * d + 3 * n * d * d + n * d * c),
        correction="the projections to queries, keys and values, nd²h, are missing",
    )
    yield Cost(
        model="alternative",
        layer="attention",
        paper_parameters="h(n + d + c)",
        paper_flops="nd + c",
        parameters_formula="h(n + d + c)",
        flops_formula="2h(nd + c)",
        parameters=h * (n + d + c),
        flops=2 * h * (n * d + c),
        correction="the factor h is missing",
    )
    yield Cost(
        model="convex",
        layer="attention",
        paper_parameters="ndc",
        paper_flops="ndc",
        parameters_formula="ndc",
        flops_formula="2ndc",
        parameters=n * d * c,
        flops=2 * n * d * c,
    )


def _with_fcn(s: Sizes) -> Iterator[Cost]:
    n, d, h, c, m = s.n, s.d, s.h, s.c, s.m
    yield Cost(
        model="standard",
        layer="attention + FCN",
        paper_parameters="h(3d² + dc)",
        paper_flops="n²dh + ndhc",
        parameters_formula="4hd² + m(d + c) + 2d",
        flops_formula="2h(2n²d + 4nd²) + 2nm(d + c)",
        parameters=4 * h * d * d + m * (d + c) + 2 * d,
        flops=2 * h * (2 * n * n * d + 4 * n * d * d) + 2 * n * m * (d + c),
        correction="the FCN's own weights are missing; the skip connection makes Wo d x d",
    )
    yield Cost(
        model="alternative",
        layer="attention + FCN",
        paper_parameters="h(n + d + c)",
        paper_flops="nd + c",
        parameters_formula="h(n + d + c)",
        flops_formula="2h(2nd + c)",
        parameters=h * (n + d + c),
        flops=2 * h * (2 * n * d + c),
        correction="the factor h is missing; one head per gate is not enough (up to nc are needed)",
    )
    yield Cost(
        model="convex",
        layer="attention + FCN",
        paper_parameters="ndch",
        paper_flops="ndch",
        parameters_formula="ndch",
        flops_formula="2h(ndc + nd + c)",
        parameters=n * d * c * h,
        flops=2 * h * (n * d * c + n * d + c),
    )
