"""Archives of tar, unpacked by every Python that Halley supports."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path | str) -> None:
    """Unpack an archive into a folder, and nothing outside of it where Python can see to that, as of 3.11.4."""
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)
