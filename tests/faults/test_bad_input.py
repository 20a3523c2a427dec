"""Everything that is refused: its own message, its exit code, and nothing under a final name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bpe import Tokenizer, WordLevelTokenizer, load_tokenizer, train_bpe
from bpe.errors import CorpusError, TokenmillError
from preprocess import (
    DatasetConfig,
    JsonShardedSource,
    PipelineConfig,
    SaveStageConfig,
    build,
    export_tokens,
    import_tokens,
    merge_parts,
    open_tokens,
    pipeline,
    tokenize_and_save,
    verify,
    write_rows,
)
from preprocess.cli import run
from preprocess.options import CountSettings
from preprocess.run.outputs import OutputError
from preprocess.settings import SettingsError

END = "<|endoftext|>"
TEXT = END.join(f"document {i} of many, and some more words" for i in range(40))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def tokenizer(text: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    pipeline.train(paths=text, out=path, vocab_size=280, workers=1)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    """Run the command; it must fail with one line, which is returned without its prefix."""
    capsys.readouterr()
    assert run([str(argument) for argument in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    prefix = "tokenmill: error: "
    *before, line = captured.err.splitlines()
    assert line.startswith(prefix)
    # What is said before it is that kernels are compiled, or that training stopped early.
    assert not any(line.startswith(prefix) for line in before)
    return line.removeprefix(prefix)


@pytest.mark.parametrize("option", ["--train", "--val"])
def test_missing_file(capsys: Any, tmp_path: Path, text: Path, out: Path, option: str) -> None:
    missing = tmp_path / "none.txt"
    message = refused(capsys, "--train", text, "--val", text, option, missing, "--out", out)
    assert message == f"{missing}: no such file or directory; check the path"
    assert not out.exists()


def test_empty_file(capsys: Any, tmp_path: Path, text: Path, out: Path) -> None:
    (tmp_path / "empty.txt").touch()
    message = refused(capsys, "--train", tmp_path / "empty.txt", "--out", out)
    assert message.startswith("empty.txt: empty (0 bytes), so there is no text for train")
    message = refused(capsys, "--train", text, "--val", tmp_path / "empty.txt", "--out", out)
    assert message.startswith("empty.txt: empty (0 bytes), so there is no text for val")
    assert not out.exists()
    # Among others it is only an empty document.
    result = build(train=[tmp_path / "empty.txt", text], val=text, out=out, vocab_size=260)
    assert result.stats["empty_documents"] == 1


def test_no_training_text(capsys: Any, tmp_path: Path, text: Path, out: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff<|endoftext|>\xfe")
    options = ["--train", tmp_path / "bad.txt", "--val", text, "--out", out]
    message = refused(capsys, *options, "--on-invalid-utf8", "skip")
    assert message.startswith("bad.txt: no document for train: 0 are empty and 2 are not UTF-8")
    (tmp_path / "only.txt").write_text(END * 5)
    for options in (["--val", text], []):
        message = refused(capsys, "--train", tmp_path / "only.txt", "--out", out, *options)
        assert message.startswith(
            "only.txt: no document for train: 6 are empty and 0 are not UTF-8"
        )
    assert list(out.iterdir()) == []


def test_only_special_tokens_to_train_on(capsys: Any, tmp_path: Path, out: Path) -> None:
    (tmp_path / "only.txt").write_text("<|pad|>")
    options = ["--train", tmp_path / "only.txt", "--val-fraction", "0", "--out", out]
    message = refused(capsys, *options, "--special-token", "<|pad|>")
    assert "there is no text to train on" in message


def test_invalid_utf8(capsys: Any, tmp_path: Path, text: Path, out: Path) -> None:
    path = tmp_path / "latin1.txt"
    path.write_bytes(("x" * 70_000 + " caf\xe9").encode("latin-1"))
    for options in (["--train", text, "--val", path], ["--train", path, "--val", text]):
        message = refused(capsys, *options, "--out", out, "--unit-size", "1000")
        assert message.startswith(f"{path}: byte 70,004: not valid UTF-8 (0xe9: unexpected end")
        assert "--on-invalid-utf8 replace" in message
    assert list(out.iterdir()) == []


def test_vocabulary_too_small(capsys: Any, text: Path, out: Path) -> None:
    options = ["--train", text, "--out", out, "--special-token", "<|pad|>"]
    message = refused(capsys, *options, "--vocab-size", "257", code=2)
    assert message == (
        "vocab_size 257 is too small: 256 bytes and 2 special tokens need at least 258"
    )
    assert run([str(o) for o in [*options, "--val", text, "--vocab-size", "258"]]) == 0


@pytest.mark.parametrize("tokenizer_is_given", [False, True])
def test_validation_without_documents(
    capsys: Any, tmp_path: Path, text: Path, out: Path, tokenizer: Path, tokenizer_is_given: bool
) -> None:
    options = ["--train", text, "--out", out, "--val-fraction", "0.0001"]
    options += ["--tokenizer", tokenizer] if tokenizer_is_given else []
    message = refused(capsys, *options)
    assert message.startswith(
        "val would have no documents: none of the 40 in text.txt belongs to it;"
    )
    assert all(word in message for word in ("--val)", "--val-fraction", "--separator"))
    assert list(out.iterdir()) == []
    (tmp_path / "separators").write_text(END)
    message = refused(capsys, *options[:4], "--val", tmp_path / "separators")
    assert message.startswith("separators: no document for val: 2 are empty")
    message = refused(capsys, "--train", text, "--out", out, "--val-fraction", "0.999999")
    assert message.startswith("train would have no documents: none of the 40 in text.txt")


def test_duplicate_special_tokens(capsys: Any, text: Path, out: Path) -> None:
    twice = ["--special-token", "<|pad|>"] * 2
    message = refused(capsys, "--train", text, "--out", out, *twice, code=2)
    assert message.startswith("special_tokens: should name each token once, and '<|pad|>' is there")
    message = refused(capsys, "--train", text, "--out", out, "--special-token", "", code=2)
    assert message == "special_tokens: should not be empty; got ['']"


@pytest.mark.parametrize("option", ["--end-of-text", "--begin-of-text"])
def test_a_special_token_that_the_tokenizer_lacks(
    capsys: Any, text: Path, out: Path, tokenizer: Path, option: str
) -> None:
    message = refused(
        capsys, "--train", text, "--tokenizer", tokenizer, "--out", out, option, "</s>"
    )
    assert message == (
        f"the tokenizer has no special token '</s>'; choose one that it has ({option}):"
        " '<|endoftext|>'"
    )
    assert not out.exists()


def test_a_tokenizer_of_no_use(capsys: Any, tmp_path: Path, text: Path, out: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for content, expected in (
        ('{"model": {"type": "BPE", "vocab": {"a', f"{path}: the file ends in the middle"),
        (None, f"{path}: No such file or directory"),
    ):
        path.write_text(content) if content else path.unlink()
        for given in (["--train", text, "--out", out], ["encode", text]):
            assert expected in refused(capsys, *given, "--tokenizer", path)


def test_output_directory_that_is_none(capsys: Any, text: Path) -> None:
    message = refused(capsys, "--train", text, "--out", text / "below")
    assert message.startswith(f"{text}/below: could not be written: Not a directory; nothing was")


def test_output_directory_that_fails_later(text: Path) -> None:
    with pytest.raises(OutputError, match=r"/proc/none: could not be written: .*choose another"):
        build(train=text, val=text, out="/proc/none", vocab_size=260)


def test_unknown_pattern(capsys: Any, text: Path, out: Path) -> None:
    message = refused(capsys, "--train", text, "--out", out, "--pattern", "gpt5", code=2)
    assert message.startswith(
        "pattern: unknown split pattern 'gpt5': expected one of the names 'gpt2'"
    )


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--workers", "0", "workers: should be a whole number of at least 1 and at most 65,536"),
        ("--unit-size", "4XB",
         "unit_size: should be a number of bytes such as 65536, 64KiB or 4MiB;"),
        ("--unit-size", "0", "unit_size: should be at least 1; got '0'"),
        ("--val-fraction", "1",
         "val_fraction: should be a number of at least 0 and less than 1; got 1.0"),
        ("--tie-break", "coin",
         "tie_break: should be 'greatest-bytes' or 'huggingface'; got 'coin'"),
        ("--on-invalid-utf8", "x",
         "on_invalid_utf8: should be 'error', 'replace' or 'skip'; got 'x'"),
        ("--name", "a/b", "name: should be the beginning of a file name, without a directory; got"),
        ("--min-frequency", "-1", "min_frequency: should be a whole number of at least 0; got -1"),
        ("--workers", "two",
         "argument --workers: invalid int value: 'two'; see tokenmill build --help"),
        ("--save_path", "x", "unrecognized arguments: --save_path; did you mean --out?"),
        ("--workers", "9" * 20, "workers: should be a number that is not as large; got 9"),
        ("--nonsense", "1", "unrecognized arguments: --nonsense; see tokenmill build --help"),
        ("--val-fraction", "x", "argument --val-fraction: invalid float value: 'x'; see"),
        ("--val-fraction", "-1e3", "val_fraction: should be a number of at least 0 and less than"),
        ("--max-minutes", "0", "max_minutes: should be a number greater than 0; got 0.0"),
        ("--max-minutes", "nan", "max_minutes: should be a number greater than 0; got nan"),
        ("--vocab-size", str(2**30),
         f"vocab_size: should be a whole number of at most {2**29:,}; got"),
    ],
)
def test_settings_of_no_use(
    capsys: Any, text: Path, option: str, value: str, expected: str
) -> None:
    assert refused(capsys, "--train", text, option, value, code=2).startswith(expected)


def test_settings_that_contradict_one_another(capsys: Any, text: Path) -> None:
    options = ["--train", text, "--val", text, "--val-fraction", "0.1"]
    message = refused(capsys, *options, code=2)
    assert message.startswith("val and val_fraction were both given")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"nonsense": 1}, "nonsense: there is no such setting"),
        ({"separator": "\ud800"}, "separator: should be valid Unicode; got"),
        ({"separator": b"x"}, "separator: should be text; got b'x'"),
        ({"overwrite": 1}, "overwrite: should be True or False; got 1"),
        ({"special_tokens": [["a"]]},
         r"special_tokens: should be a list of texts; got \[\['a'\]\]"),
        ({"workers": np.array([2, 3])},
         "workers: should be a whole number of at least 1 and at most 65,536"),
        ({"max_minutes": 10**400}, "max_minutes: should be a number that is not as large; got 1"),
        ({"tie_break": ["coin"]}, r"tie_break: should be .* or 'huggingface'; got \['coin'\]"),
        ({"out": 7}, "out: should be a path; got 7"),
        ({"train": [7]}, r"train: should be a path or URL, or a list of them; got \[7\]"),
        ({"train": []}, r"train: should not be empty; leave it out for text that Python"),
        ({"workers": 0, "x": 1}, "workers: .* at most 65,536; got 0; x: there is no such"),
    ],
)
def test_settings_of_the_function(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        build(**options)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda url, text, out: build(train=text, out=out, tokenizer=f"{url}.tiktoken"), "token"),
        (lambda url, text, out: load_tokenizer(url), ""),
        (lambda url, text, out: train_bpe(url, 300), ""),
    ],
)
@pytest.mark.parametrize("url", ["s3://bucket/text.bin", "HTTPS://host/a.bin", "file:///a.bin"])
def test_urls_are_refused_as_they_were_given(
    text: Path, out: Path, use: Callable[[str, Path, Path], object], name: str, url: str
) -> None:
    with pytest.raises(TokenmillError) as raised:
        use(url, text, out)
    message = str(raised.value)
    assert message.startswith(name)
    assert url in message
    assert "should be a path on this machine, for this cannot be a URL" in message
    assert "copy or mount what is there" in message
    assert not out.exists()


def test_file_urls_are_paths(text: Path, out: Path) -> None:
    with pytest.raises(TokenmillError, match="is on this machine; give the path without file://"):
        build(train=f"file://{text}", out=out)


def test_settings_that_are_missing() -> None:
    with pytest.raises(SettingsError, match=r"^paths: is required; tokenizer: is required$"):
        CountSettings(**{})
    with pytest.raises(SettingsError, match=r"^paths: should not be empty; got \(\)$"):
        CountSettings(**{"paths": (), "tokenizer": "t"})


BYTES = Tokenizer({i: bytes([i]) for i in range(256)}, [])


@pytest.mark.parametrize(
    "write",
    [
        lambda url: build(train="text", out=url),
        lambda url: pipeline.train(paths="text", out=url),
        lambda url: pipeline.encode(paths="text", tokenizer="tokenizer.json", out=url),
        lambda url: export_tokens("data", to="npy", out=url),
        lambda url: import_tokens("ids", format="raw", dtype="uint16", end_of_text_id=1, out=url),
        lambda url: merge_parts(url),
        lambda url: write_rows("data", out=url),
        lambda url: tokenize_and_save(data_files="text", tokenizer="gpt2", output_path=url),
        lambda url: PipelineConfig(datasets=[DatasetConfig(data_files="text")], output_path=url),
        lambda url: SaveStageConfig(output_dir=url),
        lambda url: verify(url),
        lambda url: BYTES.save(url),
        lambda url: BYTES.save_tiktoken(url),
        lambda url: BYTES.save_gpt2_files(url, url),
        lambda url: WordLevelTokenizer(["a"]).save(url),
        lambda url: open_tokens(url),
        lambda url: JsonShardedSource(url),
    ],
)
@pytest.mark.parametrize("url", ["file:///x/a.bin", Path("gs://bucket/a.bin")])
def test_no_directory_is_made_of_a_url(
    write: Callable[[Any], object], url: Any, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that `Path` has changed to gs:/bucket, either."""
    monkeypatch.chdir(text.parent)
    (text.parent / "gs:/bucket").mkdir(parents=True)  # where nothing is found, or replaced
    before = sorted(text.parent.rglob("*"))
    expected = "path on this machine|should be a path, or a URL|that pathlib has changed"
    with pytest.raises(TokenmillError, match=expected + "|give the path without file"):
        write(url)
    assert sorted(text.parent.rglob("*")) == before


