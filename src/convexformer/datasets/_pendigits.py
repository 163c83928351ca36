"""Handwritten digits as pen strokes."""

import numpy as np

from convexformer.datasets._tokens import TokenDataset, read_numbers

DESCRIPTION = """\
Which digit did the pen write?

10,992 digits written on a tablet by 44 people. A stroke is eight points, equally far apart along
the path of the pen (tokens p1, where the pen set down, to p8; channels x to the right and y
upwards). Each digit was shifted and scaled to fill a box: x and y both run from 0 to 100. Lifting
the pen leaves no trace, so a 4 or 5 of two strokes is joined by a jump.

No stroke occurs twice. Who wrote which digit is not in the file, so a random split has the same
hands on both sides: it asks for known writers. The donors kept 14 writers apart for their test,
which is harder. Rows are in a fixed order unrelated to stroke and class.

Source: "Pen-Based Recognition of Handwritten Digits", UCI Machine Learning Repository,
https://doi.org/10.24432/C5MG6K, donated by E. Alpaydin and F. Alimoglu. CC BY 4.0. Full
attribution: datasets/data/ATTRIBUTION.md in the package.
"""


def pendigits() -> TokenDataset:
    """Load digits written with a pen, as eight points each.

    Returns
    -------
    TokenDataset
        `X` (10992, 8, 2), tokens p1 to p8 in the order of writing, channels x and y from 0 to 100;
        `y` the digit. See `description` for source and preparation.

    Examples
    --------
    >>> from convexformer.datasets import pendigits
    >>> strokes = pendigits()
    >>> strokes.X.shape
    (10992, 8, 2)
    >>> strokes.X[strokes.y == 2].mean(axis=0)[[0, -1]].round()  # from top left to bottom right
    array([[18., 77.],
           [99.,  4.]])
    """
    table = read_numbers("pendigits.csv.gz")  # 8 x 2 numbers, digit
    return TokenDataset(
        name="pendigits",
        X=table[:, :-1].reshape(-1, 8, 2).astype(np.float64),
        y=table[:, -1].copy(),
        target_names=tuple("0123456789"),
        token_names=tuple(f"p{k}" for k in range(1, 9)),
        channel_names=("x", "y"),
        description=DESCRIPTION,
    )
