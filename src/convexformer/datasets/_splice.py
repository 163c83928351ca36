"""Primate splice junctions."""

import numpy as np

from convexformer.datasets._tokens import TokenDataset, one_hot, read_table

BASES = tuple("ACGT")
CLASSES = ("EI", "IE", "N")
IUPAC = {"D": "AGT", "N": "ACGT", "R": "AG", "S": "CG"}  # the ambiguous letters that occur

DESCRIPTION = """\
Where does a gene change from exon to intron, or back?

3,005 windows of 60 bases of primate DNA (tokens -30 to -1 before the midpoint and +1 to +30 after
it; there is no position 0; channels A, C, G, T). At the midpoint is an exon-intron boundary (EI,
the donor site), an intron-exon boundary (IE, the acceptor site) or neither (N). Biology knows where
to look: an intron begins with GT (+1, +2 in EI) and ends with AG (-2, -1 in IE), after a stretch
rich in C and T.

Exact duplicates were removed (3,190 to 3,005), because copies leak from training to test. One
sequence was listed both as IE and as N; it is kept as IE. 15 sequences hold ambiguous bases (60
letters in all: 56 N, 2 D, 1 R, 1 S); such a token has equal fractions for the bases it may be,
for N 1/4 each. Rows are in a fixed order unrelated to sequence and class.

Source: "Molecular Biology (Splice-junction Gene Sequences)", UCI Machine Learning Repository,
https://doi.org/10.24432/C5M888, donated by G. Towell, M. Noordewier and J. Shavlik. CC BY 4.0.
Please cite M. O. Noordewier et al., Advances in Neural Information Processing Systems 3 (1991).
Full attribution: datasets/data/ATTRIBUTION.md in the package.
"""


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
    sequences, labels = read_table("splice_junctions.csv.gz")
    return TokenDataset(
        name="splice",
        X=one_hot(sequences, BASES, IUPAC),
        y=np.array([CLASSES.index(label) for label in labels], dtype=np.int64),
        target_names=CLASSES,
        token_names=tuple(f"{k:+d}" for k in range(-30, 31) if k != 0),
        channel_names=BASES,
        sequences=sequences,
        description=DESCRIPTION,
    )
