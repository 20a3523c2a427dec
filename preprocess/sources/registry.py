"""File formats, and how the format of a file is recognised.

A format is one module in this package, one line in `FORMATS`, and a name of the option `format`. A
file of a known format without a reader is an error; it is never read as text. Compressed files have
the format of their content.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bpe.errors import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.locations import url_name
from preprocess.sources.base import Source
from preprocess.sources.columnar import ArrowSource, ParquetSource
from preprocess.sources.compressed import (
    CompressedSource,
    DecompressedFile,
    codec_of,
)
from preprocess.sources.json_records import JsonLinesSource, open_json
from preprocess.sources.remote import RemoteFile
from preprocess.sources.text import TextSource
from preprocess.sources.text_file import InputFile

OpenSource = Callable[[InputFile, str, ReadOptions], Source]

LOG_BEGINS = "# Log of tokenmill, which does not read it as text.\n"
REPORT_BEGINS = "<!doctype html><!-- Report of tokenmill, which does not read it as text. -->\n"
# Of the characters that are not ASCII, by which UTF-16 without a mark is recognised.
_MIN_OTHERS, _SHARE_OF_SCRIPT = 32, 0.85
_BEGIN_BYTES = 8192  # of a file, read to recognise its format


class Format(NamedTuple):
    """A file format.

    Attributes:
        name: Value of --format, and name in messages.
        open: Makes a source from (file, name in the manifest, options); None: there is no reader.
        magic: A file whose suffix is unknown, missing, or one of text has this format if it has one
            of these at byte `place`, as no text does.
        is_stream: The file is read forwards, so it may be compressed.
        instead: What to do with a file if there is no reader.
        is_text: Files are text, so those with the bytes of another format have that one.
    """

    name: str
    suffixes: tuple[str, ...]
    open: OpenSource | None = None
    magic: tuple[bytes, ...] = ()
    is_stream: bool = True
    instead: str = ""
    place: int = 0
    is_text: bool = False


_AS_PARQUET = (
    "convert it: python -c \"from pyarrow import csv, parquet; parquet.write_table(csv.read_csv("
    "'{path}', parse_options=csv.ParseOptions(delimiter='%s', newlines_in_values=True)),"
    " '{path}.parquet')\""
)
_AS_TABLE = "convert it to Parquet"
_UNPACK = "unpack it and give the directory: mkdir '{path}.d' && tar -xf '{path}' -C '{path}.d'"
_OUTPUT = "it is an output of tokenmill; give the text it was made from"
_OF_TEXT = (".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".html", ".htm", ".xml")
TEXT = Format("text", _OF_TEXT, TextSource, is_text=True)
FORMATS = [  # files of no other format are text
    TEXT,
    Format("jsonl", (".jsonl", ".ndjson"), JsonLinesSource, is_text=True),
    Format("json", (".json",), open_json, is_text=True),
    Format("parquet", (".parquet",), ParquetSource, (b"PAR1", b"PARE"), False),
    Format("arrow", (".arrow", ".feather"), ArrowSource, (b"ARROW1", b"\xff\xff\xff\xff"), False),
    Format("csv", (".csv",), instead=_AS_PARQUET % ",", is_text=True),
    Format("tsv", (".tsv",), instead=_AS_PARQUET % r"\t", is_text=True),
    Format("avro", (".avro",), None, (b"Obj\x01",), instead=_AS_TABLE),
    Format("orc", (".orc",), instead=_AS_TABLE),
    Format("tar", (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"), None,
           (b"ustar\0", b"ustar  \0"), instead=_UNPACK, place=257),
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
            ("lzma", (".lzma",), (), "xz -d"),
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
warn_once = cache(partial(logger.warning, "%s"))  # sources are found more than once in a run


def open_source(
    file: InputFile, name: str, reading: ReadOptions, is_below: bool = False
) -> Source | Path | str | None:
    """Return the source of a file; its suffix or its first bytes tell the format.

    Args:
        file: The file.
        name: Its name in manifests.
        reading: How it is read.
        is_below: It was found below a directory: if it is binary its path is returned, and None if
            it is a log of tokenmill.

    Raises:
        CorpusError: The file cannot be read, or its format has no reader.
    """
    is_remote, path = isinstance(file, RemoteFile), str(file.path)
    file_name = url_name(file.url) if isinstance(file, RemoteFile) else os.path.basename(path)
    begins = file.begins(_BEGIN_BYTES)
    if is_log(file):
        if is_below:
            return None
        what = "log" if begins.startswith(LOG_BEGINS.encode()) else "report"
        raise CorpusError(
            f"{path}: is a {what} of tokenmill, which is not read as text; give others"
        )
    for pointer, command in _POINTERS.items():
        if begins.startswith(pointer):
            raise CorpusError(
                f"{path}: is a pointer to a file that git did not download; download it:"
                f" {command.format(path)}"
            )
    stem, suffix = os.path.splitext(file_name)
    codec, inner_name = codec_of(begins, suffix), file_name
    if codec is not None:
        begins = DecompressedFile(file, codec).begins(_BEGIN_BYTES)
        if (second := codec_of(begins)) is not None:
            raise CorpusError(
                f"{path}: {codec.name} data with {second.name} data inside; decompress it once:"
                f" {codec.command} -d '{path}'"
            )
        inner_name = stem if codec_of(b"", suffix) else file_name
    form, encoding = _format_of(inner_name, begins, reading, path), _encoding_of(begins)
    is_other_text = encoding and reading.on_invalid_utf8 == "error"
    if is_below and form is TEXT and codec is None and b"\0" in begins and not is_other_text:
        return file.path  # no text has a zero byte
    try:
        name.encode()
    except UnicodeEncodeError:  # the manifest, which is UTF-8, names its sources
        shown = repr(os.fsencode(path))
        raise CorpusError(f"{shown}: the name of this file is not UTF-8; rename it") from None
    here, download = (file_name, "download it, and ") if is_remote else (path, "")
    if form.open is None:
        *names, last = (each.name for each in FORMATS if each.open)
        instead = form.instead.format(path=here)
        if codec is not None and "'{path}'" in form.instead and form.name != "tar":
            inner = f"{here}{form.suffixes[0]}"
            instead = f"decompress it: {codec.command} -dc '{here}' > '{inner}', and then"
            instead = f"{instead} {form.instead.format(path=inner)}"
        raise CorpusError(
            f"{path}: {form.name} files cannot be read, only {', '.join(names)} and {last};"
            f" {download}{instead}"
        )
    if form.is_stream and encoding:
        stem, suffix = os.path.splitext(here.removesuffix(file_name) + inner_name)
        convert, target = f"iconv -f {encoding} -t UTF-8", f"'{stem}.utf-8{suffix}'"
        convert = (
            f"{convert} '{here}'" if codec is None else f"{codec.command} -dc '{here}' | {convert}"
        )
        raise CorpusError(
            f"{path}: is {encoding}, expected UTF-8; {download}convert it: {convert} > {target}"
        )
    if codec is None:
        return form.open(file, name, reading)
    if not form.is_stream:
        raise CorpusError(
            f"{path}: {form.name} files are compressed inside, and are not read while they are"
            f" decompressed; decompress it: {codec.command} -d '{path}'"
        )
    return CompressedSource(file, name, reading, codec, form.open)


def is_named_text(path: Path | str) -> bool:
    """Return True if the suffix of a file says that it is text."""
    return os.path.splitext(str(path))[1].lower() in TEXT.suffixes


def is_log(file: InputFile) -> bool:
    """Return True for a file that `--log-file` began, and for the page of a report."""
    return file.begins(_BEGIN_BYTES).startswith((LOG_BEGINS.encode(), REPORT_BEGINS.encode()))


def _format_of(name: str, begins: bytes, reading: ReadOptions, path: str) -> Format:
    """Return the format of a file by --format, its suffix or its first bytes.

    A name without a suffix, such as part-00000, may be one of JSON. Of others, text that looks
    like JSON is warned of.
    """
    if reading.format:
        return next(form for form in FORMATS if form.name == reading.format)
    suffix = os.path.splitext(re.sub(r"-\d+-of-\d+$", "", name))[1].lower()
    by_suffix = next((form for form in FORMATS if suffix in form.suffixes), TEXT)
    magic = (form for form in FORMATS if form.magic and begins.startswith(form.magic, form.place))
    if by_suffix.is_text and (found := next(magic, None)) is not None:
        return found
    if by_suffix.is_text and _is_old_tar(begins[:512]):
        return next(form for form in FORMATS if form.name == "tar")
    if by_suffix is not TEXT:
        return by_suffix
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
    if is_array or following.lstrip().startswith(b"{"):
        warn_once(
            f"{path}: begins as {form.name} does, and is read as text; choose --format"
            f" {form.name}, or --format text if it is meant, or name it .{form.name}"
        )
    return TEXT


def _is_old_tar(header: bytes) -> bool:
    """Return True for the first header of a tar of Version 7, which has a checksum, no magic."""
    match = re.fullmatch(rb"( *[0-7]+ *)(\0 | \0)", header[148:156])
    return match is not None and int(match[1], 8) == sum(header) - sum(match[0]) + 8 * ord(" ")


def _encoding_of(begins: bytes) -> str:
    """Return the encoding of UTF-16 or UTF-32 text by its first bytes, as iconv calls it, or "".

    Text without a mark is recognised by the zero bytes of its ASCII characters, and of other
    scripts by its characters.
    """
    marks = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16",
             b"\xfe\xff": "UTF-16"}
    name = next((marks[mark] for mark in marks if begins.startswith(mark)), "")
    zeros = [begins[i::4].count(0) for i in range(4)]
    if not name and sum(zeros) > len(begins) // 4:
        order = "BE" if zeros[0] > zeros[3] else "LE"
        is_32 = min(zeros[:2] if order == "BE" else zeros[2:]) > len(begins) // 5
        name = f"UTF-{32 if is_32 else 16}{order}"
    elif not name and b"\0" in begins:
        orders = [x for x in ("UTF-16LE", "UTF-16BE") if _is_of_one_script(begins, x)]
        name = orders[0] if len(orders) == 1 else ""
    try:
        text = codecs.getincrementaldecoder(name or "UTF-8")().decode(begins)
    except UnicodeDecodeError:
        return ""
    is_text = text or name in marks.values()  # else a few zero bytes, without a whole character
    return name if is_text and not re.search(r"[\0-\x08\x0e-\x1f]", text) else ""


def _is_of_one_script(begins: bytes, encoding: str) -> bool:
    """Return True for bytes that surely are UTF-16 text of few ASCII characters, and not UTF-8."""
    with suppress(UnicodeDecodeError):
        as_utf_8 = codecs.getincrementaldecoder("UTF-8")().decode(begins)
        if not re.search(r"[\x01-\x08\x0e-\x1f]", as_utf_8):
            return False
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(begins)
    except UnicodeDecodeError:
        return False
    no_text = "Cc", "Cn", "Co"  # categories of controls, and of what is not assigned or private
    if any(unicodedata.category(x) in no_text and not x.isspace() for x in text):
        return False
    others = [x for x in text if x > "\x7f"]
    scripts = Counter(re.split("[ -]", unicodedata.name(x, ""))[0] for x in others)
    scripts["CJK"] += sum(scripts.pop(x, 0) for x in ("HIRAGANA", "KATAKANA", "IDEOGRAPHIC"))
    is_whole = len(begins) % 2 == 0 and len(others) >= _MIN_OTHERS
    return is_whole and max(scripts.values()) >= _SHARE_OF_SCRIPT * len(others)
