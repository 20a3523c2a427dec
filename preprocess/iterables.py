"""Documents that a program gives in place of paths: functions, iterables, columns, tables.

Objects of other libraries are known by their methods, so none is imported. All documents are texts,
or all are records: mappings with fields.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from bpe.errors import CorpusError
from bpe.parallel import cached_property

_NO_DOCUMENTS = (str, bytes, os.PathLike, Mapping, set, frozenset, type)
_ROWS = 1024  # of a column or a table of Arrow, that are converted at a time
_SHOWN = "<documents of %s>"
TEXT_END = b"\xff"
_encode = msgspec.json.Encoder().encode
# One word with a slash, or with what may be a suffix.
_LIKE_A_PATH = r"\S*[/\\]\S*|\S+\.\w{1,8}"


class Documents:
    """Documents that a program gives; `str` shows them where a path would be.

    Args:
        begin: Returns an iterator of all of them.
        name: Their name in messages and manifests.
        is_one_shot: True if `begin` can be called once.
    """

    def __init__(
        self, begin: Callable[[], Iterable[Any]], name: str, is_one_shot: bool = False
    ) -> None:
        self._begin, self.name, self.is_one_shot = begin, name, is_one_shot
        self._whole: tuple[int, str] | None = None

    def __str__(self) -> str:
        return _SHOWN % self.name

    __repr__ = __str__

    def __iter__(self) -> Iterator[Any]:
        given = self._begin()
        if not isinstance(given, Iterable) or isinstance(given, _NO_DOCUMENTS):
            raise CorpusError(
                f"{self.name}: expected a function that returns documents, one after another; it"
                f" returned {given!r:.80}"
            )
        return iter(given)

    @cached_property
    def are_records(self) -> bool:
        """True if the first document is a record."""
        return any(isinstance(each, Mapping) for each in self.first)

    @property
    def mark(self) -> bytes:
        """What ends a document; of texts a byte that no UTF-8 has."""
        return b"\n" if self.are_records else TEXT_END

    @cached_property
    def first(self) -> list[Any]:
        """The first document, if there is one; a one-shot iterator keeps it."""
        documents = iter(self)
        found = [*itertools.islice(documents, 1)]
        if self.is_one_shot:
            self._begin = lambda: itertools.chain(found, documents)
        return found

    def encoded(self) -> Iterator[bytes]:
        """Yield each document without `mark`: a text as UTF-8, a record as JSON.

        Lone surrogates are no UTF-8.

        Raises:
            CorpusError: A document is wrong, or the first is not that of before.
        """
        documents = self._encoded(self)
        first = [*itertools.islice(documents, 1)]
        if first != [*self._encoded(self.first)]:
            raise self._others("another first one")
        return itertools.chain(first, documents)

    def check_whole(self, number: int, digest: str) -> None:
        """Raise CorpusError if documents are not those that were read to their end before."""
        if self._whole not in (None, (number, digest)):
            raise self._others(f"{number:,}, not the {self._whole[0]:,} of before")
        self._whole = number, digest

    def _others(self, found: str) -> CorpusError:
        return CorpusError(
            f"{self.name}: gives other documents each time that it is read ({found}); return the"
            " same each time, or give an iterator, which is read once"
        )

    def _encoded(self, documents: Iterable[Any]) -> Iterator[bytes]:
        are_texts, encode = not self.are_records, self._record if self.are_records else self._text
        for number, given in enumerate(documents, start=1):
            is_plain = are_texts and type(given) is str  # a call would take longer than all else
            yield given.encode("utf-8", "surrogatepass") if is_plain else encode(number, given)

    def _text(self, number: int, given: Any) -> bytes:
        text = given[1] if isinstance(given, tuple) and len(given) == 2 else given
        text = text.as_py() if hasattr(text, "as_py") else text
        if not isinstance(text, str):
            raise self._error(number, f"expected text, or (id, text); got {given!r:.80}")
        return text.encode("utf-8", "surrogatepass")

    def _record(self, number: int, given: Any) -> bytes:
        if not isinstance(given, Mapping):
            what = "expected a record, as the first document is"
            raise self._error(number, f"{what}; got {given!r:.80}")
        try:
            return _encode(dict(given))
        except UnicodeEncodeError:  # a lone surrogate, which the reader of JSON reports
            return json.dumps(dict(given)).encode()
        except TypeError as error:
            what = f"{error}; give records with the fields that are read alone"
            raise self._error(number, what) from None

    def _error(self, number: int, what: str) -> CorpusError:
        return CorpusError(f"{self.name}: document {number:,}: {what}")


def is_shown(path: str) -> bool:
    """Return True for what is shown of documents in place of a path."""
    begin, end = _SHOWN.split("%s")
    return path.startswith(begin) and path.endswith(end)


def documents_of(given: Any) -> Any:
    """Return the `Documents` that an object gives; else the object, or its paths in a list.

    Raises:
        ValueError: It is not clear what the object gives.
    """
    if isinstance(given, (*_NO_DOCUMENTS, Documents)):
        return given
    if callable(given) and not hasattr(given, "__iter__"):
        return Documents(given, getattr(given, "__name__", type(given).__name__))
    name = str(getattr(given, "__name__", getattr(given, "name", None)) or type(given).__name__)
    if hasattr(given, "to_pylist") and hasattr(given, "slice"):
        return Documents(lambda: _rows(given), name)
    if hasattr(given, "columns") and not hasattr(given, "column_names"):
        raise ValueError("should be one column of the table, such as table['text']")
    if isinstance(given, list | tuple | deque | UserList):
        has_paths = not given or not isinstance(given[0], tuple | Mapping)
        return given if has_paths else Documents(lambda: given, name)
    if not isinstance(given, Iterable):
        return given
    found = Documents(lambda: given, name, is_one_shot=hasattr(given, "__next__"))
    first = next(iter(found.first), found)
    if isinstance(first, os.PathLike) or not found.first:
        return [*found]
    if isinstance(first, str) and re.fullmatch(_LIKE_A_PATH, first):
        raise ValueError(
            f"should be documents or a list of paths, and the first text, {first!r:.80}, may be"
            " either; give a list of paths, or documents as (id, text)"
        )
    return found


def _rows(column: Any) -> Iterator[Any]:
    """Yield the values of a column, or the rows of a table, of Arrow."""
    for start in range(0, len(column), _ROWS):
        yield from column.slice(start, _ROWS).to_pylist()
