"""Parameters and FLOPs of the models of the paper's Table 1, beside its formulas."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..lab import table
from .formulas import Cost, costs

SIZES = {
    "tokens": "number of tokens, n",
    "dim": "embedding dimension, d",
    "heads": "number of heads or gates, h",
    "outputs": "number of outputs, c",
}
COLUMNS = (
    ("parameters", "counted_parameters", "parameters_formula", "paper_parameters"),
    ("FLOPs", "counted_flops", "flops_formula", "paper_flops"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs", description=__doc__)
    for name, words in SIZES.items():
        parser.add_argument(f"--{name}", type=int, required=True, help=words)
    parser.add_argument("--hidden", type=int, help="hidden units of the standard block (4 dim)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    sizes = {name: getattr(options, name) for name in SIZES}
    try:
        counted = costs(**sizes, hidden=options.hidden)
    except ValueError as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(sizes | {"models": [asdict(cost) for cost in counted]}))
    else:
        print("\n\n".join(_shown(counted)))
    return 0


def _shown(counted: list[Cost]) -> Any:
    for layer in dict.fromkeys(cost.layer for cost in counted):
        rows = [cost for cost in counted if cost.layer == layer]
        for title, number, *formulas in COLUMNS:
            header = [layer, title, "formula", "in the paper"]
            numbers = [f"{getattr(cost, number):,}" for cost in rows]
            words = [[getattr(cost, formula) for formula in formulas] for cost in rows]
            each = zip(rows, numbers, words, strict=True)
            yield table(header, [[cost.model, number, *own] for cost, number, own in each])
        yield from (f"{cost.model}: {cost.correction}" for cost in rows if cost.correction)
    yield "Counted in the modules: trained weights, and matrix products for one sample."


if __name__ == "__main__":
    raise SystemExit(main())
