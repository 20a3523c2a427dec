"""Compressed files: another format, read while it is decompressed.

The source of the other format reads a `DecompressedFile`, which decompresses forwards and remembers
the last bytes. Units carry their text, and count and digest the bytes of the compressed file. A run
that resumes decompresses the file from its start.

A file may have several members (gzip, xz, bzip2) or frames (Zstandard); a truncated or damaged one
is an error, never the end of the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Any, NamedTuple

from msgspec import structs

from bpe.errors import CorpusError
from preprocess.documents.batch import DocumentBatch, ReadOptions
from preprocess.run_ahead import run_ahead
from preprocess.sources.base import (
    DECOMPRESSED,
    ResumePoint,
    Source,
    WorkUnit,
    import_library,
    import_zstandard,
)
from preprocess.sources.remote import read_ahead
from preprocess.sources.text_file import Array, Bytes, InputFile, new_array

_MAGIC_BYTES = 16  # at least as many as a codec has
_INPUT_BYTES = 256 * 1024  # compressed bytes read at a time
_MAX_STREAMS = 4  # one for each reading of a long document, see `DecompressedFile`
_UNITS_AHEAD = 2  # that a thread decompresses while the one that asked for them does other work
_PIECE_BYTES = 1024 * 1024  # most bytes decompressed at a time
_SCANNED_BYTES = 4 * 1024 * 1024  # more than is read after a unit of short documents


class Codec(NamedTuple):
    """A compression; `make` returns a decompressor of a member, as `bz2.BZ2Decompressor`."""

    name: str
    suffixes: tuple[str, ...]
    magic: bytes  # regular expression of the first bytes
    make: Callable[[], Any]
    command: str  # that checks a file with -t, and decompresses it with -d


def _gzip() -> Any:
    isal = import_library("isal.igzip_lib", "gzip")
    return isal.IgzipDecompressor(flag=isal.DECOMP_GZIP)


def _xz() -> Any:
    import lzma  # not in every Python

    return lzma.LZMADecompressor()


def _bzip2() -> Any:
    import bz2  # likewise

    return bz2.BZ2Decompressor()


def _zstandard() -> Any:
    zstd = import_zstandard()
    # Files of `zstd --long=31` have the largest window, which takes 2 GiB.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


_ZSTANDARD = rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"  # a frame, or one to skip
_BZIP2 = rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"
CODECS = [
    Codec("gzip", (".gz",), rb"\x1f\x8b", _gzip, "gzip"),
    Codec("Zstandard", (".zst", ".zstd"), _ZSTANDARD, _zstandard, "zstd"),
    Codec("xz", (".xz",), rb"\xfd7zXZ\x00", _xz, "xz"),
    Codec("bzip2", (".bz2",), _BZIP2, _bzip2, "bzip2"),
]


def codec_of(begins: bytes, suffix: str = "") -> Codec | None:
    """Return the codec of data by its first bytes or a suffix; None: it is not compressed."""
    by_content = (codec for codec in CODECS if re.match(codec.magic, begins, re.DOTALL))
    by_suffix = (codec for codec in CODECS if suffix.lower() in codec.suffixes)
    return next(chain(by_content, by_suffix), None)


def _decompress(file: InputFile, codec: Codec) -> Iterator[tuple[bytes, int]]:
    """Yield (the next bytes of the text, number of compressed bytes read so far).

    Raises:
        CorpusError: The data is damaged or truncated, or something else follows it.
    """
    reader, data, n_read = read_ahead(file), b"", 0
    decompressor: Any = None

    def failed(what: str) -> CorpusError:
        return CorpusError(
            f"{file.path}: {codec.name} data {what}, at byte {n_read:,} of {file.n_bytes:,} or"
            f" shortly before; get the file again, and check it: {codec.command} -t"
        )

    while True:
        is_between = decompressor is None or decompressor.eof
        wanted = _MAGIC_BYTES if is_between else decompressor.needs_input
        while len(data) < wanted and n_read < file.n_bytes:
            start, n_read = n_read, min(n_read + _INPUT_BYTES, file.n_bytes)
            data += reader.read(start, n_read).tobytes()
            if is_between and decompressor is not None:
                data = data.lstrip(b"\0")  # padding after a member
        if is_between:
            if not data and decompressor is not None:
                return
            if not data:
                raise failed("is empty")
            is_cut = decompressor is None and len(data) < _MAGIC_BYTES
            if not (is_cut or re.match(codec.magic, data, re.DOTALL)):
                raise _other_data(file, codec, n_read - len(data))
            decompressor = codec.make()
        elif wanted and not data:
            raise failed("ends early, so the file is truncated")
        try:
            piece = decompressor.decompress(data, _PIECE_BYTES)
        except MemoryError:
            raise
        except Exception as error:  # of each library its own
            raise failed(f"is damaged ({error})") from error
        data = decompressor.unused_data.lstrip(b"\0") if decompressor.eof else b""
        if piece:
            yield piece, n_read


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
    """What a file decompresses to, read forwards; the last `kept` bytes can be read again.

    Attributes:
        start, stop: The range of the text that can be read.
        n_read: Number of compressed bytes read so far.
        ended: True at the end of the file.
    """

    def __init__(self, file: InputFile, codec: Codec, kept: int) -> None:
        self._decompressed, self._kept = _decompress(file, codec), kept
        self._text = bytearray()
        self.start = self.stop = self.n_read = 0
        self.ended = False

    def forward(self, position: int) -> None:
        """Decompress up to a position and not much further, or to the end."""
        while self.stop < position and not self.ended:
            piece, self.n_read = next(self._decompressed, (b"", self.n_read))
            self.ended = not piece
            n_dropped = max(len(self._text) - self._kept, 0)
            del self._text[:n_dropped]
            self._text += piece
            self.start, self.stop = self.start + n_dropped, self.stop + len(piece)

    def read(self, start: int, stop: int, array: Array) -> Bytes:
        """Read bytes [start, stop), and forward to the next one; `start` is in the range."""
        content, place = array(stop - start), start
        while place < stop:  # a piece at a time, for a long document is not kept
            self.forward(place + 1)
            end = min(self.stop, stop)
            with memoryview(self._text)[place - self.start : end - self.start] as part:
                content[place - start : end - start] = part
            if end == place:
                break
            place = end
        self.forward(stop + 1)  # knows that this is the end, if it is
        content.flags.writeable = False
        return content[: place - start]


class DecompressedFile(InputFile):
    """The decompressed content of a file; for one thread.

    The last `kept` bytes before the position that was read are remembered. Reading again what is
    further back decompresses the file again, in another stream, which then follows the first: so
    long documents can be scanned to their ends, then cut, then read for a decision, then read in
    parts. The file of a unit holds its text, (position, bytes), and knows `n_bytes` or not.
    """

    def __init__(
        self, file: InputFile, codec: Codec, kept: int = _PIECE_BYTES,
        n_bytes: int = sys.maxsize, held: tuple[int, Bytes] | None = None,
    ) -> None:
        self._made_of = file, codec, kept
        self.path, self.modified = f"{file.path}{DECOMPRESSED}", file.modified
        self._streams = list[_Stream]()
        self.n_bytes, self._held = n_bytes, held or (0, new_array(0))
        self.n_read = 0  # compressed bytes before the end of what was read last

    def __reduce__(self) -> tuple[Any, ...]:
        # Decompressors are of this process.
        return DecompressedFile, (*self._made_of, self.n_bytes, self._held)

    def clip(self, position: int) -> int:
        first, held = self._held
        if self.n_bytes == sys.maxsize and position > first + len(held):
            stream = self._streams[-1] if self._streams else self._stream_at(0)
            stream.forward(position)
            self.n_bytes = stream.stop if stream.ended else self.n_bytes
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        first, held = self._held
        if first <= start and stop <= first + len(held):
            return held[start - first : stop - first]
        stream = self._stream_at(start)
        content = stream.read(start, stop, array)
        self.n_bytes = stream.stop if stream.ended else self.n_bytes
        self.n_read = max(self.n_read, stream.n_read)
        return content

    def check_unchanged(self) -> None:
        self._made_of[0].check_unchanged()

    def hold(self, start: int, stop: int) -> DecompressedFile:
        """Return the file of a unit, with bytes [start, stop) in memory."""
        held = start, self.read(start, stop)
        return DecompressedFile(*self._made_of[:2], _PIECE_BYTES, self.n_bytes, held)

    def _stream_at(self, position: int) -> _Stream:
        """Return the stream that can read from `position` on with the least work."""
        self._streams.sort(key=lambda stream: stream.stop)
        able = [stream for stream in self._streams if stream.start <= position]
        if not able:
            able = [_Stream(*self._made_of)]
            # The one that is ahead goes on scanning.
            self._streams = [*able, *self._streams[1 - _MAX_STREAMS :]]
        return able[-1]


class CompressedUnit(WorkUnit, frozen=True):
    """A unit of another format with its text, and bytes [start, stop) of the compressed file."""

    unit: WorkUnit

    @property
    def where(self) -> str:
        return self.unit.where

    @property
    def after(self) -> ResumePoint | None:
        after = self.unit.after
        return None if after is None else [self.stop, *after]

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
            unit = structs.replace(unit, file=text.hold(unit.start, unit.stop))
            stop = self.n_bytes if unit.after is None else max(start, text.n_read)
            yield CompressedUnit(self.file, unit.reading, start, stop, unit)
            start = stop
