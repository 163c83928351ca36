"""Peptides and their binding affinity to HLA-A*02:01."""

import numpy as np

from convexformer.datasets._tokens import TokenDataset, one_hot, read_table

AMINO_ACIDS = tuple("ACDEFGHIKLMNPQRSTVWY")
BINDER_NM = 500.0  # the customary threshold for a binder

DESCRIPTION = """\
Which peptides does the human MHC molecule HLA-A*02:01 bind?

8,544 peptides of nine amino acids (tokens P1 to P9, 20 channels) with their measured IC50 in nM
(`target_values`). A peptide is a binder (y = 1) if IC50 <= 500 nM. Biology knows where to look: the
anchors are P2 (leucine or methionine) and P9 (valine or leucine).

Made from 11,567 quantitative measurements. 2,459 peptides were measured more than once; each is one
row here, with the median on the log scale. For 112 of these the measurements lie on both sides of
500 nM, so their label is uncertain. Values that recur, such as 20,000 nM (1,879 peptides), look
like the upper limit of an assay ("no binding seen up to here"): fine for classes, poor for
regression. No peptide occurs twice, but 742 have a neighbour that differs in one residue. Rows are
in a fixed order unrelated to sequence and class.

Source: Immune Epitope Database (IEDB, https://www.iedb.org), curated by MHCflurry. CC BY 4.0.
Please cite R. Vita et al., Nucleic Acids Research 47 (2019), D339, and Y. Kim et al., BMC
Bioinformatics 15 (2014), 241. Full attribution: datasets/data/ATTRIBUTION.md in the package.
"""


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
    peptides, affinities = read_table("hla_a0201_9mers.csv.gz")
    ic50 = np.array(affinities, dtype=np.float64)
    return TokenDataset(
        name="hla",
        X=one_hot(peptides, AMINO_ACIDS),
        y=(ic50 <= BINDER_NM).astype(np.int64),
        target_names=("non-binder", "binder"),
        token_names=tuple(f"P{k}" for k in range(1, 10)),
        channel_names=AMINO_ACIDS,
        sequences=peptides,
        description=DESCRIPTION,
        target_values=ic50,
    )
