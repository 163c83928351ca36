"""Table 1: formulas against what PyTorch counts in the modules themselves."""

import pytest
import torch
from experiments.costs.__main__ import main
from experiments.costs.formulas import TransformerBlock, costs

SHAPES = [(9, 20, 4, 3), (9, 20, 1, 1), (5, 2, 7, 4), (32, 16, 8, 1)]


@pytest.mark.parametrize(("n", "d", "h", "c"), SHAPES)
@pytest.mark.parametrize("hidden", [None, 11])
def test_formulas_are_what_is_counted(n, d, h, c, hidden):
    for cost in costs(n, d, h, c, hidden):
        assert cost["counted_parameters"] == cost["parameters"], cost
        assert cost["counted_flops"] == cost["flops"], cost


@pytest.mark.parametrize(("n", "d", "h", "c"), SHAPES)
def test_formula_texts_are_the_values(n, d, h, c):
    names = {"n": n, "d": d, "h": h, "c": c, "m": 4 * d}
    for cost in costs(n, d, h, c):
        assert evaluate(cost["parameters_formula"], names) == cost["parameters"]
        assert evaluate(cost["flops_formula"], names) == cost["flops"]
        if not cost["correction"]:  # the printed formulas are then right, FLOPs to a constant
            assert evaluate(cost["paper_parameters"], names) == cost["parameters"]
            assert cost["flops"] / evaluate(cost["paper_flops"], names) <= 5


def evaluate(formula, names):
    """A formula of the table as a number: letters side by side are factors."""
    text = ""
    for sign in formula.replace(" ", ""):
        if sign.isalpha() or sign == "(":
            text += "*" if text[-1:].isalnum() or text[-1:] == ")" else ""
        text += {"²": "**2"}.get(sign, sign)
    return eval(text, {}, names)


def test_the_standard_block_is_the_papers_equation():
    torch.manual_seed(0)
    block, X = TransformerBlock(d=3, h=4, c=2, m=6).double(), torch.randn(7, 5, 3).double()
    A = block.attention(X)
    A = (A - A.mean(2, keepdim=True)) / (A.var(2, correction=0, keepdim=True) + 1e-5).sqrt() + X
    first, second = (block.feed[place].weight.T for place in (0, 2))
    torch.testing.assert_close(block(X), (A @ first).clamp(min=0) @ second)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="heads must be at least 1, got 0"):
        costs(3, 2, 0, 1)


def test_the_command_shows_tables(capsys):
    sizes = ["--tokens", "9", "--dim", "20", "--heads", "4", "--outputs", "1"]
    assert main(sizes) == 0
    shown = capsys.readouterr().out
    assert "| convex | 180 | ndc | ndc |" in shown and "the factor h is missing" in shown
    with pytest.raises(SystemExit):
        main([*sizes, "--hidden", "0"])
    assert "hidden must be at least 1, got 0" in capsys.readouterr().err
