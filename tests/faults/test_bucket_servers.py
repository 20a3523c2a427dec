"""Datasets in the buckets of a real protocol: an S3 server that fails, and processes killed."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import gcs_server
import object_server
import processes
import pytest
import torture
from run_cases import DOCUMENTS, END
from tcp_proxy import proxy

from preprocess import JsonShardedSource, build, open_tokens, pipeline, write_rows
from preprocess.cli import run
from preprocess.storage import lock as locks
from preprocess.storage import remote
from preprocess.storage.remote import open_objects

LITTLE = {"shard_tokens": 1000, "workers": 1, "unit_size": 700, "val_fraction": 0.3}


@pytest.fixture
def bucket(often: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(remote, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(remote, "_LONGEST_PAUSE", 0.01)
    with object_server.s3_bucket() as url:
        yield url


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "text").write_text(END.join(DOCUMENTS))
    pipeline.train(paths=tmp_path / "text", out=tmp_path / "given.json", vocab_size=290)
    return {"train": tmp_path / "text", "tokenizer": tmp_path / "given.json", **LITTLE}


def contents(url: str) -> dict[str, bytes]:
    """The outputs in a bucket, without the statistics."""
    found = open_objects(url)
    keys = [key for key, _ in found.keys("data/")]
    told = {key.removeprefix("data/"): found.get(key) or b"" for key in keys}
    return {name: content for name, content in told.items() if not name.endswith("stats.json")}


def every(n: int, *kinds: str) -> Callable[[int], str]:
    """A plan that does something to each n-th request, by turns."""
    return lambda number: "" if number % n else kinds[number // n % len(kinds)]


@pytest.mark.parametrize(
    "plan",
    [
        every(5, "busy"), every(5, "reset", "half"), every(4, "lost"), every(9, "slow"),
        lambda number: "reset" if 20 < number <= 60 else "",  # away, and back again
    ],
    ids=["fails", "resets", "loses answers", "slow", "goes away"],
)
def test_a_server_with_faults_gets_the_same_bytes(
    plan: Callable[[int], str], bucket: str, options: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(**options, out=tmp_path / "local")
    with proxy(os.environ["AWS_ENDPOINT_URL"], plan) as between:
        direct = os.environ["AWS_ENDPOINT_URL"]
        monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
        open_objects.cache_clear()
        build(**options, out=f"{bucket}/data")
        assert "up to date" in build(**options, out=f"{bucket}/data").lines[0]
        monkeypatch.setenv("AWS_ENDPOINT_URL", direct)
        open_objects.cache_clear()
    assert len(between.did) > 3
    assert contents(bucket) == torture.contents(tmp_path / "local")


@pytest.mark.parametrize("name", ["build", "rows"])
def test_a_killed_process_is_resumed_on_another_machine(
    bucket: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    run: Callable[..., object] = build
    if name == "rows":
        build(**options | {"val_fraction": 0}, out=tmp_path / "data")
        run, options = write_rows, {"path": tmp_path / "data" / "train.json", "format": "jsonl",
                                    "num_shards": 5, "workers": 2}
    run(**options, out=tmp_path / "local")
    path = [str(options["path"])] if name == "rows" else []
    command = [
        "-m", "preprocess", name, *path, "--out", f"{bucket}/data",
        *(f"--{x.replace('_', '-')}={y}" for x, y in options.items() if x != "path"),
    ]
    running: list[Popen[str]] = []

    def kill_at(n: int) -> Callable[[int], str]:
        def plan(number: int) -> str:
            if number == n:
                running[-1].kill()
            return ""

        return plan

    for n in (8, 14, 20):
        with proxy(os.environ["AWS_ENDPOINT_URL"], kill_at(n)) as between:
            env = processes.environment(AWS_ENDPOINT_URL=between.url, TMPDIR=str(tmp_path))
            running.append(processes.start(*command, env=env, stderr=DEVNULL))
            assert running[-1].wait() == -signal.SIGKILL
    assert not any("partial" not in key for key in contents(bucket) if key != ".tokenmill.lock")
    waited = list[float]()
    monkeypatch.setattr(locks, "pause", waited.append)
    monkeypatch.setattr(locks, "_machine", lambda: {"host": "far", "space": "there"})
    run(**options, out=f"{bucket}/data")
    assert sum(waited) == locks.EXPIRES_AFTER
    expected = torture.contents(tmp_path / "local")
    differ = {x for x, y in contents(bucket).items() if y != expected.pop(x)}
    assert not expected
    # These say where the dataset is.
    assert differ == ({"rows.json", "config.json"} if name == "rows" else set())


def test_credentials_are_nowhere(
    bucket: str, options: dict[str, Any], capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="preprocess")
    given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert run(["build", *given, "--out", f"{bucket}/data"]) == 0
    assert run(["build", *given, "--out", f"{bucket}/data"]) == 0
    assert run(["build", *given, "--out", f"{bucket}/data", "--shard-tokens", "500"]) == 1
    assert run(["build", *given, "--out", "s3://me:not-to-be-seen@b/data"]) == 1
    assert run(["build", *given, "--out", f"{bucket}/data", "--dry-run"]) == 0
    shown = "".join(capsys.readouterr()) + caplog.text
    assert f"output: train.bin, val.bin in {bucket}/data" in shown
    kept = b"".join(content for content in contents(bucket).values())
    stats = open_objects(bucket).get("data/stats.json") or b""
    assert f'"out": "{bucket}/data"' in stats.decode()
    for secret in (object_server.SECRET, "not-to-be-seen"):
        assert secret not in shown
        assert secret.encode() not in kept + stats


@pytest.mark.parametrize("scheme", ["", "http://"], ids=["host", "URL"])
def test_gs_is_an_emulator_over_http(
    scheme: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="buckets are read with obstore: tokenmill[remote]")
    build(**options, out=tmp_path / "local")
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", str(tmp_path / "cache"))
    with gcs_server.gcs() as (host, objects):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"{scheme}{host}")
        open_objects.cache_clear()
        objects["texts/deep/text"] = options["train"].read_bytes(), 1
        given = options | {"train": "gs://texts/deep/*", "out": "gs://made/data"}
        build(**given)
        assert "up to date" in build(**given).lines[0]
        assert open_tokens("gs://made/data/train.json").tokens[0] >= 0
        assert contents("gs://made") == torture.contents(tmp_path / "local")
        for _ in range(2):
            rows = write_rows("gs://made/data", out="gs://made/rows", format="jsonl", num_shards=3)
        source = JsonShardedSource("gs://made/rows/train/*.jsonl")
        assert (len(source.shard_names), len(source)) == (3, rows[0].manifest.rows)
        assert not rows[0].is_new
        store = open_objects("gs://made")
        first = store.put("lock", b"me", "")
        second = store.put("lock", b"me again", first)
        assert None not in (first, second)
        assert [store.put(key, b"you", first) for key in ("lock", "none")] == [None, None]
        assert store.get("lock") == b"me again"
        objects["me/box/a"] = b"of Azure", 1
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://{host}/me")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
        monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
        assert open_objects("az://box").get("a") == b"of Azure"
        open_objects.cache_clear()
