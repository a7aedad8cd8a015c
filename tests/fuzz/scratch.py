"""Folders for files that a fuzz target writes in each of its runs."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path


@cache
def scratch_folder(name: str) -> Path:
    """Return the process's folder of this name, which goes when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"aio-fuzz-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
