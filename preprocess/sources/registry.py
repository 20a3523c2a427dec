"""File formats, and how the format of a file is recognised.

A format is one module in this package and one line in `FORMATS`. A file of a known format without a
reader is an error; it is never read as text. Compressed files have the format of their content.
"""

from __future__ import annotations

import codecs
import importlib
import logging
import os
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bpe.errors import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.locations import url_name
from preprocess.sources.base import Source
from preprocess.sources.compressed import (
    CODECS,
    CompressedSource,
    DecompressedFile,
    codec_of,
    codec_of_content,
)
from preprocess.sources.own_files import is_log
from preprocess.sources.remote import RemoteFile
from preprocess.sources.text import TextSource
from preprocess.sources.text_file import InputFile, new_array, open_file

OpenSource = Callable[[InputFile, str, ReadOptions], Source]

_BEGIN_BYTES = 8192  # of a file, read to recognise its format


class Format(NamedTuple):
    """A file format.

    Attributes:
        name: Value of --format, and name in messages.
        open: Makes a source from (file, name in the manifest, options); None: there is no reader.
        magic: A file of another or no suffix has this format if it begins with one of these, with
            which no text begins.
        is_stream: The file is read forwards, so it may be compressed.
        instead: What to do with a file if there is no reader.
    """

    name: str
    suffixes: tuple[str, ...]
    open: OpenSource | None = None
    magic: tuple[bytes, ...] = ()
    is_stream: bool = True
    instead: str = ""


def _lazy(name: str) -> OpenSource:
    """Return the function or class `module.name` of this package, imported when it is called."""
    module, attribute = name.split(".")

    def call(file: InputFile, name: str, reading: ReadOptions) -> Source:
        found: OpenSource = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        return found(file, name, reading)

    return call


