"""Find special tokens in UTF-8: leftmost first, the longest of those at one position.

`reference.split_special` defines what is found.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError, VocabularyError, listed
from bpe.separated import iter_ranges

_LARGE = 1 << 16  # bytes of data from which on a kernel first finds which tokens occur
_PREFIX_BYTES = 4  # tokens are searched only if their prefix of this length occurs
_PAD_TOKENS = ("<|pad|>", "<pad>", "[PAD]")


def pad_token_of(special_tokens: Collection[str]) -> str | None:
    """Return the special token whose name says that it is padding, None if there is none."""
    return next((token for token in _PAD_TOKENS if token in special_tokens), None)


def utf8(text: str) -> bytes:
    """Return the UTF-8 of text.

    Raises:
        EncodingError: The text has a lone surrogate.
        TypeError: `text` is not a str.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(
            f"character {error.start} of the text is {text[error.start]!r}, a lone surrogate: "
            "expected valid Unicode; decode with errors='replace' where the text comes from"
        ) from error
    except AttributeError:
        raise TypeError(f"expected text, found {type(text).__name__}") from None


def allowed_subset(
    allowed_special: str | Collection[str], special_tokens: Collection[str]
) -> frozenset[str] | None:
    """Return the special tokens in `allowed_special`, None for "all"; raise VocabularyError."""
    if allowed_special == "all":
        return None
    if isinstance(allowed_special, str):
        raise VocabularyError(
            f"allowed_special is {allowed_special!r}: expected 'all' or a collection of special"
            f" tokens, such as [{allowed_special!r}]"
        )
    allowed = frozenset(allowed_special)
    for text in allowed:
        if text not in special_tokens:
            raise VocabularyError(
                f"allowed_special names {text!r}, which is not a special token of this "
                f"tokenizer: expected some of {listed(special_tokens)}"
            )
    return allowed


def _any_of(tokens: Iterable[bytes]) -> re.Pattern[bytes]:
    # Longest first, for `re` takes the first alternative that matches.
    return re.compile(b"|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


class SpecialTokenMatcher:
    """Finds special tokens, given as text -> id, in UTF-8."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.special_tokens = special_tokens
        self.ids = {utf8(text): token_id for text, token_id in special_tokens.items()}
        self._longest = max(map(len, self.ids), default=0)
        self._pattern = _any_of(self.ids)
        # One regex for each first byte: `re` searches these at 1 to 3 GB/s, others at 80 MB/s.
        self._searches = [
            _any_of([token for token in self.ids if token[0] == first]).search
            for first in sorted({token[0] for token in self.ids})
        ]
        self._prefixes = {token[:stop] for token in self.ids for stop in range(1, len(token))}
        self._of_prefix: dict[bytes, list[bytes]] = {}
        for token in self.ids:
            self._of_prefix.setdefault(token[:_PREFIX_BYTES], []).append(token)

    def occurs_in(self, data: bytes | memoryview) -> bool:
        """Return True if any special token occurs in the data."""
        # Twice as fast as any(), which matters for short texts.
        for search in self._searches:  # noqa: SIM110 - see above
            if search(data):
                return True
        return False

    def find(
        self, data: bytes | memoryview, start: int, stop: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield `(start, stop, id)` of each special token in `data[start:stop]`, in order."""
        if not self.ids:
            return
        for found in self._pattern.finditer(data, start, stop):
            yield found.start(), found.end(), self.ids[bytes(found.group())]

    def split(self, text: str) -> list[str]:
        """Split text at special tokens, which are every second piece."""
        data = text.encode("utf-8", "surrogatepass")
        spans = (span[:2] for span in self.find(data, 0, len(data)))
        bounds = pairwise([0, *chain.from_iterable(spans), len(data)])
        return [data[start:stop].decode("utf-8", "surrogatepass") for start, stop in bounds]

    def occurrences(self, buffer: NDArray[np.uint8]) -> dict[bytes, NDArray[np.int64]]:
        """Return token -> positions, int64[n > 0], of each token by itself, as in `bytes.split`."""
        from bpe.pretokenize.pretokenizer import find_all

        found = {}
        for prefix, tokens in self._of_prefix.items():
            if len(find_all(buffer, prefix)):
                found.update({token: find_all(buffer, token) for token in tokens})
        return {token: begins for token, begins in found.items() if len(begins)}

    def find_in_documents(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return (start, stop, id) of each special token in documents: int64[n, 3], ascending.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            offsets: int64[n_documents + 1], ascending from 0 to n_bytes.
        """
        if len(buffer) >= _LARGE:
            found = self.occurrences(buffer)
            if not found:
                return np.empty((0, 3), np.int64)
            if len(found) == 1:
                ((token, begins),) = found.items()
                ends = begins + len(token)
                documents = np.searchsorted(offsets, begins, "right")
                if np.array_equal(documents, np.searchsorted(offsets, ends)):
                    ids = np.full(len(begins), self.ids[token])
                    return np.stack([begins, ends, ids], axis=1)
        # Several tokens may overlap, and an occurrence may cross the end of a document.
        data = buffer.data
        spans = (
            number
            for begin, end in iter_ranges(np.repeat(offsets, 2)[1:-1])
            for match in self.find(data, begin, end)
            for number in match
        )
        return np.fromiter(spans, np.int64).reshape(-1, 3)

    def open_from(self, data: bytes, found: Sequence[tuple[int, int, int]]) -> int:
        """Return the first position from which on more data could change the result of `find`.

        From there on, data outside of all `found` is a proper prefix of a special token. Return
        `len(data)` if there is none. `found` is `find(data, 0, len(data))`.
        """
        first = max(0, len(data) - self._longest + 1)
        near = [(start, stop) for start, stop, _ in found if stop > first]
        for place in range(first, len(data)):
            if data[place:] in self._prefixes and not any(a < place < b for a, b in near):
                return place
        return len(data)
