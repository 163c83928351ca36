"""Parameters and FLOPs of the models of the paper's Table 1, beside its formulas."""

import argparse
from pathlib import Path

from ..lab import render
from .formulas import costs

SIZES = {
    "tokens": "number of tokens, n",
    "dim": "embedding dimension, d",
    "heads": "number of heads or gates, h",
    "outputs": "number of outputs, c",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.costs", description=__doc__)
    for name, words in SIZES.items():
        parser.add_argument(f"--{name}", type=int, required=True, help=words)
    parser.add_argument("--hidden", type=int, help="hidden units of the standard block (4 dim)")
    options = parser.parse_args(arguments)
    sizes = {name: getattr(options, name) for name in SIZES}
    try:
        counted = costs(**sizes, hidden=options.hidden)
    except ValueError as error:
        parser.error(str(error))
    print(render(Path(__file__).parent / "tables.md", models=counted))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
