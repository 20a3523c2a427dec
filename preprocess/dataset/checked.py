"""Read ids and document ends of a dataset, and refuse values that only damage explains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, TokenFileError, Values
from preprocess.dataset.reader import TokenFile


def read_ids(file: TokenFile, start: int, stop: int) -> Values:
    """Return token ids [start, stop): uint16|uint32[n], mapped without shards.

    Raises:
        TokenFileError: One is outside of the vocabulary.
    """
    file.count_reads(1, stop - start)
    found = file.tokens[start:stop]
    if len(found) and int(found.max()) >= file.vocab_size:
        place = start + int((found >= file.vocab_size).argmax())
        expected = f"should be an id of 0 to {file.vocab_size - 1:,}"
        raise _damaged(file, f"token {place:,} {expected} and is {file[place]:,}")
    return found


def read_bounds(file: TokenFile, first: int, stop: int) -> NDArray[np.int64]:
    """Return the start of document `first`, then the ends of [first, stop): int64[n + 1].

    Raises:
        TokenFileError: Ends do not ascend, are not in their shard, or the last is not the number of
            tokens.
    """
    begin = max(first - 1, 0)
    bounds = np.zeros(stop - begin + 1, np.int64)
    n_read = n_documents = n_tokens = 0
    for part in file.parts:
        ends = part[DOCUMENT_ENDS.name]
        here = np.asarray(ends[max(begin - n_documents, 0) : max(stop - n_documents, 0)])
        filled = bounds[n_read : n_read + len(here) + 1]
        # A value that overflows int64 becomes negative, so it is not above the previous end.
        filled[1:] = here
        filled[1:] += n_tokens
        most = n_tokens + len(part[IDS.name])
        bad = (filled[1:] <= filled[:-1]) | (filled[1:] > most)
        if bad.any():
            place = int(bad.argmax())
            expected = f"should end after {filled[place]:,} and at {most:,} at most"
            end = int(here[place]) + n_tokens
            document = begin + n_read + place
            raise _damaged(file, f"document {document:,} {expected}, and ends at {end:,}")
        n_read, n_documents, n_tokens = n_read + len(here), n_documents + len(ends), most
    if stop == file.n_documents and bounds[-1] != file.n_tokens:
        expected = f"should end at {file.n_tokens:,}, the number of tokens,"
        raise _damaged(file, f"the last document {expected} and ends at {bounds[-1]:,}")
    return bounds[1:] if first else bounds


def _damaged(file: TokenFile, what: str) -> TokenFileError:
    return TokenFileError(
        f"{file.path}: {what}; the file is damaged: 'tokenmill verify {file.path}' reports where,"
        " and with --repair rebuilds it from the sources"
    )
