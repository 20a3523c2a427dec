"""Compressed files: another format, read while it is decompressed.

The source of the other format reads a `DecompressedFile`, which decompresses forwards and remembers
the last bytes. Units carry their text, and count and digest the bytes of the compressed file. A run
that resumes decompresses the file from its start.

A file may have several members (gzip, xz, bzip2) or frames (Zstandard); a truncated or damaged one
is an error, never the end of the text.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import structs

from bpe.errors import CorpusError
from preprocess.documents.batch import Bytes, DocumentBatch, ReadOptions
from preprocess.run_ahead import run_ahead
from preprocess.sources.base import (
    DECOMPRESSED,
    Array,
    ResumePoint,
    Source,
    WorkUnit,
    import_library,
    import_zstandard,
)
from preprocess.sources.remote import read_ahead
from preprocess.sources.text_file import InputFile, new_array

_MAGIC_BYTES = 16  # at least as many as a codec has
_INPUT_BYTES = 256 * 1024  # compressed bytes read at a time
_MAX_STREAMS = 4  # one for each reading of a long document, see `DecompressedFile`
_UNITS_AHEAD = 2  # that a thread decompresses while the one that asked for them does other work
_PIECE_BYTES = 1024 * 1024  # most bytes decompressed at a time
_SCANNED_BYTES = 4 * 1024 * 1024  # more than is read after a unit of short documents


class Decompressor(Protocol):
    """A decompressor of one member or frame, as `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class Codec(NamedTuple):
    """A compression.

    `load` imports the library and returns (makes a decompressor, the exception for damaged data).
    """

    name: str
    suffixes: tuple[str, ...]
    magic: bytes  # regular expression of the first bytes
    load: Callable[[], tuple[Callable[[], Decompressor], type[Exception]]]
    command: str  # that checks a file with -t, and decompresses it with -d


def _load_gzip() -> tuple[Callable[[], Decompressor], type[Exception]]:
    isal = import_library("isal.igzip_lib", "gzip")
    return partial(isal.IgzipDecompressor, flag=isal.DECOMP_GZIP), isal.IsalError


def _load_zstandard() -> tuple[Callable[[], Decompressor], type[Exception]]:
    zstd = import_zstandard()
    # Files of `zstd --long=31` have the largest window, which takes 2 GiB.
    options = {zstd.DecompressionParameter.window_log_max: 31}
    return partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError


def _load_xz() -> tuple[Callable[[], Decompressor], type[Exception]]:
    import lzma

    return lzma.LZMADecompressor, lzma.LZMAError


def _load_bzip2() -> tuple[Callable[[], Decompressor], type[Exception]]:
    import bz2

    return bz2.BZ2Decompressor, OSError


_ZSTANDARD = rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"  # a frame, or one to skip
CODECS = [
    Codec("gzip", (".gz",), rb"\x1f\x8b", _load_gzip, "gzip"),
    Codec("Zstandard", (".zst", ".zstd"), _ZSTANDARD, _load_zstandard, "zstd"),
    Codec("xz", (".xz",), rb"\xfd7zXZ\x00", _load_xz, "xz"),
    Codec("bzip2", (".bz2",), rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", _load_bzip2, "bzip2"),
]


def codec_of(name: str, begins: bytes) -> Codec | None:
    """Return the codec of a file by its first bytes or its suffix; None: it is not compressed."""
    suffix = os.path.splitext(name)[1].lower()
    by_suffix = (codec for codec in CODECS if suffix in codec.suffixes)
    return codec_of_content(begins) or next(by_suffix, None)


def codec_of_content(begins: bytes) -> Codec | None:
    """Return the codec of data by its first bytes; None: it is not compressed."""
    return next((codec for codec in CODECS if re.match(codec.magic, begins, re.DOTALL)), None)


def _decompress(file: InputFile, codec: Codec) -> Iterator[tuple[Bytes, int]]:
    """Yield (the next bytes of the text, uint8; number of compressed bytes read so far).

    Raises:
        CorpusError: The data is damaged or truncated, or something else follows it.
    """
    make, error_of_library = codec.load()
    reader, data, n_read, is_first = read_ahead(file), b"", 0, True

    def read() -> bytes:
        nonlocal n_read
        start, n_read = n_read, min(n_read + _INPUT_BYTES, file.n_bytes)
        return reader.read(start, n_read, new_array).tobytes()

    def damaged(what: str) -> CorpusError:
        return CorpusError(
            f"{file.path}: {codec.name} data {what}, at byte {n_read:,} of {file.n_bytes:,} or"
            f" shortly before; get the file again, and check it: {codec.command} -t"
        )

    while True:  # a member, or frame, at a time
        while len(data) < _MAGIC_BYTES and (more := read()):
            data += more
            data = data if is_first else data.lstrip(b"\0")  # padding after a member
        if not data:
            if is_first:
                raise damaged("is empty")
            return
        is_cut = is_first and len(data) < _MAGIC_BYTES
        if not (is_cut or re.match(codec.magic, data, re.DOTALL)):
            raise _other_data(file, codec, n_read - len(data))
        decompressor, is_first = make(), False
        while not decompressor.eof:
            if decompressor.needs_input and not (data := data or read()):
                raise damaged("ends early, so the file is truncated")
            try:
                piece = decompressor.decompress(data, _PIECE_BYTES)
            except (error_of_library, EOFError) as error:
                raise damaged(f"is damaged ({error})") from error
            data = b""
            if piece:
                yield np.frombuffer(piece, np.uint8), n_read
        data = decompressor.unused_data.lstrip(b"\0")


def _other_data(file: InputFile, codec: Codec, at: int) -> CorpusError:
    """Return the error for bytes from byte `at` on that are not of the codec."""
    if not at:
        return CorpusError(
            f"{file.path}: is not {codec.name} data, as its name says; rename it, or get the file"
            " again"
        )
    return CorpusError(
        f"{file.path}: {codec.name} data ends at byte {at:,} of {file.n_bytes:,}, and what follows"
        f" is something else; cut it off: head -c {at} '{file.path}'"
    )


class _Stream:
    """What a file decompresses to, read forwards; the last `kept` bytes can be read.

    Attributes:
        stop: Number of bytes decompressed so far.
        start: The first of them that is still kept.
        n_read: Number of compressed bytes read so far.
        ended: True at the end of the file.
    """

    def __init__(self, file: InputFile, codec: Codec, kept: int) -> None:
        self._decompressed, self._kept = _decompress(file, codec), kept
        self._pieces: deque[Bytes] = deque()
        self.start = self.stop = self.n_read = 0
        self.ended = False

    def forward(self, position: int) -> None:
        """Decompress up to a position and not much further, or to the end."""
        while self.stop < position and not self.ended:
            piece, self.n_read = next(self._decompressed, (None, self.n_read))
            if piece is None:
                self.ended = True
                return
            self._pieces.append(piece)
            self.stop += len(piece)
            while self.stop - self.start - len(self._pieces[0]) > self._kept:
                self.start += len(self._pieces.popleft())

    def views(self, start: int, stop: int) -> Iterator[Bytes]:
        """Yield bytes [start, stop) in views of pieces, uint8; `start` is at least `self.start`."""
        while start < stop:
            self.forward(start + 1)
            assert self.stop > start, "read past the end"
            for view in _slice(self._pieces, start - self.start, stop - self.start):
                start += len(view)
                yield view


class DecompressedFile:
    """What a file decompresses to, as an `InputFile`; for one thread.

    The last `kept` bytes before the position that was read are remembered. Reading again what is
    further back decompresses the file again, in another stream, which then follows the first: so
    long documents can be scanned to their ends, then cut, then read for a decision, then read in
    parts.
    """

    def __init__(self, file: InputFile, codec: Codec, kept: int = _PIECE_BYTES) -> None:
        self._file, self._codec, self._kept = file, codec, kept
        self.path, self.modified = f"{file.path}{DECOMPRESSED}", file.modified
        self._streams = [_Stream(file, codec, kept)]
        self.n_bytes = sys.maxsize
        self.n_read = 0  # compressed bytes before the end of what was read last

    def clip(self, position: int) -> int:
        if position > self._streams[-1].stop and self.n_bytes == sys.maxsize:
            self._forward(self._streams[-1], position)
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        return _join(self._views(start, stop), stop - start, array)

    def hold(self, start: int, stop: int) -> DecompressedRange:
        """Read bytes [start, stop) for a unit: in views, or joined if they are many."""
        if stop - start > self._kept:
            views = [self.read(start, stop)]  # copies, so that pieces are freed one by one
        else:
            views = [*self._views(start, stop)]
        return DecompressedRange(self._file, self._codec, self.n_bytes, start, stop, views)

    def _views(self, start: int, stop: int) -> Iterator[Bytes]:
        stream = self._stream_at(start)
        yield from stream.views(start, stop)
        self._forward(stream, stop + 1)  # knows that this is the end, if it is
        self.n_read = max(self.n_read, stream.n_read)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()

    def _forward(self, stream: _Stream, position: int) -> None:
        stream.forward(position)
        if stream.ended:
            self.n_bytes = stream.stop

    def _stream_at(self, position: int) -> _Stream:
        """Return the stream that can read from `position` on with the least work."""
        able = [stream for stream in self._streams if stream.start <= position]
        if able:
            return max(able, key=lambda stream: stream.stop)
        self._streams.sort(key=lambda stream: stream.stop)
        following = _Stream(self._file, self._codec, self._kept)
        # The one that is ahead goes on scanning.
        self._streams = [following, *self._streams[1 - _MAX_STREAMS :]]
        return following


def _slice(views: Iterable[Bytes], start: int, stop: int) -> Iterator[Bytes]:
    """Yield bytes [start, stop) of the joined views, uint8, without copying them."""
    place = 0
    for view in views:
        if place < stop and start < place + len(view):
            yield view[max(start - place, 0) : stop - place]
        place += len(view)


def _join(views: Iterable[Bytes], n_bytes: int, array: Array) -> Bytes:
    """Copy views of `n_bytes` bytes in all into one array: uint8[n_bytes], read-only."""
    content, n_done = array(n_bytes), 0
    for view in views:
        content[n_done : n_done + len(view)] = view
        n_done += len(view)
    content.flags.writeable = False
    return content


@dataclass(frozen=True)
class DecompressedRange:
    """Bytes [start, stop) of a decompressed file in memory; others are decompressed again.

    They are joined by the thread that reads the unit, for all others wait for the only one that
    decompresses the file.
    """

    file: InputFile
    codec: Codec
    n_bytes: int
    start: int
    stop: int
    views: list[Bytes]

    def __reduce__(self) -> tuple[Any, ...]:
        # Without `_whole`, whose decompressors are of this process.
        values = self.file, self.codec, self.n_bytes, self.start, self.stop, self.views
        return DecompressedRange, values

    @cached_property
    def _whole(self) -> DecompressedFile:
        return DecompressedFile(self.file, self.codec)

    @property
    def path(self) -> str:
        return f"{self.file.path}{DECOMPRESSED}"

    @property
    def modified(self) -> int:
        return self.file.modified

    def clip(self, position: int) -> int:
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        if self.start <= start and stop <= self.stop:
            views = [*_slice(self.views, start - self.start, stop - self.start)]
            return views[0] if len(views) == 1 else _join(views, stop - start, array)
        return self._whole.read(start, stop, array)

    def check_unchanged(self) -> None:
        self.file.check_unchanged()


@dataclass(frozen=True)
class CompressedUnit(WorkUnit):
    """A unit of another format with its text, and bytes [start, stop) of the compressed file."""

    unit: WorkUnit

    @property
    def where(self) -> str:
        return self.unit.where

    @property
    def after(self) -> ResumePoint | None:
        after = self.unit.after
        return None if after is None else [self.stop, *after]

    @property
    def is_rendered(self) -> bool:
        return self.unit.is_rendered

    def read(self, array: Array = new_array) -> DocumentBatch:
        return structs.replace(self.unit.read(array), content=self.content())


class CompressedSource(Source):
    """A compressed file; `open_text` makes the source of its format."""

    is_compressed = True

    def __init__(
        self, file: InputFile, name: str, reading: ReadOptions, codec: Codec,
        open_text: Callable[[InputFile, str, ReadOptions], Source],
    ) -> None:
        super().__init__(file, name, reading)
        self._codec, self._open_text = codec, open_text
        text = self._open()[1]
        self.separator, self.has_fields = text.separator, text.has_fields
        self.has_spans = text.has_spans

    def _open(self) -> tuple[DecompressedFile, Source]:
        kept = self.reading.unit_size + _SCANNED_BYTES
        text = DecompressedFile(self.file, self._codec, kept)
        return text, self._open_text(text, self.name, self.reading)

    def units(self, after: ResumePoint | None = None) -> Generator[CompressedUnit]:
        return run_ahead(self._units(after), _UNITS_AHEAD)

    def _units(self, after: ResumePoint | None) -> Generator[CompressedUnit]:
        text, source = self._open()
        start = after[0] if after else 0
        for unit in source.units(after[1:] if after else None):
            unit = replace(unit, file=text.hold(unit.start, unit.stop))
            stop = self.n_bytes if unit.after is None else max(start, text.n_read)
            yield CompressedUnit(self.file, self.reading_of_units, start, stop, unit)
            start = stop
