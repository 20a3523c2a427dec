"""Find byte strings or ids in a whole token file, chunk by chunk, on several threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpe.errors import TokenmillError
from bpe.parallel import run_in_order
from bpe.runtime.arrays import read_only
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids
from preprocess.find.byte_search import (
    NOTHING,
    Matcher,
    Numbers,
    TokenBytes,
    ids_as_bytes,
    make_token_bytes,
)
from preprocess.report.progress import Progress

if TYPE_CHECKING:
    from bpe import Tokenizer

CHUNK = 1 << 20  # tokens of a unit of work
_SAMPLES, _SAMPLE = 16, 1 << 10  # places of the file, and tokens there, that the sample is of
# Bytes of words: ASCII letters as lower case, digits, and all others than ASCII as they are.
_OF_WORDS = bytes(i if i > 127 or chr(i).isalnum() else 32 for i in range(256)).lower()


def words_of(text: bytes) -> list[bytes]:
    r"""Return the words of a text: ASCII in lower case; all but letters and digits is between them.

    >>> words_of("Don't panic,  Zoë!".encode())
    [b'don', b't', b'panic', b'zo\xc3\xab']
    """
    return text.translate(_OF_WORDS).split()


def text_of_tokens(file: TokenFile, tokenizer: Tokenizer) -> TokenBytes:
    """Return the bytes of tokens, in which text is found; special tokens end it."""
    ordinary = _ordinary_tokens(file, tokenizer)
    found: TokenBytes = make_token_bytes(ordinary, file.vocab_size, False)
    return found


def ids_of_tokens(file: TokenFile) -> TokenBytes:
    """Return bytes in which ids are found, as `ids_as_bytes` has them."""
    tokens = ids_as_bytes(range(file.vocab_size), file.vocab_size)
    found: TokenBytes = make_token_bytes(dict(enumerate(tokens)), file.vocab_size, False)
    return found


def words_of_tokens(file: TokenFile, tokenizer: Tokenizer) -> TokenBytes:
    """Return bytes in which words are found, with a space before and after each."""
    spaced = dict.fromkeys(range(file.vocab_size), b" " + NOTHING + b" ")
    for token_id, content in _ordinary_tokens(file, tokenizer).items():
        inside = content.translate(_OF_WORDS)
        begins, ends = inside.startswith(b" "), inside.endswith(b" ")
        words = b" ".join(inside.split())
        spaced[token_id] = b" " * begins + words + b" " * (ends and bool(words))
    found: TokenBytes = make_token_bytes(spaced, file.vocab_size, True)
    return found


def _ordinary_tokens(file: TokenFile, tokenizer: Tokenizer) -> dict[int, bytes]:
    special = {*tokenizer.special_tokens.values(), file.manifest.end_of_text_id}
    return {i: x for i, x in tokenizer.vocabulary.bytes_of_id.items() if i not in special}


class SearchError(TokenmillError, ValueError):
    """There is nothing to search for, or it cannot be searched for in the dataset."""


class Occurrences:
    """Occurrences of patterns in the documents of a token file.

    Args:
        file: The token file.
        patterns: Byte strings, all different, none empty.
        token_bytes: In which bytes of tokens they are found.
        margin: Bytes at both ends of patterns that do not count as part of an occurrence.
    """

    def __init__(
        self, file: TokenFile, patterns: Sequence[bytes], token_bytes: TokenBytes, margin: int = 0
    ) -> None:
        self._file, self._joins_spaces = file, margin > 0
        places = np.linspace(0, len(file), _SAMPLES, endpoint=False).astype(np.int64)
        pieces = [file.tokens[i : i + _SAMPLE] for i in dict.fromkeys(places.tolist())]
        sample = np.concatenate([np.zeros(0, file.dtype), *pieces])
        sample = read_only(sample[sample < file.vocab_size])
        self._matcher = Matcher(patterns, token_bytes, margin, sample)

    def chunks(self, workers: int, progress: Progress) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the occurrences that begin in each chunk of tokens, in order.

        Yields:
            (int64[n, 3]: pattern, first token, token after the last, sorted; int64[n], document).

        Raises:
            TokenFileError: The file is damaged.
        """
        n = len(self._file)
        # A dataset at a URL is read through one cache, by one thread.
        workers = workers if isinstance(self._file.path, Path) else 1
        found = run_in_order(range(0, n, CHUNK), lambda: lambda i: self.find(i, i + CHUNK), workers)
        with progress.stage("searching", n, "tokens") as stage, closing(found):
            for begin, each in zip(range(0, n, CHUNK), found, strict=True):
                yield each
                stage.advance(min(CHUNK, n - begin))

    def find(self, begin: int, stop: int) -> tuple[Numbers, Numbers]:
        """Return the occurrences that begin in tokens [begin, stop), as `chunks`."""
        file, stop = self._file, min(stop, len(self._file))
        number = document_at(file, begin)
        # Where spaces are joined, the one before a document's first word is of the token before.
        last = min(stop - 1 + self._joins_spaces, len(file) - 1)
        bounds = read_bounds(file, number, document_at(file, last) + 1)
        end = self._end(stop, int(bounds[-1]))
        # Where spaces are joined, with the token before, or a special token before the first one.
        base = begin - self._joins_spaces
        ids = read_only(read_ids(file, max(base, 0), end))
        if base < 0:
            before = np.array([file.manifest.end_of_text_id], ids.dtype)
            ids = read_only(np.concatenate([before, ids]))
        hits = self._matcher.find(ids, int(self._joins_spaces and begin > 0), stop - base)
        hits[:, 1:] += base
        places = np.searchsorted(bounds, hits[:, 1], "right")
        is_inside = hits[:, 2] <= bounds[places]
        return hits[is_inside], number + places[is_inside] - 1

    def _end(self, stop: int, end_of_document: int) -> int:
        """Return the token after the last that occurrences that begin before `stop` may have."""
        longest, n = self._matcher.longest, 64
        while stop + n < end_of_document:
            if self._matcher.n_bytes(read_ids(self._file, stop, stop + n)) >= longest:
                return stop + n
            n *= 2
        return end_of_document
