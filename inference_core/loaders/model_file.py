"""Opens the files of a model, which strangers made: regular files alone, and no more of them than a reader needs."""

import mmap
import os
import stat
from pathlib import Path
from typing import BinaryIO

from inference_core.errors import ModelFileError

MAX_SETTINGS = 8 << 20
"""Bytes of config.json and other settings: those of large models have some hundred thousand."""
MAX_INDEX = 32 << 20
MAX_TOKENIZER = 64 << 20
"""Bytes of an index of shards and of tokenizer.json: the largest have 16 and 35 million."""
MAX_TENSORS = 200_000
"""Tensors of one file."""


def read_model_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises ModelFileError for any other, without waiting for a pipe or a device; its cause is the OSError, if any.
    """
    with open_model_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # As much as it has, and one byte more where it grows: a reader's buffer is as large as what it asks for.
        content = file.read(size + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise ModelFileError(f"cannot read {path}: it has {size} bytes; at most {most} are read of such a file")
    return content


def map_model_file(path: Path) -> mmap.mmap:
    """Return a regular file's content, mapped and read-only. Raises ModelFileError, for an empty file too."""
    with open_model_file(path) as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ModelFileError(f"{path} is empty") from error
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror or error}") from error


def open_model_file(path: Path) -> BinaryIO:
    """Open a regular file. Raises ModelFileError."""
    try:
        # Else opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelFileError(f"cannot read {path}: it is not a regular file")
    return os.fdopen(descriptor, "rb")
