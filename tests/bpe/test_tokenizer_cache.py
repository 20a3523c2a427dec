"""A tokenizer that was read before is what reading it again would give."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trained

from bpe import Tokenizer, load_tokenizer
from bpe.errors import TokenizerFileError
from bpe.formats import tokenizer_cache
from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.hf_write import TokenizerParts, save
from bpe.runtime.user_cache import Cache
from bpe.vocabulary import AddedToken, Vocabulary

ROOT = Path(__file__).parents[2]
MERGES = trained.merges()[:200]
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abc": 257, b"bc": 258}
VOCABULARIES = {
    "merges": Vocabulary.from_merges(MERGES, ["<|endoftext|>", "<|pad|>"]),
    "no merges": Vocabulary.from_merges([]),
    "gaps": Vocabulary(
        {3 * number: bytes([number]) for number in range(256)} | {7: b"ab", 1000: b"abc"},
        [(b"a", b"b"), (b"ab", b"c")],
        {"<|é|>": 5000},
    ),
    "whole first": Vocabulary(
        {number: bytes([number]) for number in range(256)} | {256: b"xyz"},
        [],
        {},
        ignore_merges=True,
    ),
    "normalized": Vocabulary(
        {number: bytes([number]) for number in range(0xF5)} | {256: b""},
        [],
        [AddedToken("\u212a", 257, normalized=True), AddedToken("<|pad|>", 247)],
        normal_forms=("NFC", "NFKC"),
    ),
    "ranks": Vocabulary.from_ranks(RANKS, {"<|endoftext|>": 300}),
    "added": Vocabulary(
        {number: bytes([number]) for number in range(256)},
        [],
        [
            AddedToken("  ", 300, special=False, normalized=True),
            AddedToken("<m>", 301, lstrip=True, rstrip=True, single_word=True),
        ],
    ),
}
PARTS = {name: TokenizerParts(vocabulary, "gpt2") for name, vocabulary in VOCABULARIES.items()} | {
    "all": TokenizerParts(
        VOCABULARIES["normalized"],
        "o200k",
        "huggingface",
        "<|pad|>",
        False,
        frozenset({"<|pad|>"}),
    ),
    "space in front": TokenizerParts(VOCABULARIES["merges"], "gpt2", add_prefix_space=True),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one test's own, in which small files are worth it, too."""
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
        own = Cache("tokenizers", "tokenizers are parsed again")
    assert own.directory is not None
    monkeypatch.setattr(tokenizer_cache, "_cache", lambda: own)
    monkeypatch.setattr(tokenizer_cache, "_AT_LEAST", 0)
    monkeypatch.setattr("bpe.runtime.user_cache._warned", set())
    return own.directory


def from_files(path: Path) -> Tokenizer:
    """Read without the cache."""
    return Tokenizer._of(TokenizerFiles.read(path).parts())


def parse_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(files: TokenizerFiles) -> TokenizerParts:
        raise AssertionError("it was read before")

    monkeypatch.setattr(TokenizerFiles, "parts", parse)


@pytest.mark.parametrize("name", PARTS)
def test_it_is_the_same(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS[name])
    expected, first = from_files(path), Tokenizer.from_file(path)
    with monkeypatch.context() as patch:
        parse_is_forbidden(patch)
        found, pickled, by_name = (
            Tokenizer.from_file(path),
            Tokenizer.from_file(path),
            load_tokenizer(path),
        )
    text = "  é abc xyz ab  bc <|pad|> <m>x <m> <|endoftext|> 12 345" * 3
    pickled = pickle.loads(pickle.dumps(pickled))
    for tokenizer in (first, found, pickled, by_name):
        assert isinstance(tokenizer, Tokenizer)
        # As it is used: the encoder's tables come first, then the dictionaries.
        assert tokenizer.encode(text) == expected.encode(text)
        assert tokenizer.encode_ordinary(text) == expected.encode_ordinary(text)
        assert tokenizer.fingerprint == expected.fingerprint
        assert tokenizer.vocab_size == expected.vocab_size
        assert tokenizer == expected
        assert tokenizer._parts == expected._parts
        assert tokenizer.decode(expected.encode(text)) == expected.decode(expected.encode(text))
        ours, theirs = tokenizer.vocabulary, expected.vocabulary
        assert (ours.tokens, ours.merges) == (theirs.tokens, theirs.merges)
        assert list(ours.tokens) == list(theirs.tokens)
        assert ours.byte_ids.tolist() == theirs.byte_ids.tolist()
        assert [ours.token_id(token) for token in theirs.tokens.values()] == list(theirs.tokens)
        for column, wanted in zip(ours.pair_table(), theirs.pair_table(), strict=True):
            assert (column.dtype, column.tolist()) == (wanted.dtype, wanted.tolist())
        again = tmp_path / "again" / "tokenizer.json"
        again.parent.mkdir(exist_ok=True)
        tokenizer.save(again)
        assert again.read_bytes() == path.read_bytes()


