"""Find byte strings or ids in a whole token file, chunk by chunk, on several threads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpe.errors import TokenmillError
from bpe.parallel import run_in_order
from bpe.runtime.arrays import read_only
from bpe.runtime.jit import pack
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids
from preprocess.find.byte_search import Numbers, Tables, make_tables, search_tokens
from preprocess.report.progress import Progress

if TYPE_CHECKING:
    from bpe import Tokenizer

CHUNK = 1 << 20  # tokens of a unit of work
ROOM = 1 << 12  # hits of one call, and tokens after a chunk that they may end in; more if needed
MOST = 1 << 20  # hits in memory for each width of words, unless one token has more
_NOTHING = b"\xff"  # which is in no text in UTF-8: a special token, or an id without a token
# Bytes of words: ASCII letters as lower case, digits, and all others than ASCII as they are.
_OF_WORDS = bytes(i if i > 127 or chr(i).isalnum() else 32 for i in range(256)).lower()


class SearchError(TokenmillError, ValueError):
    """There is nothing to search for, or it cannot be searched for in the dataset."""


def ids_as_bytes(ids: Sequence[int], vocab_size: int) -> list[bytes]:
    """Return bytes for ids, which are found only where an id begins: the first is above 127."""
    shifts = np.arange((vocab_size - 1).bit_length() // 7, -1, -1) * 7
    digits = np.array(ids, np.int64)[:, None] >> shifts & 0x7F
    digits[:, 0] |= 0x80
    return [*map(bytes, digits.astype(np.uint8))]


def text_of_tokens(file: TokenFile, tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes of all ids; `_NOTHING` for special tokens, which end a text."""
    special = {*tokenizer.special_tokens.values(), file.manifest.end_of_text_id}
    ordinary = {i: x for i, x in tokenizer.vocabulary.bytes_of_id.items() if i not in special}
    return [ordinary.get(i, _NOTHING) for i in range(file.vocab_size)]


def words_of(text: bytes) -> bytes:
    r"""Return the words of a text: ASCII in lower case; all but letters and digits is one space.

    >>> words_of("Don't panic,  Zoë!".encode())
    b'don t panic zo\xc3\xab '
    """
    return re.sub(b" +", b" ", text.replace(_NOTHING, b" %b " % _NOTHING).translate(_OF_WORDS))


class Occurrences:
    """Occurrences of patterns in the documents of a token file.

    Args:
        file: The token file.
        patterns: Byte strings, none empty.
        contents: Bytes of all ids, in which the patterns are found.
        of_words: True if spaces of neighbours are one, and those around a pattern not part of it.
    """

    def __init__(
        self, file: TokenFile, patterns: Sequence[bytes], contents: Sequence[bytes],
        of_words: bool = False,
    ) -> None:
        self._file, self._margin = file, int(of_words)
        tables = [*make_tables(contents, patterns, self._margin)]
        self._n_text, self._tables = tables[0].n_text, [*map(pack, tables)]

    def chunks(self, workers: int, progress: Progress) -> Iterator[Numbers]:
        """Yield the occurrences that begin in each chunk of tokens, in order, as of `find`.

        Raises:
            TokenFileError: The file is damaged.
        """
        n = len(self._file)
        # A dataset at a URL is read through one cache, by one thread.
        workers = workers if isinstance(self._file.path, Path) else 1
        found = run_in_order(range(0, n, CHUNK), lambda: lambda i: self.find(i, i + CHUNK), workers)
        with progress.stage("searching", n, "tokens") as stage, closing(found):
            for begin, (each, reached) in zip(range(0, n, CHUNK), found, strict=True):
                yield each
                first, stop = begin, min(begin + CHUNK, n)
                while reached < stop:
                    size = 2 * (reached - first)  # so many as fitted have hits that fit
                    first, (each, reached) = reached, self.find(reached, min(reached + size, stop))
                    yield each
                stage.advance(stop - begin)

    def find(self, begin: int, stop: int) -> tuple[Numbers, int]:
        """Return the occurrences that begin in tokens [begin, reached), and `reached`.

        It is below `stop` if there are more of them than fit into memory.

        Returns:
            int64[n, 6]: pattern, first token, token after the last, document, and its first token
            and that after its last; sorted.
        """
        file, stop = self._file, min(stop, len(self._file))
        number, hits = document_at(file, begin), np.zeros((0, 3), np.int64)
        bounds = read_bounds(file, number, document_at(file, stop - 1) + 1)
        for tables in self._tables:
            found, stop = self._search(tables, begin, stop, int(bounds[-1]))
            hits = np.concatenate([hits[hits[:, 1] < stop], found])
        places = np.searchsorted(bounds, hits[:, 1], "right")
        documents = [number + places - 1, bounds[places - 1], bounds[places]]
        inside = np.column_stack([hits, *documents])[hits[:, 2] <= bounds[places]]
        return inside[np.lexsort(inside.T[2::-1])], stop

    def _search(
        self, tables: Tables, begin: int, stop: int, end: int
    ) -> tuple[Numbers, int]:
        """Return the hits that begin as of `find` and end before `end`: int64[n, 3], `reached`."""
        base, room, text = begin - self._margin, ROOM, np.empty(self._n_text, np.uint8)
        place, found, n_found = np.array([self._margin, stop - base, 1]), list[Numbers](), 0
        while place[0] < place[1] and n_found < MOST:
            n_left = place[1] - place[0]
            n_rows = room if n_left == 1 else min(room, MOST)
            place[2] = stop + room < end
            ids = read_ids(self._file, max(base, 0), min(stop + room, end))
            if base < 0:  # spaces are looked for before the first token, too
                ids = np.insert(ids, 0, self._file.manifest.end_of_text_id)
            ends, hits = np.empty(len(ids), np.int32), np.empty(3 * n_rows, np.int64)
            n = search_tokens(read_only(ids), place, tables, text, ends, hits)
            found.append(hits[: 3 * n].reshape(n, 3) + np.array([0, base, base]))
            n_found += n
            if n_rows < room and not n:  # not even those of a block fit
                place[1] -= n_left // 2
            room *= 4
        return np.concatenate(found), base + int(place[0])
