"""Tokenizers that Hugging Face's library runs: the same ids, the same law of the `.bin`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import trained
from published import END, made

from bpe import HuggingFaceTokenizer, Tokenizer, WordLevelTokenizer, load_tokenizer
from bpe.errors import EncodingError, TokenizerFileError, VocabularyError
from preprocess import build, open_tokens, pipeline
from preprocess.check.decode import decode_range
from preprocess.check.verify import verify

tokenizers = pytest.importorskip("tokenizers", reason="needs Hugging Face's tokenizers")

KINDS = ["unigram", "llama", "wordpiece", "wordlevel"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """KIND/tokenizer.json and its configuration."""
    root = tmp_path_factory.mktemp("kinds")
    for kind in KINDS:
        (root / kind).mkdir()
        made(kind).save(str(root / kind / "tokenizer.json"))
        config = {"eos_token": {"content": END}, "bos_token": "<s>"}
        (root / kind / "tokenizer_config.json").write_text(json.dumps(config))
    return root


def library(path: Path) -> Any:
    """Return what the library itself makes of a file."""
    theirs = tokenizers.Tokenizer.from_file(str(path))
    theirs.no_truncation()
    theirs.no_padding()
    return theirs


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says_of_itself(directory: Path, kind: str) -> None:
    path = directory / kind / "tokenizer.json"
    ours = load_tokenizer(path)
    theirs = library(path)
    vocab = theirs.get_vocab()
    models = {"unigram": "Unigram", "llama": "BPE", "wordpiece": "WordPiece"}
    assert isinstance(ours, HuggingFaceTokenizer)
    assert ours.pattern == f"huggingface:{models.get(kind, 'WordLevel')}"
    assert (ours.eos_token, ours.bos_token, ours.atomic_texts) == (END, "<s>", ())
    assert ours.special_tokens == {
        token: vocab[token] for token in ("<unk>", "<s>", END, "<|pad|>")
    }
    assert ours.vocab_size == max(vocab.values()) + 1
    assert ours.vocab == {i: t.encode() for t, i in sorted(vocab.items(), key=lambda x: x[1])}
    assert list(ours.vocab) == sorted(ours.vocab)
    assert repr(ours).startswith(f"HuggingFaceTokenizer('{ours.pattern}', vocab_size=")
    ours.save(directory / "saved.json")
    assert (directory / "saved.json").read_bytes() == path.read_bytes()
    again = load_tokenizer(directory / "saved.json")
    assert again.fingerprint == ours.fingerprint
    assert again.eos_token == END


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_cannot_forge_its_end(directory: Path, kind: str) -> None:
    ours = load_tokenizer(directory / kind)
    special = set(ours.special_tokens.values()) - {ours.special_tokens["<unk>"]}
    for text in (END, f"low {END} low", f"low{END}", f"{END}{END}", "<s> <|pad|>"):
        assert not special & set(ours.encode_ordinary(text))
        assert special & set(ours.encode(text))
    # The library does not know that law where the model has the token as an entry.
    theirs = library(directory / kind / "tokenizer.json")
    theirs.encode_special_tokens = True
    forged = ours.special_tokens[END] in theirs.encode(f"low {END}", add_special_tokens=False).ids
    assert forged == (kind != "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_the_bin(directory: Path, tmp_path: Path, kind: str) -> None:
    documents = [*trained.documents(), f"low {END} xyzzy", "a"]
    text = tmp_path / "text.txt"
    text.write_bytes("<|endoftext|>".join(documents).encode())
    result = build(
        train=text, val=text, out=tmp_path / "out", tokenizer=directory / kind, begin_of_text="<s>",
        unit_size=100, workers=2,
    )
    ours = load_tokenizer(directory / kind)
    theirs = ours.special_tokens
    expected, ends = [], []
    for document in documents:
        expected += [theirs["<s>"], *ours.encode_ordinary(document), theirs[END]]
        ends.append(len(expected))
    file = open_tokens(tmp_path / "out" / "train.bin", tokenizer=ours)
    assert file.tokens.tolist() == expected
    assert file.document_ends.tolist() == ends
    assert result.manifests["train"].pattern == ours.pattern
    assert result.stats["look_alikes"][END] == 2
    # Read back with the tokenizer.json that was put beside it.
    assert all(finding.sound for finding in verify(tmp_path / "out"))
    # Text is decoded document by document, whatever part is asked for.
    pieces = [piece.decode() for piece in decode_range(tmp_path / "out" / "train.bin")]
    starts = [0, *ends[:-1]]
    assert pieces == [
        ours.decode(expected[start:stop]) for start, stop in zip(starts, ends, strict=True)
    ]
    part = decode_range(tmp_path / "out" / "train.bin", start=ends[0] - 1, count=3)
    assert [piece.decode() for piece in part] == [
        ours.decode(expected[ends[0] - 1 : ends[0]]), ours.decode(expected[ends[0] : ends[0] + 2]),
    ]
    (counts,) = (c for _, c in pipeline.count(paths=text, tokenizer=directory / kind).sources)
    assert counts.tokens == len(expected) - 2 * len(documents)


def test_it_is_said_once(directory: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    top = json.loads((directory / "unigram" / "tokenizer.json").read_text())
    top["model"]["vocab"][5][1] -= 0.25  # a tokenizer that was never loaded before
    for number in range(3):
        (tmp_path / f"{number}.json").write_text(json.dumps(top))
        load_tokenizer(tmp_path / f"{number}.json")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert "model.type is not implemented or damaged: invalid enum value 'Unigram'" in said[0]
    assert "Hugging Face's library runs this tokenizer: the same ids, but slower" in said[0]
    assert said[1] == "its truncation is switched off, for it would change documents"
    assert said[2] == "its padding is switched off, for it would change documents"


def test_each_file_gets_the_engine_that_is_its_own(directory: Path, tmp_path: Path) -> None:
    from bpe.vocabulary import Vocabulary

    WordLevelTokenizer(["a"]).save(tmp_path / "words.json")
    assert isinstance(load_tokenizer(tmp_path / "words.json"), WordLevelTokenizer)
    native = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), ["<|endoftext|>"]))
    native.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path) == native
    # What our own engine does not implement, though it is a byte-level BPE.
    top = json.loads((tmp_path / "tokenizer.json").read_text())
    top["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(top))
    other = load_tokenizer(tmp_path)
    assert isinstance(other, HuggingFaceTokenizer)
    assert other.encode("THE naïve") == native.encode("the naïve")


# --- what is refused -----------------------------------------------------------------------------


@pytest.fixture
def unigram(directory: Path) -> dict[str, Any]:
    top: dict[str, Any] = json.loads((directory / "unigram" / "tokenizer.json").read_text())
    return top


def refused(path: Path, top: object) -> str:
    path.write_text(json.dumps(top))
    with pytest.raises(TokenizerFileError) as error:
        HuggingFaceTokenizer(path)
    return str(error.value)


def test_damaged_files(tmp_path: Path, unigram: dict[str, Any]) -> None:
    path = tmp_path / "t.json"
    assert refused(path, {}) == f"{path}: it has no 'model': expected a tokenizer.json"
    message = refused(path, unigram | {"model": {"type": "Unigram"}})
    assert message.startswith(f"{path}; Hugging Face's library cannot read it either: ")
    message = refused(path, unigram | {"pre_tokenizer": {"type": "Nothing"}})
    assert message.startswith(f"{path}; Hugging Face's library cannot read it either: ")


def test_without_the_library(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TokenizerFileError, match=r"model\.type is .* 'Unigram'.*'tokenmill\[hf\]'"):
        load_tokenizer(directory / "unigram")


def test_text_that_the_library_cannot_encode(directory: Path, tmp_path: Path) -> None:
    ours = load_tokenizer(directory / "unigram")
    assert isinstance(ours, HuggingFaceTokenizer)
    with pytest.raises(VocabularyError, match="recognises all special tokens or none"):
        ours.encode("a", ["<s>"])
    top = json.loads((directory / "wordlevel" / "tokenizer.json").read_text())
    del top["model"]["vocab"]["<unk>"]
    top["model"]["vocab"]["other"] = 0
    top["added_tokens"] = []
    (tmp_path / "t.json").write_text(json.dumps(top))
    with pytest.raises(EncodingError, match="Hugging Face's library cannot encode this text: "):
        HuggingFaceTokenizer(tmp_path / "t.json").encode("nothing known")