def test_encoding_to_something_else_than_a_bin(capsys: Any, text: Path, tokenizer: Path) -> None:
    options = ["encode", text, "--tokenizer", tokenizer, "--out", "data"]
    message = refused(capsys, *options, code=2)
    assert message == "out: should be the name of a .bin file; got 'data'"
    for name in ("tokenizer", "tokenizer_config", "stats", "x_stats"):
        path = text.with_name(f"{name}.bin")
        message = refused(capsys, "encode", text, "--tokenizer", tokenizer, "--out", path, code=2)
        assert message == (
            f"out: should have another name, for its manifest would be {name}.json, which is the"
            f" name of another output; got '{path}'"
        )
        assert not path.with_suffix(".docs").exists()


def test_training_over_an_existing_file(capsys: Any, text: Path, tokenizer: Path) -> None:
    before = tokenizer.read_bytes()
    message = refused(capsys, "train", text, "--out", tokenizer)
    assert message == (
        f"{tokenizer}: exists; its inputs were different (vocab_size was 280 and is 32000):"
        " choose another directory or name, or replace it (--overwrite)"
    )
    assert tokenizer.read_bytes() == before
    assert run(["train", str(text), "--out", str(tokenizer), "--overwrite"]) == 0
    assert tokenizer.read_bytes() != before


def test_a_log_file_that_cannot_be_written(capsys: Any, text: Path) -> None:
    message = refused(capsys, "--train", text, "--log-file", text / "log")
    assert message.startswith(f"{text}/log: no log can be written there: Not a directory")
    message = refused(capsys, "--train", text, "--log-file", "s3://bucket/log", code=2)
    assert message.startswith("log_file: should be a path on this machine, for this cannot be a")


def test_debug_shows_where(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        run(["--train", str(tmp_path / "none"), "--debug"])
