"""`where`, `show` and `describe` say what reading the dataset in plain Python says."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained
import written
from remote_cases import upload

from bpe import Tokenizer, TokenmillError, Vocabulary
from preprocess import Mixture, Sampler, TokenFile, open_tokens, search
from preprocess.find.steps import show
from preprocess.find.where import where

END = "<|endoftext|>"


def make(directory: Path, n: int = 40, seed: int = 0, **more: Any) -> TokenFile:
    """Documents of random lengths, of two sources, with masks."""
    tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), [END]))
    end, rng = tokenizer.special_tokens[END], np.random.default_rng(seed)
    ids = [[*rng.integers(97, 123, rng.integers(0, 50)).tolist(), end] for _ in range(n)]
    flat = [x for each in ids for x in each]
    sources = [{"name": name, "bytes": 1, "digest": "00" * 16, "documents": count, "tokens": 1}
               for name, count in (("a.txt", 7), ("b.txt", n - 7))]  # fmt: skip
    fields = {"end_of_text_id": end, "tokenizer_fingerprint": tokenizer.fingerprint}
    file = written.write(
        directory, flat, np.cumsum([*map(len, ids)]), vocab_size=tokenizer.vocab_size,
        fields=fields | {"sources": sources}, mask=rng.integers(0, 2, len(flat)), **more,
    )
    tokenizer.save(directory / "tokenizer.json")
    return file


def document_of(file: TokenFile, token: int) -> int:
    return int(np.searchsorted(file.document_ends, np.uint64(token), "right"))


def source(number: int) -> dict[str, Any]:
    return {"name": "a.txt" if number < 7 else "b.txt", "document": number - 7 * (number >= 7)}


@pytest.mark.parametrize("more", [{}, {"shard_tokens": 100, "split_documents": True}])
def test_where_a_token_is_from(tmp_path: Path, more: dict[str, Any]) -> None:
    file = make(tmp_path, **more)
    starts = [0, *file.document_ends.tolist()]
    for token in range(len(file)):
        (place,) = where(tmp_path, token=token)["places"]
        number = document_of(file, token)
        assert (place["token"], place["document"]) == (token, number)
        assert place["source"] == source(number)
        assert place["of_document"] == starts[number : number + 2]
        assert place["ids"] == [file[token]]
        assert place["mask"] == [int(file.loss_mask[token])]
        around = [place[name] for name in ("before", "match", "after")]
        span = file[max(starts[number], token - 16) : min(starts[number + 1], token + 17)]
        assert "".join(around) == file.decode(span)
        assert around[1] == file.decode([file[token]])
    for number in range(file.n_documents):
        (place,) = where(tmp_path / "train.bin", document=number)["places"]
        assert place["ids"] == file.doc(number).tolist()
        assert place["match"] == file.decode(file.doc(number))
        assert place["source"] == source(number)


def test_where_at_a_url(bucket: str, tmp_path: Path) -> None:
    file = make(tmp_path / "local", shard_tokens=100)
    url = f"{upload(tmp_path / 'local', bucket)}/train.json"
    here, there = (where(place, token=len(file) - 9) for place in (tmp_path / "local", url))
    assert here["places"] == there["places"]


SAMPLERS: list[dict[str, Any]] = [
    {"order": "epoch", "drop_last": False},
    {"order": "random", "stride": 3},
    {"windows": "documents", "order": "sequential", "drop_last": False},
    {"windows": "packed", "order": "epoch", "drop_last": False, "world_size": 2, "rank": 1},
]  # fmt: skip
FIELDS = ("inputs", "segment_ids", "loss_mask")


@pytest.mark.parametrize("options", SAMPLERS)
def test_rows_of_a_sampler_are_described(tmp_path: Path, options: dict[str, Any]) -> None:
    file = make(tmp_path)
    sampler = Sampler(file, 6, 23, seed=3, fields=FIELDS, **options)
    for step in range(3):
        rows, batch = sampler.describe(step), sampler.batch(step)
        assert json.loads(json.dumps(rows)) == rows
        check_rows(file, rows, batch)
        assert [each["row"] for each in rows] == [*range(len(batch["inputs"]))]


def check_rows(file: TokenFile, rows: list[dict[str, Any]], batch: dict[str, Any]) -> None:
    for each in rows:
        number = each["row"]
        assert each["ids"] == batch["inputs"][number].tolist()
        assert each["segments"] == batch["segment_ids"][number].tolist()
        assert each["mask"] == batch["loss_mask"][number].tolist()
        places = list[int]()
        for part in each["documents"]:
            span = slice(part["start"], part["stop"])
            n, token = span.stop - span.start, part["token"]
            assert n > 0
            assert each["ids"][span] == file[token : token + n].tolist()
            assert {document_of(file, i) for i in range(token, token + n)} == {part["document"]}
            assert len(set(each["segments"][span])) == 1
            assert part["source"] == source(part["document"])
            assert "".join(text for _, text in part["texts"]) == file.decode(each["ids"][span])
            assert all(a[0] != b[0] for a, b in pairwise(part["texts"]))
            assert {mask for mask, _ in part["texts"]} == set(each["mask"][span])
            places += range(span.start, span.stop)
        assert places == [i for i, segment in enumerate(each["segments"]) if segment]


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_a_mixture_are_described(tmp_path: Path, rank: int) -> None:
    files = {name: make(tmp_path / name, seed=i) for i, name in enumerate(("few", "many"))}
    options: dict[str, Any] = {"order": "epoch", "fields": FIELDS, "world_size": 2, "rank": rank}
    mixture = Mixture(
        {name: Sampler(file, 8, 10, **options) for name, file in files.items()},
        {"few": 1, "many": 3},
    )
    for step in range(4):
        rows, batch = mixture.describe(step), mixture.batch(step)
        assert [each["row"] for each in rows] == [*range(len(batch["inputs"]))]
        for each in rows:
            check_rows(files[each["dataset"]], [each], batch)
        before, after = mixture.counts(step), mixture.counts(step + 1)
        if not rank:
            n = sum(each["dataset"] == "few" for each in rows)
            assert 0 <= n <= after["few"] - before["few"]


def test_an_array_has_no_documents_to_describe() -> None:
    with pytest.raises(TokenmillError, match="describe needs a dataset with documents"):
        Sampler(np.arange(99), 2, 4).describe(0)


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "preprocess", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True)


def test_the_commands_print_lines_or_json(tmp_path: Path) -> None:
    file = make(tmp_path)
    config = tmp_path / "sampler.json"
    config.write_text('{"global_batch_size": 4, "context_length": 30, "order": "epoch", "seed": 1}')
    sampler = Sampler(file, 4, 30, order="epoch", seed=1)
    expected = sampler.describe(2)
    done = command("show", tmp_path, "--config", config, "--step", 2, "--rows", 9, "--json")
    assert json.loads(done.stdout) == {"step": 2, "n_rows": 4, "rows": expected}
    lines = command("show", tmp_path, "--config", config, "--step", 2, "--row", 3).stdout
    first = expected[3]["documents"][0]
    assert lines.splitlines()[0] == "row 3"
    assert f"  0 to {first['stop']}: token {first['token']:,} on of document" in lines
    for mask, text in first["texts"]:
        assert f"    {'+' if mask else '-'} {text!r}" in lines
    found = json.loads(command(
        "where", tmp_path, "--config", config, "--step", 2, "--row", 1, "--json"
    ).stdout)  # fmt: skip
    assert found == {"row": 1, "step": 2, "places": expected[1]["documents"]}
    lines = command("where", tmp_path, "--token", 5).stdout.splitlines()
    assert lines[0] == "token 5 of document 0, document 0 of a.txt"
    assert lines[1] == f"  token 5 of {file.document_ends[0]} of the document"
    assert lines[2] == f"  {file.loss_mask[5]} of 1 shown tokens are trained on"
    assert f"[{file.decode([file[5]])!r}]" in lines[3]


def test_a_mixture_in_a_configuration(tmp_path: Path) -> None:
    files = {name: make(tmp_path / name, seed=i) for i, name in enumerate(("few", "many"))}
    config = tmp_path / "mixture.json"
    config.write_text(json.dumps({
        "global_batch_size": 8, "context_length": 10, "order": "epoch", "seed": 5,
        "weights": [[0, {"few": 1, "many": 3}], [2, {"few": 1, "many": 1}]], "unit": "windows",
        "samplers": {name: {"dataset": str(tmp_path / name), "seed": 2} for name in files},
    }))  # fmt: skip
    mixture = Mixture(
        {name: Sampler(file, 8, 10, order="epoch", seed=2) for name, file in files.items()},
        [(0, {"few": 1, "many": 3}), (2, {"few": 1, "many": 1})], unit="windows", seed=5,
    )  # fmt: skip
    assert show(config=config, step=3, rows=8)["rows"] == mixture.describe(3)
    lines = command("show", "--config", config, "--step", 3, "--rows", 8).stdout
    assert "row 0 of " in lines


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colours_are_for_terminals(tmp_path: Path, no_color: str) -> None:
    make(tmp_path)
    (tmp_path / "s.json").write_text('{"global_batch_size": 2, "context_length": 9}')
    line = [sys.executable, "-m", "preprocess", "show", str(tmp_path), "--config"]
    ours, theirs = pty.openpty()
    subprocess.run(
        [*line, str(tmp_path / "s.json")], stdout=theirs, check=True,
        env=os.environ | {"NO_COLOR": no_color},
    )
    os.close(theirs)
    printed = os.read(ours, 1 << 16)
    os.close(ours)
    assert (b"\x1b[1mrow 0" in printed) == (not no_color)
    assert (b"\x1b" in printed) == (not no_color)


def test_wrong_use_is_answered_with_a_line(tmp_path: Path) -> None:
    file = make(tmp_path)
    config = tmp_path / "sampler.json"
    config.write_text('{"global_batch_size": 4, "context_length": 30}')
    for name, text in (("bad", "{"), ("list", "[]"), ("odd", '{"global_batch": 4}'),
                       ("mixed", '{"samplers": {"a": 1}}')):  # fmt: skip
        (tmp_path / f"{name}.json").write_text(text)
    for arguments, expected in [
        (["where", tmp_path], "there is no place to look up; give a dataset and a token"),
        (["where", tmp_path, "--token", len(file)], f"there is no token {len(file):,}; its"),
        (["where", tmp_path, "--document", 40], "there is no document 40; its 40 documents"),
        (["where", tmp_path, "--token", 1, "--document", 4], "one place is looked up at a time"),
        (["where", tmp_path, "--step", 1], "--step has no effect without --config"),
        (["show", tmp_path, "--config", config, "--row", 4], "has 4 rows, numbered from 0; there"),
        (["show", "--config", config], "there is no dataset; give its path, or name it in the"),
        (["show", tmp_path, "--config", tmp_path / "bad.json"], "bad.json: expected a JSON object"),
        (["show", tmp_path, "--config", "no.json"], "(--config); reading it failed ([Er"),
        (["show", tmp_path, "--config", tmp_path / "list.json"], "expected a JSON object with the"),
        (["show", tmp_path, "--config", tmp_path / "odd.json"], "odd.json: global_batch: there is"),
        (["show", tmp_path, "--config", tmp_path / "mixed.json"], "mixed.json: "),
    ]:
        done = command(*arguments)
        assert done.returncode in (1, 2), arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert expected in done.stderr


def test_ids_without_a_tokenizer_beside_that_of_another_dataset(tmp_path: Path) -> None:
    make(tmp_path)
    file = written.write(
        tmp_path, [5, 6, 7, 299, 6, 299], [4, 6], name="ids", fields={"tokenizer_fingerprint": ""}
    )
    path = tmp_path / "ids.bin"
    assert (where(path, token=1)["places"][0]["ids"], file.has_tokenizer) == ([6], False)
    assert search(path, ids=[6, 7], progress=False)["searched"][0]["count"] == 1
    assert "texts" not in Sampler(file, 1, 3).describe(0)[0]["documents"][0]
    with pytest.raises(TokenmillError, match="imported without a tokenizer"):
        search(path, "a", progress=False)


def test_a_row_of_a_step_of_a_rebuilt_dataset(tmp_path: Path) -> None:
    """`open_tokens` with another tokenizer is refused."""
    make(tmp_path)
    (tmp_path / "s.json").write_text('{"global_batch_size": 2, "context_length": 9}')
    other = Tokenizer.from_vocabulary(Vocabulary.from_merges([], [END]))
    other.save(tmp_path / "other.json")
    with pytest.raises(TokenmillError, match="built with the tokenizer"):
        show(tmp_path, config=tmp_path / "s.json", tokenizer=tmp_path / "other.json")
    assert open_tokens(tmp_path / "train.bin").has_tokenizer
