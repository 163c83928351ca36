"""Pixels of a satellite image."""

import numpy as np

from convexformer.datasets._tokens import TokenDataset, read_numbers

PIXELS = ("NW", "N", "NE", "W", "centre", "E", "SW", "S", "SE")
BANDS = ("green", "red", "infrared 1", "infrared 2")
CLASSES = {
    1: "red soil",
    2: "cotton crop",
    3: "grey soil",
    4: "damp grey soil",
    5: "vegetation stubble",
    7: "very damp grey soil",
}

DESCRIPTION = """\
What grows, or does not, on the ground under a pixel?

6,435 windows of 3 x 3 pixels (tokens NW, N, NE, W, centre, E, SW, S, SE, where north is the top of
the image) from one Landsat scene, each pixel with its brightness from 0 to 255 in four bands
(channels: two visible, two near infrared). The class is that of the centre pixel, found by a visit
to the site; a seventh class, mixtures, was left out by the donors. A pixel is about 80 m wide, so
neighbours say much about it, but the centre should matter most.

No window occurs twice, but windows overlap. Shifted copies fit together without a contradiction
into one scene of 82 x 100 pixels (all windows but one find their place), which proves the order of
the tokens, and means that a random split has the same pixels on both sides. Scores after a random
split, the usual practice, say how well gaps in this scene are filled. On parts of the scene kept
apart, accuracy is 5 to 10 points lower, for a logistic regression and a support vector machine
alike. Rows are in a fixed order unrelated to pixels and class.

Source: "Statlog (Landsat Satellite)", UCI Machine Learning Repository,
https://doi.org/10.24432/C55887, donated by A. Srinivasan. CC BY 4.0. Full attribution:
datasets/data/ATTRIBUTION.md in the package.
"""


def satimage() -> TokenDataset:
    """Load windows of 3 x 3 satellite pixels and what is on the ground at their centre.

    Returns
    -------
    TokenDataset
        `X` (6435, 9, 4), tokens NW to SE row by row, one channel per spectral band, from 0 to 255;
        `y` the class of the centre pixel. See `description` for source and preparation.

    Examples
    --------
    >>> from convexformer.datasets import satimage
    >>> pixels = satimage()
    >>> pixels.X.shape, pixels.target_names[:3]
    ((6435, 9, 4), ('red soil', 'cotton crop', 'grey soil'))
    >>> pixels.token_names
    ('NW', 'N', 'NE', 'W', 'centre', 'E', 'SW', 'S', 'SE')
    >>> centre = pixels.X[:, pixels.token_names.index("centre")]
    >>> crop = centre[pixels.y == 1].mean(axis=0)  # plants swallow red and reflect infrared
    >>> bool(crop[2] > 2 * crop[1])
    True
    """
    table = read_numbers("satimage.csv.gz")  # 9 x 4 numbers, class
    return TokenDataset(
        name="satimage",
        X=table[:, :-1].reshape(-1, 9, 4).astype(np.float64),
        y=np.searchsorted(list(CLASSES), table[:, -1]).astype(np.int64),
        target_names=tuple(CLASSES.values()),
        token_names=PIXELS,
        channel_names=BANDS,
        description=DESCRIPTION,
    )
