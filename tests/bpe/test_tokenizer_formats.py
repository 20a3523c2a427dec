"""The other formats: written and read back equal, and what they cannot hold refused by name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiktoken
import tiktoken.load
import trained
from nasty import SAMPLES

from bpe import AddedToken, Tokenizer, Vocabulary
from bpe.errors import PatternError, TokenizerFileError, VocabularyError

SPECIAL = ["<|endoftext|>", "<|pad|>"]
BASE = Vocabulary.from_merges(trained.merges(), SPECIAL)
TOKENIZER = Tokenizer.from_vocabulary(BASE)
TEXT = "".join(SAMPLES) + " the end of it\n"


def with_added(**flags: bool) -> Tokenizer:
    added = [*BASE.added_tokens, AddedToken("<x>", 2000, **flags)]
    return Tokenizer.from_vocabulary(Vocabulary(BASE.tokens, BASE.merges, added))


# --- .tiktoken -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["gpt2", "cl100k", "o200k"])
def test_ranks_are_written_and_read(pattern: str, tmp_path: Path) -> None:
    ours = Tokenizer.from_vocabulary(BASE, pattern=pattern)
    ours.save_tiktoken(tmp_path / "a.tiktoken")
    special = ours.special_tokens
    again = Tokenizer.from_tiktoken(
        str(tmp_path / "a.tiktoken"), pattern=pattern, special_tokens=special
    )
    assert again.encode(TEXT) == ours.encode(TEXT)
    theirs = tiktoken.Encoding(
        "a",
        pat_str=ours.to_tiktoken()._pat_str,
        mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(tmp_path / "a.tiktoken")),
        special_tokens=special,
    )
    assert theirs.encode_ordinary(TEXT) == ours.encode_ordinary(TEXT)
    assert Tokenizer.from_tiktoken(theirs) == again
    assert Tokenizer.from_tiktoken(theirs).pattern == pattern


def test_gaps_and_special_tokens_in_the_middle(tmp_path: Path) -> None:
    tokens = {i + (i >= 300) * 7: token for i, token in BASE.tokens.items()}
    ranks = {token: i for i, token in tokens.items()}
    theirs = tiktoken.Encoding(
        "gaps",
        pat_str=TOKENIZER.to_tiktoken()._pat_str,
        mergeable_ranks=ranks,
        # One is an ordinary pre-token, and one stands inside another.
        special_tokens={"<|a|>": 301, "the": 5000, "<|a|><|b|>": 4000},
    )
    ours = Tokenizer.from_tiktoken(theirs)
    for text in (TEXT, "the<|a|>the <|a|><|b|> thethe", "<|a|><|a|><|b|>"):
        assert ours.encode(text) == theirs.encode(text, allowed_special="all")
        assert ours.encode_ordinary(text) == theirs.encode_ordinary(text)
    assert len(ours.fingerprint) == 64
    # tokenizer.json has no two entries with one text.
    with pytest.raises(VocabularyError, match="'the' and the ordinary token b'the' have the same"):
        ours.save(tmp_path / "tokenizer.json")


def test_special_tokens_that_begin_alike() -> None:
    # tiktoken looks for one or the other first, as its hash table has them.
    refused = 0
    plain = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges())).to_tiktoken()
    for begin in ("<|end", "<a>", "x", "<|x|>", "<s>", "é", "<|", "[INST]"):
        special = {begin: 2000, f"{begin}oftext|>": 2001, f"{begin}>": 2002}
        ours = Tokenizer(BASE.tokens, BASE.merges, special)
        theirs = tiktoken.Encoding(
            "alike", pat_str=plain._pat_str, mergeable_ranks=plain._mergeable_ranks,
            special_tokens=special,
        )  # fmt: skip
        text = f"a{begin} {begin}oftext|>{begin}>>"
        if theirs.encode(text, allowed_special="all") == ours.encode(text):
            assert ours.to_tiktoken().encode(text, allowed_special="all") == ours.encode(text)
            assert Tokenizer.from_tiktoken(theirs).encode(text) == ours.encode(text)
            continue
        refused += 1
        with pytest.raises(VocabularyError, match=r"tiktoken gives \[.*\] for it, as it finds"):
            ours.to_tiktoken()
        with pytest.raises(VocabularyError, match=r"expected special tokens of which none begins"):
            Tokenizer.from_tiktoken(theirs)
    assert refused


def test_an_empty_token_is_never_looked_for() -> None:
    ours = Tokenizer(BASE.tokens | {999: b""}, BASE.merges, {"<|endoftext|>": 1000})
    assert ours.to_tiktoken().encode(TEXT) == ours.encode(TEXT) == TOKENIZER.encode(TEXT)
    assert ours.vocab_size == 1001


def test_a_name_that_tiktoken_does_not_know() -> None:
    with pytest.raises(TokenizerFileError, match=r"no encoding of tiktoken's .* o200k_base"):
        Tokenizer.from_tiktoken("gpt-99")


def test_an_encoding_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr(tiktoken, "get_encoding", fails)
    with pytest.raises(TokenizerFileError, match=r"cl100k_base: tiktoken cannot load .*no net"):
        Tokenizer.from_tiktoken("cl100k_base")
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: TOKENIZER.to_tiktoken(name))
    assert Tokenizer.from_tiktoken("gpt2").encode(TEXT) == TOKENIZER.encode(TEXT)


@pytest.mark.parametrize(
    ("before", "after", "special", "message"),
    [
        ("YQ== 97\n", "YQ== 98\n", {}, "tokens b'a' and b'b' share the rank 98: expected one"),
        ("YQ== 97\n", "", {}, "1 of the bytes in UTF-8 have no token, the first is b'a'"),
        ("", "", {"<|x|>": 97}, "special token '<|x|>'"),
    ],
)
def test_ranks_that_contradict_one_another(
    before: str, after: str, special: dict[str, int], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.tiktoken"
    TOKENIZER.save_tiktoken(path)
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(TokenizerFileError, match=re.escape(f"{path}: {message}")):
        Tokenizer.from_tiktoken(path, pattern="gpt2", special_tokens=special)


def test_what_ranks_cannot_say() -> None:
    for tokenizer in (with_added(special=False), with_added(lstrip=True)):
        with pytest.raises(VocabularyError, match="tiktoken cannot represent changes of text"):
            tokenizer.to_tiktoken()
    other = Tokenizer.from_vocabulary(BASE, pattern=r"\s+|\S+")
    with pytest.raises(PatternError, match="was written for Hugging Face"):
        other.to_tiktoken()


# --- vocab.json and merges.txt -------------------------------------------------------------------


def test_gpt2_files_are_written_and_read(tmp_path: Path) -> None:
    vocab, merges = tmp_path / "vocab.json", tmp_path / "merges.txt"
    TOKENIZER.save_gpt2_files(vocab, merges)
    again = Tokenizer.from_gpt2_files(vocab, merges, SPECIAL)
    assert again.vocabulary == BASE
    assert merges.read_text("utf-8").startswith("#version: 0.2\n")


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (Tokenizer.from_vocabulary(BASE, pattern="llama3"), "'llama3' is not gpt2, which is"),
        (with_added(single_word=True), "merges.txt cannot represent changes of text before"),
        (with_added(normalized=True), "merges.txt cannot represent changes of text before"),
        (
            Tokenizer.from_vocabulary(
                Vocabulary({**BASE.tokens, 3000: b"abcxyz"}, BASE.merges, {}, ignore_merges=True)
            ),
            "cannot represent ignore_merges, and some tokens are made by no",
        ),
        (
            Tokenizer.from_vocabulary(
                Vocabulary(BASE.tokens, BASE.merges, [AddedToken("<y>", 999, normalized=True)])
            ),
            "cannot say what the added token '<y>' is",
        ),
        (
            Tokenizer.from_vocabulary(Vocabulary(BASE.tokens, BASE.merges, {"Ġ": 999})),
            "'Ġ' would stand in vocab.json twice, with the ids 32 and 999: use another format",
        ),
    ],
)
def test_what_gpt2_files_cannot_say(tokenizer: Tokenizer, message: str, tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=message):
        tokenizer.save_gpt2_files(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert not list(tmp_path.iterdir())


# --- Hugging Face's hub --------------------------------------------------------------------------


def test_a_directory_is_a_name(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    assert Tokenizer.from_huggingface(tmp_path) == TOKENIZER


class _EntryNotFoundError(Exception):
    pass


class _LocalEntryNotFoundError(_EntryNotFoundError):
    pass


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is used of huggingface_hub; `asked` are the files that were downloaded."""

    def download(name: str, file: str) -> str:
        fake.asked.append((name, file))
        if not (tmp_path / file).exists():
            raise fake.missing(f"404: {file}")
        return str(tmp_path / file)

    fake = SimpleNamespace(
        asked=[],
        missing=_EntryNotFoundError,
        errors=SimpleNamespace(
            EntryNotFoundError=_EntryNotFoundError, LocalEntryNotFoundError=_LocalEntryNotFoundError
        ),
        try_to_load_from_cache=lambda name, file: None,
        hf_hub_download=download,
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


def test_a_name_on_the_hub(tmp_path: Path, hub: SimpleNamespace) -> None:
    TOKENIZER.save(tmp_path / "tokenizer.json")
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    assert hub.asked == [
        ("somebody/model", "tokenizer.json"),
        ("somebody/model", "tokenizer_config.json"),
    ]
    # What is in the cache is not asked for, nor what is known there not to exist.
    hub.try_to_load_from_cache = lambda name, file: str(tmp_path / file)
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    known = {"tokenizer.json": str(tmp_path / "tokenizer.json")}
    hub.try_to_load_from_cache = lambda name, file: known.get(file, object())
    assert Tokenizer.from_huggingface("somebody/model") == TOKENIZER
    assert len(hub.asked) == 2
    known.clear()
    with pytest.raises(
        TokenizerFileError, match=r"on Hugging Face's hub it has no tokenizer\.json"
    ):
        Tokenizer.from_huggingface("somebody/model")


def test_a_hub_that_gives_nothing(
    tmp_path: Path, hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (OSError, ValueError, _EntryNotFoundError):
        hub.missing = error
        with pytest.raises(TokenizerFileError, match=r"hub gave no tokenizer\.json: .*: 404"):
            Tokenizer.from_huggingface("somebody/model")
    # Without a configuration it is another tokenizer, so that there is none has to be certain.
    TOKENIZER.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").unlink()
    for error in (OSError, _LocalEntryNotFoundError):
        hub.missing = error
        with pytest.raises(TokenizerFileError, match=r"hub gave no tokenizer_config\.json: "):
            Tokenizer.from_huggingface("somebody/model")
    hub.missing = _EntryNotFoundError
    assert Tokenizer.from_huggingface("somebody/model").eos_token == TOKENIZER.eos_token
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(TokenizerFileError, match="hub, install huggingface_hub: pip"):
        Tokenizer.from_huggingface("somebody/model")


def test_an_object_that_is_no_tokenizer() -> None:
    with pytest.raises(TokenizerFileError, match=r"int: expected a tokenizers\.Tokenizer"):
        Tokenizer.from_huggingface(3)
