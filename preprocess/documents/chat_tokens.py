"""Encode documents that have special tokens in their text, and say where each token begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from preprocess.documents.batch import DocumentBatch, Spans

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder

Positions = NDArray[np.int64]


class EncodedSegments(NamedTuple):
    """Ids of documents with special tokens.

    Attributes:
        ids: unsigned[n_tokens].
        offsets: int64[n_documents + 1]: document d is `ids[offsets[d] : offsets[d + 1]]`.
        begins: int64[n_tokens], the position in the buffer at which each token begins. Those before
            and after a document have that of its first byte: they are trained on with all of it.
    """

    ids: NDArray[Any]
    offsets: Positions
    begins: Positions


def encode_segments(
    encoder: AnyEncoder, batch: DocumentBatch, special: Spans, lengths: Positions,
    prefix_id: int, suffix_id: int,
) -> EncodedSegments:
    """Encode the text between special tokens, and put their ids in their places.

    A document that begins with the prefix id, or ends with the suffix id, does not get a second.

    Args:
        encoder: Encodes the text as ordinary text.
        batch: Whole documents.
        special: Bytes of the special tokens in them, and their ids.
        lengths: int64[vocab_size], the number of bytes that each id spells.
        prefix_id: Id before each document; -1: none.
        suffix_id: Id after each document; -1: none.

    Raises:
        EncodingError: The tokenizer changes text before it is encoded.
    """
    begins, ends = batch.bounds[::2], batch.bounds[1::2]
    starts, stops = special.bounds[::2], special.bounds[1::2]
    # Segments: what is between special tokens; those of no bytes are left out.
    firsts, lasts = np.sort(np.append(begins, stops)), np.sort(np.append(starts, ends))
    is_text = lasts > firsts
    firsts, lasts = firsts[is_text], lasts[is_text]
    low, high = (int(firsts[0]), int(lasts[-1])) if len(firsts) else (0, 0)
    bounds = np.stack([firsts, lasts], axis=1).ravel() - low
    ids, offsets = encoder.encode(batch.buffer[low:high], bounds, gaps=True)
    n_ids = np.diff(offsets)
    spelled = np.append(0, np.cumsum(lengths[ids]))
    if (np.diff(spelled[offsets]) != lasts - firsts).any():
        raise EncodingError(
            "the mask of conversations cannot be made, for this tokenizer changes text before"
            " encoding it; use a byte-level tokenizer"
        )
    n_documents = len(batch)
    document, values = np.arange(n_documents), special.values
    of_special, of_text = (np.searchsorted(ends, each, "right") for each in (starts, firsts))
    before, after = np.full(n_documents, prefix_id >= 0), np.full(n_documents, suffix_id >= 0)
    before[of_special[(starts == begins[of_special]) & (values == prefix_id)]] = False
    after[of_special[(stops == ends[of_special]) & (values == suffix_id)]] = False
    # Items, sorted by document, by what stands before and after it, and by their place.
    places = [begins[before], starts, firsts, ends[after] - 1]
    groups = [0, 1, 1, 2]
    documents = [document[before], of_special, of_text, document[after]]
    sizes = [*(np.ones(len(each), np.int64) for each in places)]
    sizes[2] = n_ids
    group = np.repeat(groups, [*map(len, places)])
    size, of_item = np.concatenate(sizes), np.concatenate(documents)
    order = np.lexsort((np.concatenate(places), group, of_item))
    at = np.empty(len(size), np.int64)  # where the ids of each item go
    at[order] = np.cumsum(size[order]) - size[order]
    at_before, at_special, at_text, at_after = np.split(at, np.cumsum([*map(len, places)])[:-1])
    found = np.empty(int(size.sum()), ids.dtype)
    found_begins = np.empty(len(found), np.int64)
    inside = np.repeat(at_text - offsets[:-1], n_ids) + np.arange(len(ids))
    found[inside] = ids
    found_begins[inside] = spelled[:-1] + np.repeat(firsts - spelled[offsets[:-1]], n_ids)
    for where, value, place in (
        (at_before, max(prefix_id, 0), places[0]), (at_special, values, starts),
        (at_after, max(suffix_id, 0), begins[after]),
    ):
        found[where], found_begins[where] = value, place
    counts = np.bincount(of_item, weights=size, minlength=n_documents).astype(np.int64)
    return EncodedSegments(found, np.append(0, np.cumsum(counts)), found_begins)


def is_inside(begins: Positions, spans: Spans) -> NDArray[np.bool_]:
    """Return which tokens begin in a span: bool[n_tokens]."""
    # Between the start and the end of a span, the number of bounds before is odd.
    found: NDArray[np.bool_] = np.searchsorted(spans.bounds, begins, "right") % 2 == 1
    return found
