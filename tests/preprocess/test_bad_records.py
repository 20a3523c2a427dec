"""--on-bad-record skip: bad records are left out, counted and listed, also after kills."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torture
from run_cases import assert_goes_on
from source_cases import documents_of

from bpe.errors import TokenmillError
from preprocess import CorpusError, build
from preprocess.pipeline import count, encode, train

BAD = ['{"text": 1}', "[]", '{"x": "y"}', '{"text": "a', '{"text": null}', '{"text": "\\ud800"}']
OPTIONS: dict[str, Any] = {"vocab_size": 270, "unit_size": 300, "workers": 2, "val_fraction": 0}


def write(path: Path, kind: str) -> list[str]:
    """Write records of which every tenth is bad; return those that are good."""
    good = [f"document {i} {'word ' * (i % 9)}" for i in range(120)]
    given = [json.dumps({"text": text}) for text in good]
    for number in range(0, 120, 10):
        given[number] = BAD[number // 10 % len(BAD)]
        if kind == "json" and given[number].count('"') % 2:
            given[number] = "nonsense"
    content = "\n".join(given) + "\n" if kind != "json" else "[" + ",".join(given) + "]"
    path.write_text(content)
    return [text for number, text in enumerate(good) if number % 10]


def rejects(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "rejects.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("kind", ["jsonl", "json"])
def test_bad_records_are_left_out_counted_and_listed(
    tmp_path: Path, often: None, kind: str
) -> None:
    path = tmp_path / f"x.{kind}"
    good = write(path, kind)
    (tmp_path / "good.txt").write_text("<|endoftext|>".join(good))
    build(**OPTIONS, train=tmp_path / "good.txt", out=tmp_path / "good")
    options = OPTIONS | {"train": path, "on_bad_record": "skip"}
    result = build(**options, out=tmp_path / "whole")
    for name in ("train.bin", "train.docs"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "good" / name).read_bytes()
    listed = rejects(tmp_path / "whole")
    assert result.stats["bad_records"] == len(listed) == 12
    assert [each["record"] for each in listed] == [10 * i + 1 for i in range(12)]
    assert all(each["file"].startswith(str(path)) and each["reason"] for each in listed)
    for number, each in enumerate(listed):
        record = BAD[number % len(BAD)]
        if kind == "json" and record.count('"') % 2:
            record = "nonsense"
        assert path.read_bytes()[each["byte"] :].startswith(record.encode())
    assert "left out: 12 bad records" in "\n".join(result.lines)
    assert_goes_on(options, tmp_path, ["counting", "encoding train"])
    other = options | {"unit_size": 10**6, "workers": 1}
    build(**other, out=tmp_path / "other")
    assert torture.contents(tmp_path / "other") == torture.contents(tmp_path / "whole")


def test_more_bad_records_than_allowed(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path, "jsonl")
    options: dict[str, Any] = {"on_bad_record": "skip", "max_bad_records": 3}
    message = r"x\.jsonl: byte [\d,]+: .*This is bad record 4, and 3 are allowed \(max_bad"
    for run in (
        lambda: build(**OPTIONS, **options, train=path, out=tmp_path / "out"),
        lambda: train(paths=path, out=tmp_path / "t.json", vocab_size=270, **options),
    ):
        with pytest.raises(CorpusError, match=message):
            run()
    options["max_bad_records"] = 12
    train(paths=path, out=tmp_path / "t.json", vocab_size=270, **options)
    report = count(paths=path, tokenizer=tmp_path / "t.json", **options)
    assert report.left_out.bad_records == 12
    encode(paths=path, tokenizer=tmp_path / "t.json", out=tmp_path / "e" / "y.bin", **options)
    assert len((tmp_path / "e" / "y_rejects.jsonl").read_text().splitlines()) == 12
    options["max_bad_records"] = 11
    with pytest.raises(CorpusError, match="This is bad record 12, and 11 are allowed"):
        encode(paths=path, tokenizer=tmp_path / "t.json", out=tmp_path / "f" / "y.bin", **options)


def test_the_list_is_replaced_with_the_outputs(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", "jsonl")
    out = tmp_path / "out"
    build(**OPTIONS, train=tmp_path / "x.jsonl", on_bad_record="skip", out=out)
    assert len(rejects(out)) == 12
    (tmp_path / "y.jsonl").write_text('{"text": "good"}\n')
    build(**OPTIONS, train=tmp_path / "y.jsonl", on_bad_record="skip", out=out, overwrite=True)
    assert rejects(out) == []
    build(**OPTIONS, train=tmp_path / "y.jsonl", out=out, overwrite=True)
    assert not (out / "rejects.jsonl").exists()


def test_skipping_together_with_invalid_utf8(tmp_path: Path) -> None:
    lines = [b'{"text": "a"}', b'{"text": "\xff"}', b'{"text": 1}', b"", b'{"text": "b"}']
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    options: dict[str, Any] = {"on_bad_record": "skip", "train": tmp_path / "x.jsonl"}
    with pytest.raises(TokenmillError, match="byte 24: not valid UTF-8"):
        build(**OPTIONS, **options, out=tmp_path / "error")
    for choice, n_documents in (("skip", 2), ("replace", 3)):
        result = build(**OPTIONS, **options, on_invalid_utf8=choice, out=tmp_path / choice)
        assert result.stats["documents"] == n_documents
        (listed,) = rejects(tmp_path / choice)
        assert (listed["record"], listed["byte"]) == (3, 28)
        assert "Expected `str`, got `int`" in listed["reason"]


def test_invalid_utf8_after_a_bad_record_is_an_error_in_units_of_any_size(tmp_path: Path) -> None:
    lines = [b'{"text":', *[b'{"text": "%d %s"}' % (i, b"x" * 1000) for i in range(400)]]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join([*lines, b'{"text": "caf\xe9"}']))
    for unit_size in (1000, 10**7):
        options: dict[str, Any] = OPTIONS | {"unit_size": unit_size, "on_bad_record": "skip"}
        with pytest.raises(CorpusError, match=r"byte [\d,]+: not valid UTF-8"):
            build(**options, train=tmp_path / "x.jsonl", out=tmp_path / "out")


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n[]\n')
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "rejects.jsonl").write_text("mine")
    for choice in ("skip", "error"):
        with pytest.raises(TokenmillError, match=r"rejects\.jsonl: exists and was not written"):
            build(**OPTIONS, train=tmp_path / "x.jsonl", on_bad_record=choice, out=tmp_path / "out")
    assert (tmp_path / "out" / "rejects.jsonl").read_text() == "mine"


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    directory = tmp_path / os.fsdecode(b"\xff")
    directory.mkdir()
    (directory / "x.jsonl").write_text('{"text": "a"}\n[]\n')
    build(**OPTIONS, train=directory / "x.jsonl", on_bad_record="skip", out=tmp_path / "out")
    assert rejects(tmp_path / "out")[0]["file"].endswith("/\\xff/x.jsonl")


@pytest.mark.parametrize("unit_size", [1, 10**6])
@pytest.mark.parametrize("bad", ["]", '{"text": "', "}{"])
def test_what_follows_a_bad_record_is_read_as_without_it(
    tmp_path: Path, bad: str, unit_size: int
) -> None:
    deep = [f'{{"text": "deep", "x": {"[" * n}{"]" * n}}}' for n in (299, 300, 9999)]
    (tmp_path / "x.jsonl").write_text("\n".join([bad, *deep, '{"text": "a"}', bad]))
    options: dict[str, Any] = {"skip_bad_records": True, "content_field": ("text",)}
    assert documents_of(tmp_path / "x.jsonl", unit_size=unit_size, **options) == ["deep", "a"]


def test_the_field_is_that_of_the_first_object(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('oops\n[1]\n{"content": "a", "number": 1e400}\n')
    assert documents_of(tmp_path / "x.jsonl", skip_bad_records=True) == ["a"]


def test_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n[]\n{"text": "abcdef"}\n')
    options: dict[str, Any] = {"min_length": 2, "max_length_chars": 5, "on_bad_record": "skip"}
    message = "1 are shorter than min_length, 1 are longer than max_length_chars, 1 are bad rec"
    with pytest.raises(CorpusError, match=message):
        build(**OPTIONS, **options, train=tmp_path / "x.jsonl", out=tmp_path / "out")
    options["min_length"] = 6
    with pytest.raises(TokenmillError, match="min_length 6 is above max_length_chars=5, so no "):
        build(**OPTIONS, **options, train=tmp_path / "x.jsonl", out=tmp_path / "out")