_AS_PARQUET = (
    "convert it: python -c \"from pyarrow import csv, parquet; parquet.write_table(csv.read_csv("
    "'{path}', parse_options=csv.ParseOptions(delimiter='%s', newlines_in_values=True)),"
    " '{path}.parquet')\""
)
_AS_TABLE = "convert it to Parquet"
_UNPACK = "unpack it and give the directory: mkdir '{path}.d' && tar -xf '{path}' -C '{path}.d'"
_OUTPUT = "it is an output of tokenmill; give the text it was made from"
TEXT = Format("text", (".txt",), TextSource)
FORMATS = [  # files of no other format are text
    TEXT,
    Format("jsonl", (".jsonl", ".ndjson"), _lazy("json_records.JsonLinesSource")),
    Format("json", (".json",), _lazy("json_records.open_json")),
    Format("parquet", (".parquet",), _lazy("columnar.ParquetSource"), (b"PAR1", b"PARE"), False),
    Format(
        "arrow", (".arrow", ".feather"), _lazy("columnar.ArrowSource"),
        (b"ARROW1", b"\xff\xff\xff\xff"), False,
    ),
    Format("csv", (".csv",), instead=_AS_PARQUET % ","),
    Format("tsv", (".tsv",), instead=_AS_PARQUET % r"\t"),
    Format("avro", (".avro",), None, (b"Obj\x01",), instead=_AS_TABLE),
    Format("orc", (".orc",), instead=_AS_TABLE),
    Format("tar", (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"), instead=_UNPACK),
    Format("zip", (".zip",), None, (b"PK\x03\x04",), instead=(
        "unpack it and give the directory: unzip '{path}' -d '{path}.d'"
    )),
    Format("7z", (".7z",), None, (b"7z\xbc\xaf\x27\x1c",), instead=(
        "unpack it and give the directory: 7z x '{path}' -o'{path}.d'"
    )),
    Format("rar", (".rar",), None, (b"Rar!\x1a\x07",), instead=(
        "unpack it and give the directory: unrar x '{path}' '{path}.d/'"
    )),
    *(
        Format(name, suffixes, None, magic, instead=f"decompress it: {command} '{{path}}'")
        for name, suffixes, magic, command in (
            ("lz4", (".lz4",), (b"\x04\x22\x4d\x18",), "lz4 -d"),
            ("brotli", (".br",), (), "brotli -d"),
            ("lzip", (".lz",), (b"LZIP\x01",), "lzip -d"),
            ("lzop", (".lzo",), (b"\x89LZO",), "lzop -d"),
            ("compress", (".z",), (b"\x1f\x9d",), "uncompress"),
            ("snappy", (".snappy", ".sz"), (b"\xff\x06\0\0sNaPpY",), "python -m snappy -d"),
        )
    ),
    Format("bin", (".bin",), instead=_OUTPUT),
    Format("docs", (".docs",), instead=_OUTPUT),
]
_POINTERS = {b"version https://git-lfs.": "git lfs pull", b"/annex/objects/": "git annex get '{}'"}
_RECORDS = re.compile(rb'\{\s*"(?:[^"\\\n]|\\.)*"\s*:')  # an object begins so, not an empty one

logger = logging.getLogger("preprocess")
_warn_once = cache(partial(logger.warning, "%s"))  # sources are found more than once in a run


def open_source(place: Path | RemoteFile, name: str, reading: ReadOptions) -> Source:
    """Open a file as a source that manifests list as `name`; suffix or first bytes tell its format.

    Raises:
        CorpusError: The file is missing or cannot be read, or its format has no reader.
    """
    if isinstance(place, Path):
        path, file_name = str(place), place.name
    else:
        path, file_name = place.path, url_name(place.url)
    try:
        name.encode()
    except UnicodeEncodeError:
        # The manifest is UTF-8 and names its sources.
        shown = repr(os.fsencode(path))
        raise CorpusError(f"{shown}: the name of this file is not UTF-8; rename it") from None
    file: InputFile = open_file(place) if isinstance(place, Path) else place
    begins = _begin_of(file)
    for pointer, command in _POINTERS.items():
        if begins.startswith(pointer):
            raise CorpusError(
                f"{path}: is a pointer to a file that git did not download; download it:"
                f" {command.format(path)}"
            )
    if is_log(file):
        raise CorpusError(f"{path}: is a log of tokenmill, which is not read as text; give others")
    codec = codec_of(file_name, begins)
    if codec is None:
        form = _format_of(file_name, begins, reading, path)
        _check_encoding(form, begins, path)
        return _reader(form, file, file_name)(file, name, reading)
    stem, suffix = os.path.splitext(file_name)
    is_known = any(suffix.lower() in each.suffixes for each in CODECS)
    begins = _begin_of(DecompressedFile(file, codec))
    if (second := codec_of_content(begins)) is not None:
        raise CorpusError(
            f"{path}: {codec.name} data with {second.name} data inside; decompress it once:"
            f" {codec.command} -d '{path}'"
        )
    form = _format_of(stem if is_known else file_name, begins, reading, path)
    _check_encoding(form, begins, path)
    if form.open is not None and not form.is_stream:
        raise CorpusError(
            f"{path}: {form.name} files are compressed inside, and are not read while they are"
            f" decompressed; decompress it: {codec.command} -d '{path}'"
        )
    return CompressedSource(file, name, reading, codec, _reader(form, file, file_name))


def is_binary(file: InputFile, file_name: str, reading: ReadOptions) -> bool:
    """Return True if a file in a directory is binary and of no known format."""
    begins = _begin_of(file)
    if codec_of(file_name, begins) or _format_of(file_name, begins, reading) is not TEXT:
        return False
    is_other_text = _encoding_of(begins) and reading.on_invalid_utf8 == "error"
    return b"\0" in begins and not is_other_text  # which no text has


def _begin_of(file: InputFile) -> bytes:
    return file.read(0, file.clip(_BEGIN_BYTES), new_array).tobytes()


def _format_of(
    name: str, begins: bytes, reading: ReadOptions, path: Path | str | None = None
) -> Format:
    """Return the format of a file by --format, its suffix or its first bytes.

    A name without a suffix, such as part-00000, may be one of JSON. With a `path`, text that looks
    like JSON is warned of.
    """
    if reading.format:
        return next(form for form in FORMATS if form.name == reading.format)
    suffix = os.path.splitext(re.sub(r"-\d+-of-\d+$", "", name))[1].lower()
    by_suffix = next((form for form in FORMATS if suffix in form.suffixes), TEXT)
    if by_suffix is not TEXT:
        return by_suffix
    magic = (form for form in FORMATS if form.magic and begins.startswith(form.magic))
    if (found := next(magic, None)) is not None:
        return found
    first, _, following = begins.removeprefix(b"\xef\xbb\xbf").strip().partition(b"\n")
    first = first.rstrip()
    is_array = first.startswith(b"[") and _RECORDS.match(first[1:].lstrip() or following.lstrip())
    is_whole = first.endswith(b"}") or (len(begins) == _BEGIN_BYTES and not following)
    is_lines = is_whole and _RECORDS.match(first)
    if not (is_array or is_lines):
        return TEXT
    form = next(form for form in FORMATS if form.name == ("json" if is_array else "jsonl"))
    if re.fullmatch(r"(\.[\d-]*)?", suffix):
        return form
    if path is not None and (is_array or following.lstrip().startswith(b"{")):
        _warn_once(
            f"{path}: begins as {form.name} does, and is read as text; choose --format"
            f" {form.name}, or --format text if it is meant, or name it .{form.name}"
        )
    return TEXT


def _check_encoding(form: Format, begins: bytes, path: Path | str) -> None:
    """Raise CorpusError if a file of text or JSON is UTF-16 or UTF-32."""
    if form.open is not None and form.is_stream and (name := _encoding_of(begins)):
        raise CorpusError(
            f"{path}: is {name}, expected UTF-8; convert it: iconv -f {name} -t UTF-8 '{path}' >"
            f" '{path}.utf-8'"
        )


def _reader(form: Format, file: InputFile, file_name: str) -> OpenSource:
    """Return the reader of a format; raise CorpusError if there is none."""
    if form.open is not None:
        return form.open
    *names, last = (form.name for form in FORMATS if form.open)
    is_remote = isinstance(file, RemoteFile)
    instead = form.instead.format(path=file_name if is_remote else file.path)
    raise CorpusError(
        f"{file.path}: {form.name} files cannot be read, only {', '.join(names)} and {last};"
        f" {'download it, and ' * is_remote}{instead}"
    )


def _encoding_of(begins: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 text by its first bytes, as iconv calls it, or "".

    Text without a mark is recognised by the zero bytes of its ASCII characters.
    """
    marks = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16",
             b"\xfe\xff": "UTF-16"}
    name = next((marks[mark] for mark in marks if begins.startswith(mark)), "")
    if not name and begins.count(0) > len(begins) // 4:
        name = "UTF-16LE" if begins[::2].count(0) < begins[1::2].count(0) else "UTF-16BE"
    try:
        text = codecs.getincrementaldecoder(name or "UTF-8")().decode(begins)
    except UnicodeDecodeError:
        return ""
    return "" if re.search(r"[\0-\x08\x0e-\x1f]", text) else name
