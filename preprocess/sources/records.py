"""Records: what is the same for all formats whose documents are fields of records.

A module of a format finds the records of a unit and decodes their fields. Here are the choice of
the fields, the text that is made of them, conversations, and bad records, which are errors that
name file, record and reason, or are left out and listed.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct, field, structs

from bpe.errors import CorpusError, listed
from preprocess.documents.batch import DocumentBatch, Offsets, ReadOptions, Rejected, prepare
from preprocess.documents.conversations import (
    KINDS,
    BadConversationError,
    batch_of,
    kind_of,
    render_record,
)
from preprocess.sources.base import DECOMPRESSED, Source, WorkUnit
from preprocess.sources.text_file import Array, Bytes, InputFile, new_array

if TYPE_CHECKING:
    from preprocess.documents.chat_template import Rendered

# One of these is taken without --content-field if it is the only one.
USUAL_FIELDS = ("text", "content", "code")

Made = TypeVar("Made")
Values = Sequence[bytes | None]  # of the fields of a record that are read; None: null, or missing
Texts = tuple[Bytes, Offsets]  # text i is `buffer[offsets[i] : offsets[i + 1]]`


class BadRecordError(Exception):
    """A record is bad; the message is a reason that follows its place."""


PRESETS = {"title-text": ("title", "text")}  # fields, whose values `join_preset` joins


def join_preset(values: Sequence[str | None]) -> str:
    """Return the text of a record; "" for no document."""
    stripped = (value.strip() for value in values if value is not None)
    return "\n".join(x for x in stripped if x not in ("", "[deleted]", "[removed]"))


def join_texts(texts: Sequence[bytes]) -> Texts:
    """Join texts in one buffer."""
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return np.frombuffer(b"".join(texts), np.uint8), offsets


class Record(NamedTuple):
    """A record of a unit, as its format has it.

    Attributes:
        data: What the unit decodes.
        number: As of `Rejected.record`.
        byte: Its position in the file; None: it is a row.
    """

    data: Any
    number: int
    byte: int | None = None


class Tally(Struct):
    """What is left out of a unit, or replaced in it, before its documents are prepared."""

    n_skipped: int = 0
    n_replaced: int = 0
    rejected: list[Rejected] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # of good records


class RecordUnit(WorkUnit, frozen=True):
    """Whole records of a file; `fields` are the dotted names of those that are read."""

    fields: tuple[str, ...]

    def texts(self, content: Bytes, array: Array) -> Texts | None:
        """Return the texts of all records at once; None: decode one by one, some may be bad."""
        return None

    def numbers(self, n: int) -> Offsets:
        """Return the numbers of the records of a unit if all of them, n, are good."""
        return np.arange(1, n + 1)

    def n_numbers(self, content: Bytes) -> int:
        """Return how many numbers the records of the unit take; 0: they go on."""
        return 0

    @abstractmethod
    def records(self, content: Bytes, tally: Tally) -> Iterator[Record]:
        """Yield the records of the unit, in order; those that are left out are added to `tally`."""

    @abstractmethod
    def values(self, data: Any) -> Values:
        """Return the values of `fields` in a record; raise BadRecordError."""

    @abstractmethod
    def conversation(self, data: Any) -> Mapping[str, Any]:
        """Return a record with all of its fields; raise BadRecordError."""

    @abstractmethod
    def place(self, record: Record) -> str:
        """Return the place of a record in the file, for messages."""

    def read(self, array: Array = new_array) -> DocumentBatch:
        content, tally, reading = self.content(array), Tally(), self.reading
        if self.is_rendered:
            batch = batch_of([*self._made(content, tally, self._render)], content)
            reading = structs.replace(reading, strip=False)  # white space is of the messages
        else:
            found = self.texts(content, array)
            if found is None:
                found = join_texts([*self._made(content, tally, self._text)])
            buffer, offsets = found
            batch = DocumentBatch(buffer, np.repeat(offsets, 2)[1:-1], content=content)
        if reading.numbers_records:
            is_whole = len(tally.numbers) == 0 and len(batch) > 0
            numbers = self.numbers(len(batch)) if is_whole else np.array(tally.numbers, np.int64)
            batch = structs.replace(batch, numbers=numbers)
        has_numbers = reading.numbers_records or reading.skip_bad_records
        prepared = prepare(batch, reading, self.byte)
        return structs.replace(
            prepared, n_skipped=prepared.n_skipped + tally.n_skipped,
            n_replaced=prepared.n_replaced + tally.n_replaced, rejected=tuple(tally.rejected),
            n_records=self.n_numbers(content) if has_numbers else 0,
        )  # fmt: skip

    def _made(
        self, content: Bytes, tally: Tally, make: Callable[[Any], Made]
    ) -> Iterator[Made]:
        """Yield what `make` makes of good records; bad ones raise CorpusError, or are listed."""
        for record in self.records(content, tally):
            try:
                made = make(record.data)
                tally.numbers.append(record.number)
                yield made
            except (BadRecordError, BadConversationError) as error:
                if not self.reading.skip_bad_records:
                    place = self.place(record)
                    raise CorpusError(f"{self.file.path}: {place}: {error}") from error
                listed_as = shown_path(self.file), record.number, record.byte, str(error)
                tally.rejected.append(Rejected(*listed_as))

    def _text(self, data: Any) -> bytes:
        values = self.values(data)
        if self.reading.text_preset:
            given = [x if x is None else x.decode(errors="surrogateescape") for x in values]
            return join_preset(given).encode(errors="surrogateescape")
        return b"\n".join([value for value in values if value is not None])

    def _render(self, data: Any) -> Rendered:
        return render_record(self.conversation(data), self.reading)


class RecordSource(Source):
    """One file of records; subclasses define `units` and `first_names`.

    Raises:
        CorpusError: It is unclear which fields are read.
    """

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        super().__init__(file, name, reading)
        chat, self.fields = choose_fields(file.path, self.first_names, reading)
        self.has_spans = chat != "off"
        self.reading_of_units = structs.replace(self.reading_of_units, chat=chat)

    @abstractmethod
    def first_names(self) -> list[str]:
        """Return the names of the fields of the first record that has some; [] if none has."""


def choose_fields(
    path: Path | str, first_names: Callable[[], list[str]], reading: ReadOptions
) -> tuple[str, tuple[str, ...]]:
    """Choose what is read from records; `first_names` as of `RecordSource`.

    Returns:
        (a name in `KINDS`, or "off" for text; the fields with the conversation or the text).

    Raises:
        CorpusError: It is unclear, or conversations have no chat template.
    """
    if fields := PRESETS.get(reading.text_preset, reading.content_field):
        return "off", fields
    if not (names := first_names()):
        return "off", USUAL_FIELDS[:1]  # reading reports the bad records
    kind = kind_of(names) if reading.chat in ("auto", "off") else reading.chat
    usual = [name for name in USUAL_FIELDS if name in names]
    if kind in KINDS and reading.chat == "off" and not usual:
        raise CorpusError(
            f"{path}: has conversations ({listed(KINDS[kind])}), which build and encode read"
            " without --chat off, and nothing else does; choose a field with text: --content-field"
        )
    if kind not in KINDS or reading.chat == "off":
        if len(usual) == 1:
            return "off", tuple(usual)
        which = f"several are {listed(usual)}" if usual else f"no field is {listed(USUAL_FIELDS)}"
        raise CorpusError(
            f"{path}: the field with the text is not known, because {which}: choose it with"
            f" --content-field; the first record has {listed(names)}"
        )
    if usual and reading.chat == "auto":
        raise CorpusError(
            f"{path}: records have conversations ({listed(KINDS[kind])}) and text"
            f" ({listed(usual)}); choose one: --chat {kind}, or --content-field {usual[0]}"
        )
    if reading.chat_format is None:
        raise CorpusError(
            f"{path}: has conversations ({listed(KINDS[kind])}), and no chat template is"
            " known; give a tokenizer (--tokenizer) that has one, or a tokenizer and"
            " --chat-template FILE or chatml; or a field with text: --content-field"
        )
    return kind, KINDS[kind]


def shown_path(file: InputFile) -> str:
    """Return the path of a file as text, also if it is not UTF-8."""
    path = str(file.path).removesuffix(DECOMPRESSED)
    return os.fsencode(path).decode("utf-8", "backslashreplace")
