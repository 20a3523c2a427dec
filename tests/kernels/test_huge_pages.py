"""Arrays on huge pages are those of numpy.zeros."""

import mmap

import numpy as np
import pytest

from bpe.runtime import arrays as huge_pages


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in (0, 2**17 - 1, 2**17, 2**19 + 3):
        array = huge_pages.zeros(n, np.uint64)
        assert (array.dtype, array.shape, array.any()) == (np.dtype(np.uint64), (n,), False)
        array[:] = 7  # they can be written

    class Refusing(mmap.mmap):
        def madvise(self, *_: object) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(huge_pages.mmap, "mmap", Refusing)
    assert not huge_pages.zeros(2**20, np.int32).any()
    for name in ("MADV_HUGEPAGE", "MAP_PRIVATE"):
        monkeypatch.delattr(huge_pages.mmap, name, raising=False)
    assert not huge_pages.zeros(2**20, np.uint8).any()


def test_no_memory_is_the_error_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(huge_pages.mmap, "mmap", none_left)
    assert not huge_pages.zeros(2**20, np.uint8).any()
    with pytest.raises(MemoryError, match="Unable to allocate"):
        huge_pages.zeros(2**58, np.uint8)
