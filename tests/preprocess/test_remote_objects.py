"""Objects at URLs: what is read, what is written under a condition, and what messages show."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import object_server
import pytest
from web_server import Page, web_server

from bpe import Tokenizer
from bpe.errors import ChangedError
from bpe.files.locations import shown_url
from preprocess.locations import url_name
from preprocess.storage import open_files, remote
from preprocess.storage.remote import RemoteError, open_objects, split_url
from preprocess.storage.tokenizers import load_tokenizer_at


def test_files_below_a_url_are_read_as_those_of_a_directory(bucket: str, tmp_path: Path) -> None:
    for name, content in {"a.json": b"{}", "a_more.json": b"[]", "b": b"0123456789"}.items():
        (tmp_path / name).write_bytes(content)
        open_objects(bucket).put(f"data/{name}", content)
    open_objects(bucket).put("data/deep/c", b"not in the directory itself")
    local, far = open_files(tmp_path), open_files(f"S3{bucket[2:]}/data/")
    assert far.names() == local.names() == ["a.json", "a_more.json", "b"]
    assert far.sizes() == local.sizes()
    for name in ("b", "missing"):
        assert far.size(name) == local.size(name)
        assert far.get(name) == local.get(name)
        for start, stop in ((2, 5), (8, 99), (20, 30), (5, 5)):
            assert far.read(name, start, stop) == local.read(name, start, stop)
    assert far.where("b") == f"{bucket}/data/b"
    copy = far.path("a.json")
    assert [x.name for x in sorted(copy.parent.glob("*.json"))] == ["a.json", "a_more.json"]
    assert copy.read_bytes() == b"{}"


def test_files_of_a_web_server_are_not_listed() -> None:
    with web_server({"/d/a%20b": Page(b"content")}) as url:
        files = open_files(f"{url}/d")
        assert (files.get("a b"), files.size("a b"), files.get("c")) == (b"content", 7, None)
        with pytest.raises(RemoteError, match="web servers have no lists of files; give the URL"):
            files.names()
    with pytest.raises(RemoteError, match="has a query, such as a signature"):
        open_files("https://host/d?signature=x")


def test_objects_are_read_by_range_and_version(bucket: str) -> None:
    objects = open_objects(bucket)
    assert (objects.info("a"), objects.get("a")) == (None, None)
    version = objects.put("a", b"0123456789") or ""
    found = objects.info("a")
    assert found is not None
    assert (found.n_bytes, found.version) == (10, version)
    assert bytes(objects.read("a", 2, 5, version)) == b"234"
    assert bytes(objects.read("a", 5, 5)) == b""
    objects.put("a", b"9876543210")
    for key, start, stop, wanted in (
        ("a", 0, 1, version), ("b", 0, 1, version), ("a", 8, 11, ""), ("a", 20, 30, "")
    ):
        with pytest.raises(ChangedError, match=f"{bucket}/{key}: was changed or removed while"):
            objects.read(key, start, stop, wanted)


def test_objects_are_written_under_a_condition_listed_copied_and_removed(bucket: str) -> None:
    objects = open_objects(bucket)
    first = objects.put("lock", b"me", "")
    assert first
    assert objects.put("lock", b"you", "") is None
    assert objects.put("lock", b"me again", first)
    assert objects.put("lock", b"you", first) is None
    assert objects.get("lock") == b"me again"
    for key in ("d/b", "d/a", "d/e/f", "dd"):
        objects.put(key, key.encode())
    assert [key for key, _ in objects.keys("d/")] == ["d/a", "d/b", "d/e/f"]
    assert [key for key, _ in objects.keys("")] == ["d/a", "d/b", "d/e/f", "dd", "lock"]
    objects.copy("d/a", "x")
    assert objects.get("x") == b"d/a"
    for _ in range(2):
        objects.remove("d/a")
    assert objects.get("d/a") is None


def test_a_server_that_refuses_is_named_without_credentials(bucket: str, monkeypatch: Any) -> None:
    with pytest.raises(RemoteError, match="s3://nobody/a: the request failed") as caught:
        open_objects("s3://nobody").put("a", b"")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(remote, "_FIRST_PATIENCE", timedelta(milliseconds=1))
    open_objects.cache_clear()
    with pytest.raises(RemoteError, match=r"credentials in the environment") as caught:
        open_objects("s3://never-reached").get("a")  # for one that answered is waited for minutes
    assert object_server.SECRET not in str(caught.value)


@pytest.mark.parametrize(("url", "message"), [
    ("s3://me:secret@b/k", "has a user or a password in it"),
    ("https://me:secret@host/k?signature=secret", "has a user or a password in it"),
    ("https://me:secret/cret@host/a", "has a user or a password in it"),
    ("https://me:secret#cret@host/a", "has a user or a password in it"),
    ("hf://me:secret@x/y", "has a user or a password in it"),
    ("s3:///k", "names no bucket or host; expected SCHEME://NAME/PATH"),
])  # fmt: skip
def test_urls_that_cannot_be_used(url: str, message: str) -> None:
    with pytest.raises(RemoteError, match=message) as caught:
        split_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("url", "root", "key", "shown", "name"), [
    ("s3://b/d/a.txt", "s3://b", "d/a.txt", "s3://b/d/a.txt", "a.txt"),
    ("gs://b/a b?c", "gs://b", "a b?c", "gs://b/a b?c", "a b?c"),
    ("https://h/a%20b?s=1#x", "https://h/a%20b?s=1#x", "", "https://h/a%20b", "a b"),
    ("https://h?s=1", "https://h?s=1", "", "https://h", "h"),
    ("hf://datasets/me/it@main/x.parquet", "hf://datasets", "me/it@main/x.parquet",
     "hf://datasets/me/it@main/x.parquet", "x.parquet"),
])  # fmt: skip
def test_urls_are_split_and_shown(url: str, root: str, key: str, shown: str, name: str) -> None:
    assert split_url(url) == (root, key)
    assert shown_url(url) == shown
    assert url_name(url) == name


def test_files_of_web_servers_are_read_by_ranges_also_if_answers_break_off() -> None:
    whole = Page(b"0123456789", has_ranges=False)
    pages = {"/a%20b.txt?key=secret": whole._replace(has_ranges=True, breaks_off=True)}
    with web_server(pages | {"/whole": whole}) as url:
        root, key = split_url(f"{url}/a%20b.txt?key=secret")
        objects = open_objects(root)
        found = objects.info(key)
        assert found is not None
        assert found.n_bytes == 10
        assert bytes(objects.read(key, 1, 9)) == b"12345678"
        assert open_objects(f"{url}/none").info("") is None
        with pytest.raises(RemoteError, match="the server sends whole files only"):
            open_objects(f"{url}/whole").read("", 2, 4)


def test_a_tokenizer_is_read_whole_and_so_from_any_web_server(tmp_path: Path) -> None:
    tokenizer = Tokenizer({i: bytes([i]) for i in range(256)}, [])
    tokenizer.save(tmp_path / "tokenizer.json")
    page = Page((tmp_path / "tokenizer.json").read_bytes(), has_ranges=False)
    with web_server({"/tokenizer.json": page, "/b/tokenizer.json": Page(b"", status=403)}) as url:
        assert load_tokenizer_at(url).fingerprint == tokenizer.fingerprint
        with pytest.raises(RemoteError, match=r"/b/tokenizer\.json: the request failed"):
            load_tokenizer_at(f"{url}/b/tokenizer.json")


def test_other_schemes_are_read_with_fsspec_and_not_written(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="other URLs are read with fsspec")
    system = fsspec.filesystem("memory")
    system.pipe({f"/tests-{os.getpid()}/d/a": b"0123456789"})
    root, key = split_url(f"memory://tests-{os.getpid()}/d/a")
    objects = open_objects(root)
    found = objects.info(key)
    assert found is not None
    assert found.n_bytes == 10
    assert bytes(objects.read(key, 2, 4)) == b"23"
    assert objects.get(key) == b"0123456789"
    assert objects.get("none") is None
    assert objects.info("none") is None
    assert [name for name, _ in objects.keys("d/")] == ["d/a"]
    with pytest.raises(ChangedError, match="was changed or removed while it was"):
        objects.read(key, 8, 12)
    with pytest.raises(RemoteError, match="Protocol not known: nothing; the schemes s3, gs"):
        open_objects("nothing://x")


def test_a_failure_of_fsspec_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of a file system that needs more than a URL."""
    fsspec = pytest.importorskip("fsspec", reason="other URLs are read with fsspec")

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("reset by https://me:secret@host/x?token=secret")

    def lack(scheme: str, **_: Any) -> None:
        raise TypeError(f"{scheme}: missing 1 required positional argument: 'host'")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "info", fail)
    with pytest.raises(RemoteError, match="check the URL, the credentials in") as caught:
        open_objects("memory://b").info("a")
    assert "reset by https://host/x" in str(caught.value)
    assert "secret" not in str(caught.value)
    monkeypatch.setattr(fsspec.core, "filesystem", lack)
    with pytest.raises(RemoteError, match="ftp://host: cannot be read: ftp: missing 1 required"):
        open_objects("ftp://host")


