"""Text at URLs: the same bytes as from files, also after kills, changes and broken answers."""

from __future__ import annotations

import glob
import logging
import os
import pickle
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import format_files
import object_server
import pytest
import torture
from run_cases import cut_off
from source_cases import names
from tcp_proxy import proxy
from web_server import Page, web_server

from bpe.errors import ChangedError, CorpusError, UnavailableError
from preprocess import TokenFileError, build
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.documents.batch import ReadOptions
from preprocess.report.progress import Progress
from preprocess.sources import find_sources
from preprocess.sources import remote as sources_remote
from preprocess.storage import OutputError, open_files, remote
from preprocess.storage.remote import RemoteError, open_objects, split_url

OPTIONS: dict[str, Any] = {"vocab_size": 300, "unit_size": 700, "val_fraction": 0.1}


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of a directory in memory, which fsspec reads."""
    fsspec = pytest.importorskip("fsspec", reason="other URLs are read with fsspec: remote")
    yield f"memory://sources-{os.getpid()}"
    fsspec.filesystem("memory").store.clear()


def put(url: str, content: bytes | str) -> None:
    root, key = split_url(url)
    data = content if isinstance(content, bytes) else content.encode()
    if url.startswith("memory:"):
        import fsspec

        fsspec.filesystem("memory").pipe(f"/{url.partition('://')[2]}", data)
    else:
        open_objects(root).put(key, data)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was read, as another process does."""
    open_objects.cache_clear()
    monkeypatch.setattr(sources_remote, "_kept", sources_remote._Kept())


def upload(directory: Path, url: str) -> None:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            put(f"{url}/{path.relative_to(directory).as_posix()}", path.read_bytes())


