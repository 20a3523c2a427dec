"""What may be taken for something else is recognised, refused with its name, or warned of."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_files import COMPRESSIONS
from source_cases import documents_of

from bpe import load_tokenizer, train_bpe
from preprocess import ChatTemplateTransform, CorpusError, SettingsError, build, open_tokens
from preprocess.cli import run
from preprocess.documents.batch import ReadOptions
from preprocess.sources import find_sources, registry


def archive(kind: str) -> bytes:
    """Return a tar or zip file with one text."""
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as packed:
            packed.writestr(zipfile.ZipInfo("a.txt"), "text")
    else:
        member = tarfile.TarInfo("a.txt")
        with tarfile.open(fileobj=stream, mode="w", format=getattr(tarfile, kind)) as tar:
            tar.addfile(member)
    return stream.getvalue()


def without_magic(tar: bytes) -> bytes:
    """Return a tar as programs of Version 7 wrote it."""
    header = tar[:148] + b" " * 8 + tar[156:257] + bytes(255)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:] + tar[512:]


TAR, PAX, ZIP = archive("GNU_FORMAT"), archive("PAX_FORMAT"), archive("zip")
OLD_TAR = without_magic(TAR)
RECORDS = '{"text": "one"}\n{"text": "naïve two"}\n'


@pytest.mark.parametrize(("name", "content", "command"), [
    ("a.jsonl.lz4", b"\x04\x22\x4d\x18", "lz4 -d"),
    ("a.jsonl.br", b"\x0b\x02\x80", "brotli -d"),
    ("a.7z", b"7z\xbc\xaf\x27\x1c\0", "7z x"),
    ("a", b"7z\xbc\xaf\x27\x1c\0", "7z x"),
    ("a.rar", b"Rar!\x1a\x07\x01\0", "unrar x"),
    ("a.txt.lz", b"LZIP\x01", "lzip -d"),
    ("a.jsonl.lzma", lzma.compress(b"x", lzma.FORMAT_ALONE), "xz -d"),
    ("a.lzo", b"\x89LZO\0", "lzop -d"),
    ("a.Z", b"\x1f\x9d\x90", "uncompress"),
    ("part-00000.snappy", b"\xff\x06\0\0sNaPpY", "snappy -d"),
    ("a.tbz2", gzip.compress(b"x", mtime=0), "tar -xf"),
    ("a.avro", b"Obj\x01", "convert it to Parquet"),
    ("a.orc", b"ORC", "convert it to Parquet"),
    ("a.txt", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pull"),
    ("a.jsonl.gz", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs pu"),
    ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\n", "git lfs p"),
    ("a.md", b"/annex/objects/SHA256E-s31--0a.md\n", "git annex get '"),
    *((name, text.encode(code), f"is {shown}, expected UTF-8; convert it: iconv -f {shown} -t UTF")
      for name, text in (("a.txt", "Some text\nand more, naïve.\n" * 9), ("a.jsonl", RECORDS),
                         ("a.json", f"[{RECORDS[:15]}]"), ("a", "日本語 and English\n"))
      for code, shown in (("utf-16", "UTF-16"), ("utf-16-le", "UTF-16LE"), ("utf-32", "UTF-32"),
                          ("utf-16-be", "UTF-16BE"), ("utf-32-le", "UTF-32LE"),
                          ("utf-32-be", "UTF-32BE"))),
    *((name, (text * 20).encode(code), f"iconv -f {shown} -t UTF-8 '@'")
      for name, text in (("a.txt", "日本語の文章\n"), ("a", "Это предложение на русском.\n"),
                         ("a.md", "이것은 한국어 문장입니다.\r\n"), ("a.x", "นี่คือประโยคภาษาไทย \n"),
                         ("b.txt", "यह हिंदी में एक वाक्य है।\n"), ("c.txt", "中华人民共和国的城市\n"))
      for code, shown in (("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"),
                          ("utf-32-le", "UTF-32LE"), ("utf-32-be", "UTF-32BE"))),
    ("a.txt.gz", gzip.compress("日本語の文章\n".encode("utf-16-le") * 9, mtime=0), "| iconv -f UT"),
    ("a.jsonl.gz", gzip.compress(RECORDS.encode("utf-16"), mtime=0),
     "gzip -dc '@' | iconv -f UTF-16 -t UTF-8 > '"),
    ("a.txt.bz2", bz2.compress(("Some text\n" * 9).encode("utf-16-be")),
     "bzip2 -dc '@' | iconv -f UTF-16BE -t UTF-8 > '"),
    *((name, content, "mkdir '@.d' && tar -xf '@' -C '@.d'")
      for name in ("y", "a.txt", "a.jsonl", "a.csv", "part-00000")
      for content in (TAR, PAX, OLD_TAR)),
    ("a.txt.gz", gzip.compress(OLD_TAR, mtime=0), "mkdir '@.d' && tar -xf '@' -C '@.d'"),
    *((name, gzip.compress(TAR, mtime=0), "mkdir '@.d' && tar -xf '@' -C '@.d'")
      for name in ("z.gz", "corpus.txt.gz", "a.json.gz", "z", "a.tar.gz")),
    ("a.txt.xz", lzma.compress(PAX), "mkdir '@.d' && tar -xf '@' -C '@.d'"),
    *((name, ZIP, "unzip '@' -d '@.d'") for name in ("zz.jsonl", "zz.json", "zz.csv", "zz.txt")),
    *((name, gzip.compress(ZIP, mtime=0), "gzip -dc '@' > '@.zip', and then unpack it and give the"
       " directory: unzip '@.zip' -d '@.zip.d'") for name in ("zz.gz", "zz.jsonl.gz", "zz")),
    ("a.xz", lzma.compress(b"7z\xbc\xaf\x27\x1c\0"), "xz -dc '@' > '@.7z', and then unpack it and"),
    ("a.csv.gz", gzip.compress(b"a,b\n", mtime=0), "read_csv('@.csv'"),
    ("a.TSV", b"a\tb\n", r"delimiter='\t'"),
    *((f"a.{x}", b"x", f"{x} files cannot be read, only text, jsonl, json, parquet and arrow; it is"
       " an output of tokenmill; give the text it was made from") for x in ("bin", "docs")),
    ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "parquet files are compressed inside, and are"
     " not read while they are decompressed; decompress it: gzip -d '@'"),
    ("a.txt.gz", gzip.compress(COMPRESSIONS["zst"](b"a"), mtime=0), "gzip data with Zstandard data"
     " inside; decompress it once: gzip -d '@'"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_command(
    tmp_path: Path, name: str, content: bytes, command: str
) -> None:
    """In a directory, too: it was skipped as binary, or read as text."""
    (tmp_path / "other.txt").write_text("text")
    (tmp_path / name).write_bytes(content)
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(CorpusError) as raised:
            documents_of(path)
        assert command.replace("@", str(tmp_path / name)) in str(raised.value)
        assert ("pointer to a file that git did not download" in str(raised.value)) == (
            command.startswith("git")
        )
        assert name in str(raised.value)


@pytest.mark.parametrize(("content", "said"), [
    (TAR, "-: tar files cannot be read, .*: mkdir 'standard-input.d' && tar -xf 'standard-input'"),
    (gzip.compress(ZIP, mtime=0),
     "-: zip files .*: gzip -dc 'standard-input' > 'standard-input.zip', and"),
    ("text\n".encode("utf-16") * 9, "-: is UTF-16, .*: iconv -f UTF-16 -t UTF-8 'standard-input'"),
])  # fmt: skip
def test_what_cannot_be_read_of_standard_input(
    tmp_path: Path, content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))
    saved = r".* \(of standard input, saved as standard-input\)$"
    with pytest.raises(CorpusError, match=f"^{said}{saved}"):
        build(train="-", out=tmp_path / "out", val_fraction=0, vocab_size=257)


def test_a_few_zero_bytes_are_text_if_their_file_is_given(tmp_path: Path) -> None:
    for n in range(1, 4):
        (tmp_path / "zeros").write_bytes(b"\0" * n)
        assert documents_of(tmp_path / "zeros") == ["\0" * n]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
def test_what_is_no_corpus_may_be_utf_16(tmp_path: Path, encoding: str) -> None:
    """PowerShell writes it where the output of a command goes to a file."""

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_bytes(f"\ufeff{text}".encode(encoding))
        return str(tmp_path / name)

    path = tmp_path / "naïve.txt"
    path.write_text("one<|endoftext|>two")
    assert documents_of(Path("@" + write("list", f"{path}\r\n"))) == ["one", "two"]
    (tmp_path / "other").write_text(f"{path}\n", "utf-32")
    with pytest.raises(CorpusError, match="the list of paths is not UTF-8 at byte 0; correct it"):
        documents_of(Path(f"@{tmp_path / 'other'}"))
    tokenizer = train_bpe(["some text"], 258, special_tokens=["<|endoftext|>"])
    loaded = load_tokenizer(write("t.json", tokenizer.to_json()))
    assert loaded.fingerprint == tokenizer.fingerprint
    settings = f"datasets: [{{data_files: '{path}', save_path: '{tmp_path / 'out'}'}}]\r\n"
    settings += "tokenizer: {vocab_size: 257}\r\n"
    assert run(["build", write("c.yaml", settings), "--quiet"]) == 0
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\r\n{% endfor %}"
    transform = ChatTemplateTransform(tokenizer, chat_template=write("x.jinja", template))
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    ids = transform(record)["input_ids"].tolist()
    assert tokenizer.decode(ids) == "user: a\nassistant: b\n"


def test_binary_files_with_many_zeros_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("text")
    (tmp_path / "ids").write_bytes(b"".join(i.to_bytes(2, "little") for i in range(300)))
    (tmp_path / "x.txt").write_text("Some text\n", "utf-16")
    skipped: list[Path | str] = []
    find_sources([tmp_path], ReadOptions(on_invalid_utf8="skip"), skipped)
    assert [Path(x).name for x in skipped] == ["ids", "x.txt"]


LATIN = "Voilà une phrase où l'été est passé, et les élèves sont rentrés.\n".encode("latin-1") * 9


@pytest.mark.parametrize(("name", "content", "warned"), [
    ("nul.txt", b"one\0two\n", True),
    ("nul.md", b"one\0two\n", True),
    ("nul.TXT", LATIN + b"\0", True),  # in UTF-16 it would have characters that do not exist
    ("cjk.txt", "文\n".encode("utf-16-le"), True),  # too little to be sure
    ("ids", np.arange(20_000, 40_000, 7, np.uint16).tobytes() + b"\1\0", False),
    ("nul.html", np.arange(0, 40_000, 7, np.uint16).tobytes(), True),
    ("nul.dat", b"one\0two\n", False),
    # Where a tar has its checksum.
    *(("nul.txt", b"x" * 148 + each + b"\0 \n", True) for each in (b"      ", b" 1 2 3")),
])  # fmt: skip
def test_files_named_as_text_that_are_left_out_as_binary(
    tmp_path: Path, name: str, content: bytes, warned: bool, capsys: Any
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "other.txt").write_text("text")
    (tmp_path / "text" / name).write_bytes(content)
    out = tmp_path / "out"
    assert run(["build", "--train", str(tmp_path / "text"), "--val-fraction", "0", "--vocab-size",
                "257", "--quiet", "--out", str(out)]) == 0  # fmt: skip
    expected = f"{tmp_path / 'text' / name}: left out as binary, for a zero byte, though named as"
    assert capsys.readouterr().err.count(expected) == warned
    assert json.loads((out / "stats.json").read_text())["binary_files"] == 1


def test_many_files_named_as_text_that_are_left_out(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "a").write_text("text")
    for number in range(1200):
        (tmp_path / f"{number:04}.txt").write_bytes(b"one\0two")
    find_sources([tmp_path], ReadOptions())
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path / '0000.txt'}, {tmp_path / '0001.txt'}, ")
    assert f"{tmp_path / '0002.txt'} and 1,197 more: left out as binary, for a zero byte" in said


@pytest.mark.parametrize("name", [
    "part-00000", "x.gz", "part-00000.gz", "train.jsonl-00000-of-00002", "dump.0001", "dump",
])  # fmt: skip
def test_records_without_a_suffix(tmp_path: Path, name: str) -> None:
    path, expected = tmp_path / name, ["one", "naïve two"]
    for content in (RECORDS, "\ufeff" + RECORDS, RECORDS.replace("\n", "\r\n"), f"[\n {RECORDS}]"):
        array = content.startswith("[")
        content = content.replace("}\n{", "},\n{") if array else content
        if not (array and "jsonl" in name):
            data = content.encode()
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
            assert documents_of(path) == expected
    path.write_text('{"text": "' + "a long one " * 2000 + '"}\n')
    if not name.endswith(".gz"):
        assert len(documents_of(path)[0]) == 22_000
    for text in ("{} is empty\n", "{braces}\n", "[link]: x\n", '{"a": 1, and more\n', '{"a"\n:1}'):
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        if "jsonl" not in name:
            assert documents_of(path) == [text]


@pytest.mark.parametrize(("name", "warned"), [("a.txt", True), ("a.log", True), ("a.jsonl", False)])
def test_records_that_are_read_as_text(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, name: str, warned: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t").mkdir()
    Path("t", name).write_text(RECORDS)
    Path("t", "package.map").write_text('{"version": 3}')
    command = ["build", "--train", f"t/{name}", "--val-fraction", "0", "--vocab-size", "259"]
    assert run([*command, "--quiet"]) == 0
    shown = f"{name}: begins as jsonl does, and is read as text; choose --format jsonl, or"
    assert (shown in capsys.readouterr().err) == warned
    registry.warn_once.cache_clear()
    assert run([*command, "--format", "text", "--out", "b"]) == 0
    assert "begins as" not in capsys.readouterr().err
    find_sources(["t/package.map"], ReadOptions())
    assert "begins as" not in capsys.readouterr().err


@pytest.mark.parametrize("how", [
    "inside", "pattern", "twice", "hard link", "hard links", "link to a hard link",
])  # fmt: skip
def test_files_that_are_read_twice(tmp_path: Path, capsys: Any, how: str) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("one<|endoftext|>two")
    (text / "b.txt").write_text("three")
    a, linked, out = str(text / "a.txt"), str(tmp_path / "linked"), str(tmp_path / "out")
    os.link(a, linked)
    os.symlink(linked, f"{linked}.txt")
    given = {"inside": ["--train", str(text), "--val", a],
             "pattern": ["--train", str(text / "*.txt"), "--val", a],
             "twice": ["--train", str(text), a, "--val-fraction", "0"],
             "hard link": ["--train", str(text), "--val", linked],
             "hard links": ["--train", a, linked, "--val-fraction", "0"],
             "link to a hard link": ["--train", a, "--val", f"{linked}.txt"]}[how]
    assert run(["build", *given, "--out", out, "--vocab-size", "259", "--quiet"]) == 0
    names = f"{a}, {linked}" if "link" in how else a
    expected = f"{names}: read more than once, so in both train and val, or repeated; give each"
    assert expected in capsys.readouterr().err
    assert run(["build", "--train", a, "--val", str(text / "b.txt"), "--out", f"{out}2",
                "--vocab-size", "259"]) == 0  # fmt: skip
    assert "more than once" not in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
def test_lines_that_end_as_on_windows(tmp_path: Path, packed: bool) -> None:
    texts = ["one\r\nline", "two", "three\r\n"]
    data = "\r\n\r\n".join(texts).encode() * 1000
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(data) if packed else data)
    for unit_size in (50, 10**6):
        found = documents_of(path, separator=b"\n\n", unit_size=unit_size, whole_documents=True)
        assert "".join(found) == data.decode().replace("\r\n\r\n", "")
        assert found[:2] == texts[:2]
        found = documents_of(path, separator=b"\n", unit_size=unit_size, whole_documents=True)
        assert found[:4] == ["one", "line", "two", "three"]
    mixed = "one\r\n\r\ntwo\n\nthree"
    (tmp_path / "b.txt").write_bytes(mixed.encode())
    assert documents_of(tmp_path / "b.txt", separator=b"\n\n") == ["one\r\n\r\ntwo", "three"]
    if not packed:
        build(train=path, separator="blank-line", val_fraction=0, out=tmp_path / "out",
              vocab_size=270)
        assert open_tokens(tmp_path / "out" / "train.bin").n_documents > 1900


@pytest.mark.parametrize("separator", [
    r"\n", r"\n\n", r"\r\n", r"\t", r"\n---\n", r"\r\n***\r\n", r"\nEND", r"\0", r"\036", r"\x1e",
    r"\u001E", r"\f", r"--\v",
])  # fmt: skip
def test_a_separator_that_is_spelled_out(tmp_path: Path, separator: str, capsys: Any) -> None:
    (tmp_path / "a").write_text("one\ntwo")
    assert run(["build", "--train", str(tmp_path / "a"), "--separator", separator]) == 2
    said = capsys.readouterr().err
    assert f"separator {separator} has a backslash and " in said
    in_bash = f"in bash $'{separator}', " * (separator != r"\0")  # no argument has a zero byte
    assert f"itself ({in_bash}in YAML \"{separator}\")" in said
    with pytest.raises(SettingsError, match="not the character that this stands for"):
        build(train=tmp_path / "a", separator=separator)


@pytest.mark.parametrize("separator", [r"\newpage", r"\textbf{*}", "\\", "\0", r"C:\data", r"\xml"])
def test_a_separator_with_a_backslash_that_is_meant(tmp_path: Path, separator: str) -> None:
    (tmp_path / "a").write_text(f"one{separator}two")
    build(train=tmp_path / "a", separator=separator, val_fraction=0, out=tmp_path / "out",
          vocab_size=257)  # fmt: skip
    assert open_tokens(tmp_path / "out" / "train.bin").n_documents == 2


@pytest.mark.parametrize(
    ("number", "name"), [("1e400", "a.jsonl"), ("-1E+999", "a.jsonl"), ("9e999", "a.json")]
)
def test_numbers_that_are_too_large(tmp_path: Path, number: str, name: str, capsys: Any) -> None:
    record = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    text = json.dumps(record) + "\n" + json.dumps(record)[:-1] + f', "score": {number}}}\n'
    if name == "a.json":
        text = f"[{text.strip()}]".replace("\n", ",\n")
    (tmp_path / name).write_text(text)
    tokenizer = tmp_path / "t.json"
    assert run(["train", __file__, "--out", str(tmp_path / "t.json"), "--vocab-size", "270"]) == 0
    command = ["encode", str(tmp_path / name), "--tokenizer", str(tokenizer), "--out",
               str(tmp_path / "x.bin"), "--chat-template"]
    (tmp_path / "template").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    assert run([*command, str(tmp_path / "template")]) == 1
    said = capsys.readouterr().err
    end = text.index("\n")
    place = f"line 2 (byte {end + 1:,}): " if name == "a.jsonl" else f"element 2 (byte {end:,}): "
    assert place in said
    assert "Number out of range" in said


def test_encrypted_parquet(tmp_path: Path) -> None:
    """The keys of each file are its own, so it is written here."""
    import base64

    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    pq = pytest.importorskip("pyarrow.parquet")
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

    # One footer and the column with text, and another column alone.
    for number, (plain, column) in enumerate([(False, "text"), (True, "text"), (True, "id")]):
        how = encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"c": [column]}, plaintext_footer=plain
        )
        factory = encryption.CryptoFactory(lambda _: Keys())
        connection = encryption.KmsConnectionConfig()
        keys = factory.file_encryption_properties(connection, how)
        table = pa.table({"text": ["one", "two"], "id": [1, 2]})
        path = tmp_path / f"{number}"  # recognised without a suffix
        with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
            writer.write_table(table)
        if column == "id":
            assert documents_of(path) == ["one", "two"]
            continue
        pq.write_table(table, tmp_path / "plain.parquet")
        for place in (path, tmp_path):  # among files that are not encrypted
            with pytest.raises(CorpusError, match=r"/\d: .*is encrypted, and no keys are taken h"):
                documents_of(place)
