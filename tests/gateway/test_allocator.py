"""Memory that was freed goes back to the system."""

import os
import platform

import pytest

from gateway.processes.allocator import give_back_free_memory
from gateway.processes.server_process import ServerProcess


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no malloc_trim")
def test_what_was_freed_in_the_middle_of_the_heap_is_given_back() -> None:
    here = ServerProcess("", os.getpid(), 0.0)
    blocks = [os.urandom(4096) for _ in range(20_000)]
    # Without a call the heap shrinks only as far down as its last block in use.
    last = blocks[-1]
    del blocks
    before = here.resident_bytes()
    give_back_free_memory()
    assert before - here.resident_bytes() > 40_000_000
    assert len(last) == 4096
