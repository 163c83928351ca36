"""Measured data that ship with the package: peptides, DNA, pixels, pen strokes, movements.

Each data set is a table in ``data/NAME...csv.gz`` and a description in ``data/NAME.txt``.
"""

import gzip
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._tokens import TokenDataset, one_hot

AMINO_ACIDS = tuple("ACDEFGHIKLMNPQRSTVWY")
BASES = tuple("ACGT")
IUPAC = {"D": "AGT", "N": "ACGT", "R": "AG", "S": "CG"}  # the ambiguous letters that occur

BINDER_NM = 500.0  # IC50 in nM, the customary threshold for a binder
SLICE_SECONDS = 0.32  # of one token of `motion`
SOILS = (1, 2, 3, 4, 5, 7)  # numbers of the classes in the file of `satimage`

NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "hla": (("non-binder", "binder"), tuple(f"P{k}" for k in range(1, 10)), AMINO_ACIDS),
    "splice": (("EI", "IE", "N"), tuple(f"{k:+d}" for k in range(-30, 31) if k != 0), BASES),
    "satimage": (
        (
            "red soil",
            "cotton crop",
            "grey soil",
            "damp grey soil",
            "vegetation stubble",
            "very damp grey soil",
        ),
        ("NW", "N", "NE", "W", "centre", "E", "SW", "S", "SE"),
        ("green", "red", "infrared 1", "infrared 2"),
    ),
    "pendigits": (tuple("0123456789"), tuple(f"p{k}" for k in range(1, 9)), ("x", "y")),
    "motion": (
        (
            "pendulum",
            "abduction",
            "forward elevation",
            "internal rotation",
            "external rotation",
            "trapezius row",
            "bent-over row",
        ),
        tuple(f"{k * SLICE_SECONDS:.2f} s" for k in range(8)),
        ("ax", "ay", "az", "wx", "wy", "wz"),
    ),
}
"""Names of the classes, tokens and channels of every data set."""


def hla() -> TokenDataset:
    """Load 9-mer peptides and whether HLA-A*02:01 binds them.

    A peptide is a binder if its IC50, the concentration at which it displaces half of a reference
    peptide, is at most 500 nM:  ``y = 1{IC50 <= 500}``.

    Returns
    -------
    TokenDataset
        `X` (8544, 9, 20), tokens P1 to P9, one channel per amino acid; `y` 1 for binders;
        `target_values` the IC50 in nM. See `description` for source and preparation.

    Examples
    --------
    >>> from convexformer.datasets import hla
    >>> peptides = hla()
    >>> peptides
    <TokenDataset hla: 8544 samples x 9 tokens x 20 channels; 5338 non-binder, 3206 binder>
    >>> peptides.sequences[1], float(peptides.target_values[1]), int(peptides.y[1])
    ('AMLDHAGDM', 80.0, 1)
    """
    peptides, affinities = _columns("hla_a0201_9mers.csv.gz")
    ic50 = np.array(affinities, dtype=np.float64)
    X = one_hot(peptides, AMINO_ACIDS)
    return _dataset("hla", X, ic50 <= BINDER_NM, sequences=peptides, target_values=ic50)


def splice() -> TokenDataset:
    """Load windows of DNA and the kind of splice junction at their midpoint.

    Returns
    -------
    TokenDataset
        `X` (3005, 60, 4), tokens -30 to -1 and +1 to +30, one channel per base; `y` 0 for EI
        (exon to intron), 1 for IE (intron to exon), 2 for N (neither). Ambiguous bases are
        fractional rows. See `description` for source and preparation.

    Examples
    --------
    >>> from convexformer.datasets import splice
    >>> windows = splice()
    >>> windows
    <TokenDataset splice: 3005 samples x 60 tokens x 4 channels; 679 EI, 673 IE, 1653 N>
    >>> windows.token_names[28:32]
    ('-2', '-1', '+1', '+2')
    >>> after = windows.X[windows.y == 0, 30:32].mean(axis=0)  # EI: an intron begins with GT
    >>> [windows.channel_names[j] for j in after.argmax(axis=1)]
    ['G', 'T']
    """
    sequences, junctions = _columns("splice_junctions.csv.gz")
    y = [NAMES["splice"][0].index(junction) for junction in junctions]
    return _dataset("splice", one_hot(sequences, BASES, IUPAC), y, sequences=sequences)


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
    table = _numbers("satimage.csv.gz")  # 9 x 4 numbers, class
    return _dataset("satimage", table[:, :-1], np.searchsorted(SOILS, table[:, -1]))


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
    table = _numbers("pendigits.csv.gz")  # 8 x 2 numbers, digit
    return _dataset("pendigits", table[:, :-1], table[:, -1])


def motion() -> TokenDataset:
    """Load windows of smartwatch signals and the exercise the wearer was doing.

    Returns
    -------
    TokenDataset
        `X` (1833, 8, 6), tokens in time, channels acceleration and angular velocity; `y` one of
        seven exercises; `groups` one of ten persons, 1 to 10. See `description` for source and
        preparation.

    Examples
    --------
    >>> from convexformer.datasets import motion
    >>> windows = motion()
    >>> windows.X.shape, windows.token_names[:3], windows.channel_names[:3]
    ((1833, 8, 6), ('0.00 s', '0.32 s', '0.64 s'), ('ax', 'ay', 'az'))
    >>> hanging = windows.X[windows.y == windows.target_names.index("pendulum")]
    >>> float(hanging[:, :, 0].mean().round(1))  # gravity, along the forearm
    -1.0
    >>> sorted(set(windows.groups.tolist()))
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    """
    table = _numbers("motion.csv.gz")  # 8 x 6 numbers in thousandths, exercise, person
    return _dataset("motion", table[:, :-2] / 1000, table[:, -2], groups=table[:, -1].copy())


def _dataset(name: str, X: NDArray[Any], y: ArrayLike, **more: Any) -> TokenDataset:
    """`X`, of any shape with a row per sample, and `y`, with the names and the description."""
    classes, tokens, channels = NAMES[name]
    return TokenDataset(
        name=name,
        X=X.reshape(len(X), len(tokens), len(channels)).astype(np.float64),
        y=np.array(y, dtype=np.int64),
        target_names=classes,
        token_names=tokens,
        channel_names=channels,
        description=_file(f"{name}.txt").decode(),
        **more,
    )


def _columns(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The two columns of a table of text."""
    first, second = zip(*(line.split(",") for line in _lines(name)), strict=True)
    return first, second


def _numbers(name: str) -> NDArray[np.int64]:
    """A table of whole numbers."""
    return np.loadtxt(_lines(name), delimiter=",", dtype=np.int64)


def _lines(name: str) -> list[str]:
    """Lines of a packed table, without its header."""
    return gzip.decompress(_file(name)).decode("ascii").splitlines()[1:]


def _file(name: str) -> bytes:
    return files("convexformer.datasets").joinpath("data", name).read_bytes()
