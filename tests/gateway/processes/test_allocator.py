"""Freed memory is returned to the system, and threads share free memory."""

import os
import platform
import subprocess
import sys

import pytest

from benchmarks.gateway.process_figures import resident_bytes
from gateway.base.footprint.allocator import give_back_free_memory

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other options")

# Eight threads that hold memory at once; then the allocator's number of heaps, and whether a megabyte that fits into no
# gap has pages of its own after a larger one was freed, by the flag in front of it. Its environment has no option.
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
bytearray(4_000_000)
bodies = [bytearray(1_000_000) for _ in range(64)]
in_front = ctypes.addressof(ctypes.c_char.from_buffer(bodies[-1])) - ctypes.sizeof(ctypes.c_size_t)
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(len(re.findall("<heap nr=", open(sys.argv[1]).read())), ctypes.c_size_t.from_address(in_front).value & 2)
"""
_SERVE = """
import click
from gateway.processes.commands.serve import serve
try:
    # Refused, but not before libraries were imported.
    options = ["--role", "{role}", "--quality-target", "0.9", "--data-dir", sys.argv[1] + "-data"]
    serve.main([*options, *{further}], standalone_mode=False)
except click.UsageError:
    pass
else:
    raise AssertionError("it serves")
"""


def heaps(folder: os.PathLike[str], before: str) -> tuple[int, bool]:
    """The number of heaps, and whether a body has pages of its own, after `before`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    program = _HEAPS.format(before=before)
    result = subprocess.run(
        [sys.executable, "-c", program, os.fspath(os.path.join(folder, "heaps.xml"))],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    shared, flag = result.stdout.split()
    return int(shared), flag != "0"


def test_what_was_freed_in_the_middle_of_the_heap_is_given_back() -> None:
    blocks = [os.urandom(4096) for _ in range(20_000)]
    # Without a call the heap shrinks only down to its last used block.
    last = blocks[-1]
    del blocks
    before = resident_bytes(os.getpid())
    give_back_free_memory()
    assert before - resident_bytes(os.getpid()) > 40_000_000
    assert len(last) == 4096


def test_threads_of_a_gateway_process_share_one_heap_and_bodies_have_pages_of_their_own(
    tmp_path: os.PathLike[str],
) -> None:
    number, apart = heaps(tmp_path, "")
    assert number > 1, "otherwise threads have their own"
    assert not apart, "otherwise the heap gives what is less than a freed body"
    for role in ("gateway", "all"):
        assert heaps(tmp_path, _SERVE.format(role=role, further=["--group", "none"])) == (1, True)
