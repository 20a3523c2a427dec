"""The digest of a source: the same for any units, and what its definition says."""

from __future__ import annotations

from pathlib import Path

import digests
import format_files
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocess.documents.batch import ReadOptions
from preprocess.sources import digest_of, find_sources
from preprocess.sources.digest import BLOCK_BYTES, SourceDigest, digest_blocks

CUTS = st.integers(0, 4 * BLOCK_BYTES) | st.sampled_from(
    [k * BLOCK_BYTES + d for k in range(5) for d in (-1, 0, 1) if k * BLOCK_BYTES + d >= 0]
)


@given(st.integers(0, 4 * BLOCK_BYTES), st.lists(CUTS, max_size=8), st.integers(0, 2**32))
def test_any_division_has_the_digest_of_the_whole(size: int, cuts: list[int], seed: int) -> None:
    content = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    digest, begin = SourceDigest(), 0
    for end in sorted([*(cut for cut in cuts if cut < size), size]):
        digest.update(digest_blocks(content[begin:end], begin))
        assert digest.hexdigest() == digests.digest_of_source(content[:end].tobytes())
        begin = end


@given(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 3 * BLOCK_BYTES))
def test_blocks_of_a_part_are_those_of_the_file(size: int, start: int) -> None:
    content = bytes(i % 251 for i in range(size))
    digest = SourceDigest()
    for begin in range(start, start + size, 40_000):
        piece = np.frombuffer(content[begin - start : begin - start + 40_000], np.uint8)
        digest.update(digest_blocks(piece, begin))
    assert digest.hexdigest() == digests.digest_of_source(content, start)


def test_every_byte_counts() -> None:
    content = bytearray(3 * BLOCK_BYTES + 5)
    found = {digests.digest_of_source(bytes(content))}
    for place in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES - 1, 3 * BLOCK_BYTES + 4):
        content[place] ^= 1
        digest = SourceDigest()
        digest.update(digest_blocks(np.frombuffer(bytes(content), np.uint8), 0))
        found.add(digest.hexdigest())
    assert len(found) == 7


@pytest.mark.parametrize("suffix", format_files.SUFFIXES)
def test_units_of_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"corpus.{suffix}"
    format_files.write(path, format_files.DOCUMENTS * 40)
    for unit_size in (3000, 10**6):
        (source,) = find_sources([path], ReadOptions(unit_size=unit_size))
        digest = SourceDigest()
        for unit in source.units():
            digest.update(digest_blocks(unit.content(), unit.start))
        assert digest.hexdigest() == digest_of(source).hexdigest()
        assert digest.hexdigest() == digests.digest_of_source(path.read_bytes())
