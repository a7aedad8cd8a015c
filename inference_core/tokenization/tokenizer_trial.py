"""Reads a stranger's tokenizer.json once in a child process with limits, before this process does."""

import hashlib
import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from inference_core.errors import ModelFileError
from inference_core.loaders.model_file import MAX_TOKENIZER, read_model_file

MAX_BYTES, MAX_SECONDS = 2 << 30, 10
# The child imports the library alone: this is half as long as with this package.
_PROGRAM = """
import resource, sys
sys.path[:] = sys.argv[3:]
from tokenizers import Tokenizer
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]),) * 2)
try:
    tokenizer = Tokenizer.from_buffer(sys.stdin.buffer.read())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode("a \\U0010fffd" + " word, 12 words;" * 1000)
except MemoryError:
    raise
except BaseException:
    # What the library refuses, the serving process refuses with the library's own words.
    pass
"""


def require_small_file(file: Path) -> None:
    """As `require_small`, of a file's content. Raises ModelFileError, also for one of more than 64 MB."""
    require_small(file, read_model_file(file, MAX_TOKENIZER))


def require_small(file: Path, content: bytes) -> None:
    """Raise ModelFileError if reading a tokenizer.json takes more than 2 GB or 10 s of processor time.

    The answer for a content is kept in the cache folder, so that a child reads each once.
    """
    key = hashlib.blake2b(content, key=version("tokenizers").encode(), digest_size=20).hexdigest()
    passed = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aio" / "tokenizers" / key
    if passed.exists():
        return
    limits = (str(MAX_BYTES), str(MAX_SECONDS))
    program = [sys.executable, "-I", "-S", "-c", _PROGRAM, *limits, *filter(None, sys.path)]
    try:
        child = subprocess.run(  # noqa: S603 - our own program
            program, input=content, capture_output=True, timeout=6 * MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        status = -1
    else:
        status = child.returncode
    if status:
        raise ModelFileError(
            f"{file} is too large: reading it takes more than {MAX_BYTES >> 30} GB of memory or {MAX_SECONDS} s"
        )
    with suppress(OSError):
        passed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        passed.touch()
