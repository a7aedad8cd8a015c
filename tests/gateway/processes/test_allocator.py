"""Freed memory is returned to the system, and threads share free memory."""

import os
import platform
import subprocess
import sys

import pytest

from benchmarks.gateway.process_figures import resident_bytes
from gateway.base.footprint import trim_heap

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other options")

# Eight threads that hold memory at once; then the allocator's number of heaps. Its environment options are cleared.
_HEAPS = """
import ctypes, re, sys, threading
{before}
together = threading.Barrier(8)
def hold():
    blocks = [bytearray(3000) for _ in range(100)]
    together.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(len(re.findall("<heap nr=", open(sys.argv[1]).read())))
"""
_SERVE = """
import click
from gateway.cli.serving.serve import serve
try:
    # Refused, but not before libraries were imported.
    options = ["--role", "{role}", "--quality-target", "0.9", "--data-dir", sys.argv[1] + "-data"]
    serve.main([*options, *{further}], standalone_mode=False)
except click.UsageError:
    pass
else:
    raise AssertionError("it serves")
"""


def heaps(folder: os.PathLike[str], before: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    program = _HEAPS.format(before=before)
    result = subprocess.run(
        [sys.executable, "-c", program, os.fspath(os.path.join(folder, "heaps.xml"))],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return int(result.stdout)


def test_what_was_freed_in_the_middle_of_the_heap_is_given_back() -> None:
    blocks = [os.urandom(4096) for _ in range(20_000)]
    # Without a call the heap shrinks only down to its last used block.
    last = blocks[-1]
    del blocks
    before = resident_bytes(os.getpid())
    trim_heap()
    assert before - resident_bytes(os.getpid()) > 40_000_000
    assert len(last) == 4096


def test_all_threads_of_a_gateway_process_share_one_heap(tmp_path: os.PathLike[str]) -> None:
    assert heaps(tmp_path, "") > 1, "otherwise threads have their own"
    for role in ("gateway", "all"):
        assert heaps(tmp_path, _SERVE.format(role=role, further=["--group", "none"])) == 1