def test_settings_of_other_files_are_kept(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])
    document = json.loads(path.read_text())
    document["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": False,
        "use_regex": True,
    }
    path.write_text(json.dumps(document))
    config = {"eos_token": "<|pad|>", "model_max_length": 7, "text": "\u00e9"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    expected = from_files(path)
    for _ in range(2):
        found = Tokenizer.from_file(path)
        assert found._parts == expected._parts
        assert (found._parts.settings, found._parts.config) != ("", "")
        assert found.eos_token == "<|pad|>"
        assert found.fingerprint == expected.fingerprint
    assert len(list(cache.iterdir())) == 1


def change_the_file(path: Path) -> None:
    path.write_text(path.read_text().replace('"tie_break": null', '"tie_break": "huggingface"'))


def change_the_configuration(path: Path) -> None:
    beside = path.with_name("tokenizer_config.json")
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"eos_token": "<|pad|>"}))


def remove_the_configuration(path: Path) -> None:
    path.with_name("tokenizer_config.json").unlink()


@pytest.mark.parametrize(
    "change", [change_the_file, change_the_configuration, remove_the_configuration]
)
def test_another_text_is_another_tokenizer(
    change: Callable[[Path], None], cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, replace(PARTS["merges"], eos_token="<|endoftext|>"))
    before = Tokenizer.from_file(path)
    change(path)
    for _ in range(2):
        assert Tokenizer.from_file(path)._parts == from_files(path)._parts
    assert len(list(cache.iterdir())) == 2
    assert (before == Tokenizer.from_file(path)) == (change is remove_the_configuration)


def test_what_is_refused_is_refused_again(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])
    path.write_text(path.read_text().replace('"version": "1.0"', '"version": "2.0"'))
    for _ in range(2):
        with pytest.raises(TokenizerFileError, match=r"2\.0"):
            Tokenizer.from_file(path)
    assert not list(cache.iterdir())


@pytest.mark.parametrize("damage", ["cut off", "zeros", "empty", "one bit"])
def test_what_is_damaged_is_said_and_written_anew(
    damage: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])
    expected = Tokenizer.from_file(path)
    (kept,) = cache.iterdir()
    sound = kept.read_bytes()
    middle = len(sound) // 2
    kept.write_bytes(
        {
            "cut off": sound[:middle],
            "zeros": bytes(len(sound)),
            "empty": b"",
            "one bit": sound[:middle] + bytes([sound[middle] ^ 4]) + sound[middle + 1 :],
        }[damage]
    )
    assert Tokenizer.from_file(path) == expected
    assert [record.getMessage() for record in caplog.records] == [
        "tokenizers are parsed again where their cache is damaged; the first such file is"
        f" {kept} (its content is not what was written)"
    ]
    assert kept.read_bytes() == sound


def test_a_file_under_another_name_is_damaged(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, other = tmp_path / "tokenizer.json", tmp_path / "other.json"
    save(path, PARTS["merges"])
    save(other, PARTS["no merges"])
    for each in (path, other):
        Tokenizer.from_file(each)
    first, second = cache.iterdir()
    first.write_bytes(second.read_bytes())
    for each in (path, other):
        assert Tokenizer.from_file(each)._parts == from_files(each)._parts
    (record,) = caplog.records
    assert f"{first} (its content is not what was written)" in record.getMessage()


def test_all_of_the_cache_may_be_removed(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])
    for _ in range(2):
        Tokenizer.from_file(path)
        shutil.rmtree(cache)
    Tokenizer.from_file(path)
    assert len(list(cache.iterdir())) == 1


