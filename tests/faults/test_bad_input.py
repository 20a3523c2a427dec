"""Everything that is refused: its own message, its exit code, and nothing under a final name."""

from __future__ import annotations

import re
import shlex
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


# The files that the commands below are given, in the directory that they run in.
FILES = {
    "text.txt": TEXT.encode(), "empty.txt": b"", "bad.txt": b"\xff<|endoftext|>\xfe",
    "only.txt": 5 * END.encode(), "separators": END.encode(), "pad.txt": b"<|pad|>",
    "latin1.txt": ("x" * 70_000 + " caf\xe9").encode("latin-1"),
    "list.json": b"[]", "cut.json": b'{"model": {"type": "BPE", "vocab": {"a',
}  # fmt: skip
# A command behind "tokenmill build --train", or a whole one, and what it says; "...": and so on.
REFUSED = [
    ("none.txt --val text.txt", "none.txt: no such file or directory; check the path"),
    ("text.txt --val none.txt", "none.txt: no such file or directory; check the path"),
    ("empty.txt", "empty.txt: empty (0 bytes), so there is no text for train"),
    ("text.txt --val empty.txt", "empty.txt: empty (0 bytes), so there is no text for val"),
    ("bad.txt --val text.txt --on-invalid-utf8 skip",
     "bad.txt: no document for train: 2 are not UTF-8; give files that"),
    ("list.json", "list.json: no document for train: there is no record; give files that"),
    ("only.txt --val text.txt", "only.txt: no document for train: 6 are empty; give files that"),
    ("only.txt", "only.txt: no document for train: 6 are empty; give files that"),
    ("pad.txt --val-fraction 0 --special-token <|pad|>", "...there is no text to train on"),
    *((files, "latin1.txt: byte 70,004: not valid UTF-8 (0xe9: unexpected end"
       "...--on-invalid-utf8 replace")
      for files in ("text.txt --unit-size 1000 --val latin1.txt", "latin1.txt --val text.txt")),
    *((f"text.txt --val-fraction 0.0001 {more}",
       "val would have no documents: none of the 40 in text.txt belongs to it;...")
      for more in ("", "--tokenizer tokenizer.json")),
    ("text.txt --val separators", "separators: no document for val: 2 are empty"),
    ("text.txt --val-fraction 0.999999", "train would have no documents: none of the 40 in text.t"),
    *((f"text.txt --tokenizer tokenizer.json {option} </s>",
       f"the tokenizer has no special token '</s>'; choose one that it has ({option}):"
       " '<|endoftext|>'")
      for option in ("--end-of-text", "--begin-of-text")),
    *((f"{command} --tokenizer {name}", f"{name}: {problem}")
      for command in ("text.txt", "tokenmill encode text.txt")
      for name, problem in (("cut.json", "the file ends in the middle"),
                            ("none.json", "No such file or directory"))),
    ("text.txt --out text.txt/below",
     "text.txt/below: could not be written: Not a directory; nothing was"),
    ("text.txt --out text.txt",
     "text.txt: could not be written: File exists; nothing was put under a final name, and progress"
     " so far is saved: a file is where a directory is expected, so move the file and"),
    ("text.txt --log-file text.txt/log",
     "text.txt/log: no log can be written there: Not a directory"),
    ("tokenmill train text.txt --out tokenizer.json",
     "tokenizer.json: exists; its inputs were different (vocab_size was 280 and is 32000):"
     " choose another directory or name, or replace it (--overwrite)"),
]
# As above, with the exit code 2.
WRONG_USAGE = [
    ("--vocab-size 257 --special-token <|pad|>",
     "--vocab-size 257 is too small: 256 bytes and 2 special tokens need at least 258"),
    ("--special-token <|pad|> --special-token <|pad|>",
     "--special-token: should name each token once, and '<|pad|>' is there"),
    ("--special-token ''", "--special-token: should not be empty; got ['']"),
    ("--pattern gpt5", "--pattern: unknown split pattern 'gpt5': expected one of the names 'gpt2'"),
    ("--log-file s3://bucket/log",
     "--log-file: should be a path on this machine, for this cannot be a"),
    ("--val text.txt --val-fraction 0.1", "--val and --val-fraction were both given"),
    ("--workers 0", "--workers: should be a whole number of at least 1 and at most 65,536"),
    ("--unit-size 4XB", "--unit-size: should be a number of bytes such as 65536, 64KiB or 4MiB;"),
    ("--unit-size 0", "--unit-size: should be at least 1; got '0'"),
    ("--val-fraction 1", "--val-fraction: should be a number of at least 0 and less than 1; got"),
    ("--tie-break coin", "--tie-break: should be 'greatest-bytes' or 'huggingface'; got 'coin'"),
    ("--on-invalid-utf8 x", "--on-invalid-utf8: should be 'error', 'replace' or 'skip'; got 'x'"),
    ("--name a/b", "--name: should be the beginning of a file name, without a directory; got"),
    ("--min-frequency -1", "--min-frequency: should be a whole number of at least 0; got -1"),
    ("--workers two", "argument --workers: invalid int value: 'two'; see tokenmill build --help"),
    ("--save_path x", "unrecognized arguments: --save_path; did you mean --out?"),
    (f"--workers {'9' * 20}", "--workers: should be a number that is not as large; got 9"),
    (f"--workers {'9' * 5000}", "argument --workers: invalid int value: '99...99; see tokenmill"),
    ("--vocab-size -5", "--vocab-size: should be a whole number from 256 to 536,870,912, or"),
    (f"--vocab-size {'9' * 5000}", "--vocab-size: should be a whole number from 256 to 536,"),
    (f"--unit-size {'9' * 5000}", "--unit-size: should be a number of bytes such as 65536, 64KiB"),
    (f"--executor ray --ray-resource CPU={'9' * 5000}",
     "--ray-resource: should be amounts of resources, such as CPU=2 or memory=4000000000; got"),
    ("--nonsense 1", "unrecognized arguments: --nonsense; see tokenmill build --help"),
    ("--val-fraction x", "argument --val-fraction: invalid float value: 'x'; see"),
    ("--val-fraction -1e3", "--val-fraction: should be a number of at least 0 and less than"),
    ("--max-minutes 0", "--max-minutes: should be a number greater than 0; got 0.0"),
    ("--max-minutes nan", "--max-minutes: should be a number greater than 0; got nan"),
    (f"--vocab-size {2**30}", f"--vocab-size: should be a whole number from 256 to {2**29:,}, or"),
]
NAMED_AS_OTHERS = ("tokenizer", "tokenizer_config", "stats", "x_stats")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FILES, and tokenizer.json."""
    directory = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    tokenizer = directory / "tokenizer.json"
    pipeline.train(paths=directory / "text.txt", out=tokenizer, vocab_size=280, workers=1)
    return directory


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("command", "code", "expected"),
    [
        *((f"build --train {x}".removeprefix("build --train tokenmill "), 1, y)
          for x, y in REFUSED),
        *((f"build --train text.txt {x}", 2, y) for x, y in WRONG_USAGE),
        ("encode text.txt --tokenizer tokenizer.json --out data", 2,
         "--out: should be the name of a .bin file; got 'data'"),
        *((f"encode text.txt --tokenizer tokenizer.json --out {name}.bin", 2,
           "--out: should have another name, for its manifest would be"
           f" {name}.json, which is the name of another output; got '{name}.bin'")
          for name in NAMED_AS_OTHERS),
    ],
)  # fmt: skip
def test_what_is_refused_with_one_line(
    capsys: Any, directory: Path, out: Path, monkeypatch: pytest.MonkeyPatch, command: str,
    code: int, expected: str,
) -> None:
    monkeypatch.chdir(directory)
    before = {path: path.read_bytes() for path in directory.iterdir()}
    place = ["--out", str(out)] if command.startswith("build") and "--out" not in command else []
    assert run([*shlex.split(command), *place]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    prefix = "tokenmill: error: "
    *others, line = captured.err.splitlines()
    # What is said before it is that kernels are compiled, or that training stopped early.
    assert not any(each.startswith(prefix) for each in others)
    assert re.match(".*".join(map(re.escape, f"{prefix}{expected}".split("..."))), line)
    assert not out.exists()
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_an_empty_file_among_others_is_an_empty_document(text: Path, out: Path) -> None:
    (text.parent / "empty.txt").touch()
    result = build(train=[text.parent / "empty.txt", text], val=text, out=out, vocab_size=260)
    assert result.stats["empty_documents"] == 1


def test_output_directory_that_fails_later(text: Path) -> None:
    with pytest.raises(OutputError, match=r"/proc/none: could not be written: .*choose another"):
        build(train=text, val=text, out="/proc/none", vocab_size=260)


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
        ({"train": [7]}, r"train: should be a path or URL, a list of them, or doc.*; got \[7\]"),
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
@pytest.mark.parametrize(
    "url", ["file:///x/a.bin", Path("gs://bucket/a.bin"), "~/a.bin", Path("~")]
)
def test_no_directory_is_made_of_a_url(
    write: Callable[[Any], object], url: Any, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of one that `Path` has changed to gs:/bucket, nor of ~, either."""
    monkeypatch.chdir(text.parent)
    (text.parent / "gs:/bucket").mkdir(parents=True)  # where nothing is found, or replaced
    before = sorted(text.parent.rglob("*"))
    expected = "path on this machine|should be a path, or a URL|that pathlib has changed"
    expected += "|only a shell replaces ~ by the home directory; give /"
    with pytest.raises(TokenmillError, match=expected + "|give the path without file"):
        write(url)
    assert sorted(text.parent.rglob("*")) == before


def test_debug_shows_where(tmp_path: Path) -> None:
    with pytest.raises(CorpusError):
        run(["--train", str(tmp_path / "none"), "--debug"])
