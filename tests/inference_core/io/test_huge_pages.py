"""A system without huge pages serves as well: asking for them never fails."""

import mmap

from inference_core.io.files import prefer_huge_pages


def test_memory_stays_usable_after_asking():
    memory = mmap.mmap(-1, 1 << 21)
    prefer_huge_pages(memory)
    memory[:3] = b"abc"
    assert memory[:3] == b"abc"


class _Refusing(mmap.mmap):
    def madvise(self, *_):
        raise OSError("built without transparent huge pages")


def test_a_kernel_without_them_is_no_error():
    prefer_huge_pages(_Refusing(-1, 4096))