def read_all(url: str) -> None:
    for source in find_sources([url], ReadOptions()):
        for unit in source.units():
            unit.read()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every format and compression."""
    directory = tmp_path_factory.mktemp("formats")
    suffixes = ["txt", "jsonl", "json", "txt.gz", "jsonl.zst", "json.xz"]
    if find_spec("pyarrow"):
        suffixes += format_files.ARROW
    for suffix in suffixes:
        format_files.write(directory / f"corpus.{suffix}", format_files.DOCUMENTS[:120])
    return directory


# The same as from files.


def test_every_format_gives_the_same_bytes(bucket: str, corpus: Path, tmp_path: Path) -> None:
    upload(corpus, f"{bucket}/corpus")
    build(train=corpus, out=tmp_path / "local", workers=2, **OPTIONS)
    for workers, url in ((1, f"{bucket}/corpus/"), (2, f"{bucket}/c*")):
        out = tmp_path / str(workers)
        build(train=url, out=out, workers=workers, **OPTIONS)
        assert torture.contents(out) == torture.contents(tmp_path / "local")
    assert all(finding.sound for finding in verify(out, deep=True))


def test_units_of_every_format_are_resumed_and_pickled(
    memory: str, corpus: Path, tmp_path: Path
) -> None:
    upload(corpus, memory)
    reading = ReadOptions(unit_size=700)
    local, found = find_sources([corpus], reading), find_sources([memory], reading)
    assert [source.name for source in found] == [source.name for source in local]
    for here, there in zip(local, found, strict=True):
        units, expected = list(there.units()), list(here.units())
        assert [each.after for each in units] == [each.after for each in expected]
        content = b"".join(x.tobytes() for _, x in here.content())
        assert b"".join(x.tobytes() for _, x in there.content()) == content
        assert b"".join(unit.content().tobytes() for unit in units) == content
        for number in range(0, len(units) - 1, 5):
            rest = next(iter(there.units(units[number].after)))
            # As another process reads it.
            read = pickle.loads(pickle.dumps(rest)).read()
            assert read.buffer.tobytes() == expected[number + 1].read().buffer.tobytes()
            rest.check_unchanged()


@pytest.mark.parametrize("suffix", ["jsonl.zst", "txt", "parquet"])
def test_a_build_is_cut_off_and_resumed(
    bucket: str, corpus: Path, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch,
    suffix: str,
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    url = f"{bucket}/corpus.{suffix}"
    put(url, (corpus / f"corpus.{suffix}").read_bytes())
    options: dict[str, Any] = OPTIONS | {"train": url, "workers": 2}
    build(**options, out=tmp_path / "whole")
    for stage in ("counting", "encoding train and val"):
        cut_off(options | {"out": tmp_path / "resumed"}, stage)
        forget(monkeypatch)
    # The same object in a list, which may tell its time more exactly.
    options["train"], progress = f"{bucket}/c*.{suffix}", Progress()
    build(**options, out=tmp_path / "resumed", progress=progress)
    assert [each.done_before > 0 for each in progress.stages] == [True, True, True]
    assert torture.contents(tmp_path / "resumed") == torture.contents(tmp_path / "whole")
    options["train"] = url
    assert "up to date" in build(**options, out=tmp_path / "resumed").lines[0]


# Changes.


def test_a_run_is_not_resumed_with_another_object(bucket: str, tmp_path: Path) -> None:
    text = format_files.text(format_files.DOCUMENTS)
    put(f"{bucket}/x.txt", text)
    options: dict[str, Any] = OPTIONS | {"train": f"{bucket}/x.txt", "out": tmp_path / "out"}
    cut_off(options, "counting")
    put(f"{bucket}/x.txt", text[:-1] + b"!")
    with pytest.raises(OutputError, match=r"x\.txt was written to or touched \(as many bytes, but"):
        build(**options)
    put(f"{bucket}/x.txt", text)
    assert build(**options).manifests["train"].sources[0]["name"] == "x.txt"


def test_an_object_that_changes_during_a_run(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    text = format_files.text(format_files.DOCUMENTS)
    put(f"{bucket}/x.txt", text)
    options: dict[str, Any] = OPTIONS | {"train": f"{bucket}/x.txt", "out": tmp_path / "out"}
    fetch, n = sources_remote.RemoteFile.fetch, 0

    def changed(self: Any, start: int, stop: int) -> Any:
        nonlocal n
        if (n := n + 1) == 4:
            put(f"{bucket}/x.txt", text[::-1])
        return fetch(self, start, stop)

    monkeypatch.setattr(sources_remote.RemoteFile, "fetch", changed)
    monkeypatch.setattr(sources_remote, "_SMALL_BYTES", 0)
    with pytest.raises(ChangedError, match=rf"{bucket}/x\.txt: was changed or removed"):
        build(**options, workers=1)
    assert not (tmp_path / "out" / "train.bin").exists()


def test_where_reads_have_no_condition_the_end_is_compared(memory: str) -> None:
    put(f"{memory}/x.txt", b"some text " * 1000)
    (source,) = find_sources([f"{memory}/x.txt"], ReadOptions(unit_size=3000))
    first, *units = source.units()
    first.read()
    first.check_unchanged()  # nothing is asked
    put(f"{memory}/x.txt", b"more text " * 1000)
    first.check_unchanged()
    units[-1].read()
    with pytest.raises(ChangedError, match=r"was changed, replaced or removed while it was being"):
        units[-1].check_unchanged()


# What a URL means.


def test_a_bucket_is_read_as_a_directory_is(memory: str, tmp_path: Path) -> None:
    for name in (
        "b.txt", "a.txt", "a-b/x.txt", "a/z.txt", "a/y/x.txt", "c.md", "[x].txt", ".hidden",
        "a/.git/x", "data/state.json", "data/dataset_info.json", "data/x.txt", "é/d.txt",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "logo.png").write_bytes(b"\x89PNG\0\0")
    upload(tmp_path, memory)
    for pattern in (
        "", "/*.txt", "/**/*.txt", "/**", "/a*", "/?.md", "/[ab].txt", "/a/**/x.txt", "/.hid*",
        "/**/*", "/[x].txt", "/d*",
    ):
        local = f"{glob.escape(str(tmp_path))}{pattern}"
        assert names([f"{memory}{pattern}"]) == names([local]), pattern
    binary: list[Path | str] = []
    find_sources([memory], ReadOptions(format="text"), binary)
    assert binary == [f"{memory}/logo.png"]


def test_lists_and_configurations(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("c/a.txt", "c/b.txt", "d.txt"):
        put(f"{bucket}/{name}", "some words of text")
    Path("list.txt").write_text(f"{bucket}/d.txt\n{bucket}/c/*.txt\n")
    put(f"{bucket}/list.txt", f"{bucket}/c\n")
    assert names(["@list.txt"]) == ["d.txt", "a.txt", "b.txt"]
    assert names([f"@{bucket}/list.txt"]) == ["a.txt", "b.txt"]
    with pytest.raises(CorpusError, match=rf"{bucket}/none: there is no such file; check the URL$"):
        names([f"@{bucket}/none"])
    Path("corpus.yaml").write_text(
        "tokenizer: {vocab_size: 260}\noutput_path: out\n"
        f"datasets: [{{name: x, data_files: ['{bucket}/c/', '@list.txt'], val_fraction: 0}}]\n"
    )
    assert run(["build", "corpus.yaml", "--dry-run"]) == 0
    assert not Path("out").exists()
    result = build("corpus.yaml").datasets["x"]
    assert [x["name"] for x in result.manifests["train"].sources] == [
        "a.txt", "b.txt", "d.txt", "a.txt", "b.txt",
    ]


@pytest.mark.parametrize(("name", "message"), [
    ("none.txt", r"{bucket}/none\.txt: there is no such object, and none below it; check"),
    ("none/", r"{bucket}/none/: there is no such object, and none below it"),
    ("*.md", r"{bucket}/\*\.md: no object matches this pattern; correct it"),
    (".h", r"{bucket}/\.h: no text files in this directory or below it \(names"),
    ("x.tar", r"x\.tar: tar files cannot be.*; download it, and unpack it.*tar -xf 'x.tar'"),
    ("x.csv", r"{bucket}/x\.csv: csv files cannot be read.*; download it, and convert it: "),
    ("bin", r"{bucket}/bin: no text files in this directory or below it \(.*, binary f"),
    ("x.jsonl.gz", r"{bucket}/x\.jsonl\.gz \(decompressed\).*is not JSON|gzip data is dam"),
])  # fmt: skip
def test_what_cannot_be_read(bucket: str, name: str, message: str) -> None:
    put(f"{bucket}/.h/.x", "hidden")
    for file in ("x.tar", "x.csv"):
        put(f"{bucket}/{file}", "a,b")
    put(f"{bucket}/bin/x", b"\0\1\2")
    put(f"{bucket}/x.jsonl.gz", b"\x1f\x8b damaged")
    with pytest.raises(CorpusError, match=message.replace("{bucket}", bucket)):
        read_all(f"{bucket}/{name}")


def test_a_bucket_that_does_not_exist(bucket: str) -> None:
    with pytest.raises(CorpusError, match=r"s3://nobody-has-it/x"):
        find_sources(["s3://nobody-has-it/x"], ReadOptions())
    with pytest.raises(CorpusError, match=r"^s3:///x: names no bucket or host"):
        find_sources(["s3:///x"], ReadOptions())
    with pytest.raises(RemoteError, match=r"^s3:///x: names no bucket or host"):
        open_files("s3:///")
    with pytest.raises(CorpusError, match=r"^ftp://127\.0\.0\.1:1: cannot be read: .*refused; the"):
        find_sources(["ftp://127.0.0.1:1/x"], ReadOptions())
    with pytest.raises(CorpusError, match="Protocol not known: what"):
        find_sources(["what://x/y"], ReadOptions())


# Web servers, and secrets.


def test_a_signature_is_shown_nowhere(tmp_path: Path, caplog: Any, capsys: Any) -> None:
    caplog.set_level(logging.DEBUG)
    text = format_files.text(format_files.DOCUMENTS)
    (tmp_path / "x.txt").write_bytes(text)
    build(train=tmp_path / "x.txt", out=tmp_path / "local", **OPTIONS)
    out = tmp_path / "out"
    pages: dict[str, Page] = {}
    with web_server(pages) as server:
        pages["/d/x.txt?key=secret"] = Page(text, knows_head=False)  # as a signed URL of S3
        pages["/d/x.txt?key=secret2"] = Page(text)
        options: dict[str, Any] = OPTIONS | {"train": f"{server}/d/x.txt?key=secret", "out": out}
        cut_off(options, "encoding train and val")
        log = ["--log-file", str(tmp_path / "log"), "--verbose"]
        given = ["--vocab-size", "300", "--unit-size", "700", "--val-fraction", "0.1"]
        train = ["--train", f"{server}/d/x.txt?key=secret2"]  # signed again
        assert run(["build", *train, "--out", str(out), *given, *log]) == 0
        assert run(["build", *train, "--out", str(out), *given, "--dry-run"]) == 0
        assert torture.contents(out) == torture.contents(tmp_path / "local")
        pages["/d/x.txt?key=secret"] = Page(text + b"!", '"2"')
        with pytest.raises(TokenFileError, match=r"x\.txt grew from") as changed:
            build(**options)
        with pytest.raises(CorpusError, match=r"/none: .* which has to name a file") as gone:
            find_sources([f"{server}/none?key=secret"], ReadOptions())
        pages["/no?key=secret"] = Page(b"", status=403)
        with pytest.raises(CorpusError, match=r"/no: the request failed: .*the credent") as refused:
            find_sources([f"{server}/no?key=secret"], ReadOptions())
    with pytest.raises(CorpusError, match="has a user or a password in it") as user:
        find_sources(["https://me:secret@host/x"], ReadOptions())
    for wrong, message in (
        ({"tokenizer": "https://me:secret@host/x?secret"}, "has a query, such as a signature"),
        ({"out": "https://me:secret@b/"}, "out: should be a path, or a URL of a bucket"),
    ):
        with pytest.raises((ValueError, RemoteError), match=message) as location:
            build(**OPTIONS | {"train": "x", **wrong})
        assert "secret" not in str(location.value)
    said = [str(each.value) for each in (changed, gone, refused, user)]
    said += [caplog.text, str(capsys.readouterr()), (tmp_path / "log").read_text()]
    said += [path.read_bytes().decode("latin-1") for path in out.rglob("*") if path.is_file()]
    assert "/d/x.txt" in (out / "stats.json").read_text()
    assert not [text for text in said if "secret" in text]
    assert not [text for text in said if object_server.SECRET in text]


@pytest.mark.parametrize("tag", ['W/"1"', ""])
def test_weak_tags_and_times(monkeypatch: pytest.MonkeyPatch, tag: str) -> None:
    pages: dict[str, Page] = {}
    with web_server(pages) as server:
        pages["/x.txt"] = Page(b"some text", tag)
        (source,) = find_sources([f"{server}/x.txt"], ReadOptions())
        (unit,) = source.units()
        assert unit.read().buffer.tobytes() == b"some text"
        assert source.stamp == ('version W/"1"' if tag else "modified 1795701600000000000")
        pages["/x.txt"] = Page(b"other text", '"2"')
        forget(monkeypatch)
        with pytest.raises(ChangedError, match=r"x\.txt: was changed or removed while"):
            unit.read()


def test_a_server_without_ranges_or_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: dict[str, Page] = {}
    with web_server(pages) as server:
        pages["/x.txt"] = Page(b"some text", has_ranges=False)
        with pytest.raises(CorpusError, match="the server sends whole files only, and ranges"):
            find_sources([f"{server}/x.txt"], ReadOptions())
        pages["/x.txt"] = Page(b"some text")
        (source,) = find_sources([f"{server}/x.txt"], ReadOptions())
    monkeypatch.setattr(sources_remote, "_SMALL_BYTES", 0)
    (unit,) = source.units()
    pages = {"/x.txt": Page(b"", status=403)}
    with web_server(pages) as server:
        unit.file._root = f"{server}/x.txt"  # type: ignore[attr-defined]
        with pytest.raises(UnavailableError, match=r"x\.txt: the request failed: "):
            unit.read()


# Servers that fail.


def test_connections_that_are_reset(
    bucket: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(corpus, f"{bucket}/corpus")
    build(train=corpus, out=tmp_path / "local", workers=2, **OPTIONS)
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    with proxy(os.environ["AWS_ENDPOINT_URL"], lambda n: "cut" if n % 2 else "") as between:
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        open_objects.cache_clear()
        build(train=f"{bucket}/corpus/", out=tmp_path / "out", workers=2, **OPTIONS)
    assert len(between.did) > 2
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "local")


def test_a_web_server_that_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sources_remote, "_SMALL_BYTES", 0)
    text = format_files.text(format_files.DOCUMENTS)
    (tmp_path / "x.txt").write_bytes(text)
    build(train=tmp_path / "x.txt", out=tmp_path / "local", **OPTIONS)
    with (
        web_server({"/x.txt": Page(text)}) as server,
        proxy(server, lambda n: "" if n % 3 else "busy") as between,
    ):
        build(train=f"{between.url}/x.txt", out=tmp_path / "out", workers=2, **OPTIONS)
    assert between.did.count("busy") > 2
    assert torture.contents(tmp_path / "out") == torture.contents(tmp_path / "local")