def test_what_cannot_be_tidied_up_is_said(
    cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "a directory").mkdir()
    os.utime(cache / "a directory", (0, 0))
    path = tmp_path / "tokenizer.json"
    for number in range(tokenizer_cache._KEPT):
        save(path, TokenizerParts(Vocabulary.from_merges(MERGES[:number]), "gpt2"))
        Tokenizer.from_file(path)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{cache} cannot be tidied up (")


def test_threads_that_make_a_cache_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: Cache(f"kind-{number // 8}", "anew"), range(400)))
    assert all(each.directory is not None for each in made)
    assert not caplog.records
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_pattern_that_regex_runs_is_read_each_time(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, TokenizerParts(VOCABULARIES["merges"], r"\p{L}+|."))
    for _ in range(2):
        assert Tokenizer.from_file(path)._parts == from_files(path)._parts
    assert not list(cache.iterdir())


def test_a_pattern_that_is_no_unicode(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, TokenizerParts(VOCABULARIES["merges"], r"\p{L}+|."))
    document = json.loads(path.read_text())
    split = document["pre_tokenizer"]["pretokenizers"][0]
    split["pattern"]["Regex"] += "|\ud800"
    del document["model"]["pattern"]
    path.write_text(json.dumps(document))
    with pytest.raises(TokenizerFileError, match=r"it has a lone surrogate, '\\ud800'"):
        Tokenizer.from_file(path)


def test_only_the_newest_stay(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    for number in range(20):
        vocabulary = Vocabulary.from_merges(MERGES[:number])
        save(path, TokenizerParts(vocabulary, "gpt2"))
        Tokenizer.from_file(path)
        for kept in cache.iterdir():  # one second older than it was
            state = kept.stat()
            os.utime(kept, ns=(state.st_atime_ns, state.st_mtime_ns - 10**9))
    assert len(list(cache.iterdir())) == tokenizer_cache._KEPT
    newest = cache / tokenizer_cache._name(TokenizerFiles.read(path))
    assert newest.exists()


def test_small_files_are_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["no merges"])
    monkeypatch.setattr(tokenizer_cache, "_AT_LEAST", path.stat().st_size + 1)
    Tokenizer.from_file(path)
    assert not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    base.write_text("a file, not a directory")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(base))
    own = Cache("tokenizers", "tokenizers are parsed again")
    monkeypatch.setattr(tokenizer_cache, "_cache", lambda: own)
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])
    assert Tokenizer.from_file(path) == Tokenizer.from_file(path) == from_files(path)
    (record,) = caplog.records
    assert record.getMessage() == (
        f"tokenizers are parsed again in every process, because their cache {base / 'tokenizers'}"
        " cannot be written (Not a directory); set NUMBA_CACHE_DIR to a directory of yours"
    )


CHANGED = """
import sys
from pathlib import Path
from bpe import Tokenizer; from bpe.formats import tokenizer_cache
from bpe.vocabulary import Vocabulary
if sys.argv[2:]:
    Vocabulary.restore = lambda *arguments, **more: sys.exit("found")
tokenizer_cache._AT_LEAST = 0
print(Tokenizer.from_file(sys.argv[1]).vocab_size)
"""


def test_another_state_of_the_package_finds_nothing(tmp_path: Path) -> None:
    package = tmp_path / "copy" / "bpe"
    shutil.copytree(ROOT / "bpe", package, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "tokenizer.json"
    save(path, PARTS["merges"])

    def run(*arguments: str) -> Any:
        settings = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(package.parent)}
        return subprocess.run(
            [sys.executable, "-c", CHANGED, str(path), *arguments],
            env=os.environ | settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    size = f"{PARTS['merges'].vocabulary.size}\n"
    assert run().stdout == size
    assert run("stop").stderr == "found\n"
    module = package / "vocabulary.py"
    module.write_text(module.read_text() + "# another state\n")
    assert run("stop").stdout == size