def test_libraries_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    open_objects.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(RemoteError, match=r"is read and written with obstore, which is not inst"):
        open_objects("s3://b")


def test_empty_objects_that_stand_for_directories_are_not_listed(bucket: str) -> None:
    import boto3

    for key in ("m/", "m/sub/"):
        boto3.client("s3").put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=b"")
    objects = open_objects(bucket)
    objects.put("m/sub/a", b"a")
    objects.put("m/empty", b"")
    assert [key for key, _ in objects.keys("m/")] == ["m/empty", "m/sub/a"]


def test_a_wrong_profile_is_named(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    open_objects.cache_clear()
    with pytest.raises(RemoteError, match="the credentials of AWS cannot be used: The config pro"):
        open_objects(bucket)


def test_an_object_that_is_larger_than_a_request(bucket: str, monkeypatch: Any) -> None:
    """A work file; it is put in parts, under the same conditions."""
    monkeypatch.setattr(remote, "LARGEST_OBJECT", 100)
    monkeypatch.setattr(remote, "_PART_BYTES", 5 << 20)
    objects, data = open_objects(bucket), os.urandom(12 << 20)
    first = objects.put("large", data, "")
    assert first
    assert [objects.put("large", data, version) for version in ("", '"x"')] == [None, None]
    assert objects.put("large", memoryview(data)[1:], first)
    assert objects.get("large") == data[1:]
