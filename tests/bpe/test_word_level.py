"""The word-level tokenizer: where it splits, what it knows, what it gives back, what it refuses."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from nasty import nasty_texts, word_texts

from bpe.errors import EncodingError, UnsupportedTokenizerError, VocabularyError
from bpe.word_level import SPECIAL_TOKENS, WordLevelTokenizer, create_vocabulary, split

pytestmark = pytest.mark.usefixtures("few_ranges")

TEXT = 'The cat -- a "small" one -- sat on the mat; did it?'

def test_a_vocabulary_is_sorted_and_the_most_frequent_stay() -> None:
    texts = ["b a b c", "c b d"]
    assert create_vocabulary(texts) == ["a", "b", "c", "d"]
    assert create_vocabulary(texts, 3) == ["a", "b", "c"]
    assert create_vocabulary(reversed(texts), 3) == ["a", "b", "c"]
    assert create_vocabulary(texts, 0) == create_vocabulary([]) == []
    assert create_vocabulary({"b a", "c"}) == create_vocabulary(["c", "b a"]) == ["a", "b", "c"]
    assert WordLevelTokenizer.create_vocabulary(texts, 1) == ["b"]
    assert create_vocabulary(["a<|endoftext|>b <|x|> <|unk|>"]) == ["<|x|>", "a", "b"]
    with pytest.raises(TypeError, match=r"texts, found one text|texts: should be a l"):
        create_vocabulary("abc")
    with pytest.raises(VocabularyError, match="max_size is -1: expected 0 or more"):
        create_vocabulary(["abc"], -1)


@pytest.fixture
def tokenizer() -> WordLevelTokenizer:
    return WordLevelTokenizer(TEXT)


def test_unknown_words_and_special_tokens(tokenizer: WordLevelTokenizer) -> None:
    n, special = len(set(split(TEXT))), tokenizer.special_tokens
    assert special == {text: n + i for i, text in enumerate(SPECIAL_TOKENS)}
    assert tokenizer.vocab_size == len(tokenizer.vocab) == n + 5
    assert tokenizer.vocab[n + 4] == b"<|endoftext|>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|bos|>", "<|endoftext|>")
    assert (tokenizer.pattern, tokenizer.unicode_version) == ("word-level", "16.0.0")
    unknown, end, cat = n, n + 4, tokenizer.vocabulary.index("cat")
    assert tokenizer.encode("cat dog<|endoftext|>cat") == [cat, unknown, end, cat]
    assert tokenizer.encode_ordinary("cat <|endoftext|> cat") == [cat, unknown, cat]
    assert tokenizer.encode("cat<|bos|>cat", ["<|endoftext|>"]) == [unknown]
    found = tokenizer.encode("<|bos|> cat<|endoftext|>", ["<|bos|>"])
    assert found == [special["<|bos|>"], unknown]
    assert tokenizer.encode("") == tokenizer.encode(" \n") == []


@given(texts=nasty_texts(max_texts=5))
def test_every_way_to_encode_gives_the_same(texts: list[str]) -> None:
    tokenizer = WordLevelTokenizer(create_vocabulary([*texts[::2], TEXT], 20))
    expected = [tokenizer.encode(text) for text in texts]
    ids, offsets = tokenizer.encode_batch_to_numpy(texts)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert tokenizer.encode_batch(texts) == expected
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected
    for text, wanted in zip(texts, expected, strict=True):
        assert tokenizer.encode_to_numpy(text).tolist() == wanted
        assert list(tokenizer.encode_iterable([text[:3], text[3:]])) == wanted
        assert tokenizer.count_tokens(text) == len(wanted)
    data = [text.encode() for text in texts]
    places = np.cumsum([0, *(size for text in data for size in (len(text), 2))], dtype=np.int64)
    buffer, spans = np.frombuffer(b"--".join(data), np.uint8), places[:-1].reshape(-1, 2)
    encoder = tokenizer.new_encoder(np.dtype(np.uint16))
    ids, ends = encoder.encode(buffer, spans, prefix_id=7)
    assert ids.dtype == np.uint16
    around = [[7, *tokenizer.encode_ordinary(text)] for text in texts]
    assert [ids[a:b].tolist() for a, b in pairwise(ends)] == around


def test_ids_that_do_not_fit(tokenizer: WordLevelTokenizer) -> None:
    encoder = tokenizer.new_encoder(np.dtype(np.uint16))
    buffer, offsets = np.frombuffer(b"a", np.uint8), np.array([[0, 1]])
    with pytest.raises(EncodingError, match=r"suffix_id is 65,536: .* the largest of uint16"):
        encoder.encode(buffer, offsets, suffix_id=2**16)
    large = WordLevelTokenizer([f"w{i}" for i in range(2**16)])
    with pytest.raises(EncodingError, match=r"largest_id is 65,540: .* the largest of uint16"):
        large.new_encoder(np.dtype(np.uint16))
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(EncodingError, match=f"token id {wrong} is not in the vocabulary"):
            tokenizer.decode([0, wrong])


@given(text=word_texts)
def test_what_is_decoded_encodes_to_the_same_ids(text: str) -> None:
    tokenizer = WordLevelTokenizer(create_vocabulary([text]))
    ids = tokenizer.encode(text)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids
    assert tokenizer.decode_bytes(np.array(ids, np.uint16)) == tokenizer.decode(ids).encode()


def test_decoding_puts_marks_to_their_words() -> None:
    text = """Well -- "no", he said ( twice ) ! It's: "a_b"; "c" ?<|endoftext|>"d" ("e")."""
    tokenizer = WordLevelTokenizer(text)
    expected = (
        """Well -- " no", he said ( twice)! It' s: " a _ b"; " c"? <|endoftext|> " d" ( " e")."""
    )
    assert tokenizer.decode(tokenizer.encode(text)) == expected
    # A quotation that is not ended does not change the next document.
    assert tokenizer.decode(tokenizer.encode('"d<|endoftext|>"d"')) == '" d <|endoftext|> " d"'


def test_text_that_is_none(tokenizer: WordLevelTokenizer) -> None:
    with pytest.raises(EncodingError, match=r"character 1 of the text is '\\ud800', a lone"):
        tokenizer.encode("a\ud800")
    with pytest.raises(TypeError, match="text: should be text; got b'a'"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(TypeError, match="texts: should be a list of texts; got"):
        tokenizer.encode_batch("a")
    with pytest.raises(VocabularyError, match="allowed_special names 'x', which is not a special"):
        tokenizer.encode("a", ["x"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b c"], "'b c' in the vocabulary is no word: expected text that split"),
        (["a,"], "'a,' in the vocabulary is no word"),
        ([""], "'' in the vocabulary is no word"),
        (["a\ud800"], "'a\\ud800' in the vocabulary is no word"),
        (["a", "b", "a"], "'a' is in the vocabulary twice: expected it once"),
        ({"a": 0, "b": 2}, "the ids of the vocabulary are not the numbers from 0 to 1: number the"),
    ],
)
def test_vocabularies_that_are_refused(words: Any, message: str) -> None:
    with pytest.raises(VocabularyError) as refused:
        WordLevelTokenizer(words)
    assert message in str(refused.value)


# --- files ---------------------------------------------------------------------------------------


def test_special_tokens_in_a_vocabulary_keep_their_ids(tmp_path: Path) -> None:
    """As of vocabularies that end with `<|endoftext|>` and `<|unk|>`; others come after them."""
    given = {"<|pad|>": 0, "Hello": 1, "world": 2, "<|endoftext|>": 3, "<|unk|>": 4}
    for vocabulary in (given, [*given]):
        tokenizer = WordLevelTokenizer(vocabulary)
        assert tokenizer.vocabulary == tuple(given)
        assert tokenizer.encode("Hello there<|endoftext|>world<|eos|>") == [1, 4, 3, 2, 6]
        assert tokenizer.encode_ordinary("Hello <|endoftext|>") == [1, 4]
        assert tokenizer.decode([1, 3, 2]) == "Hello <|endoftext|> world"
        assert (tokenizer.special_tokens["<|pad|>"], tokenizer.vocab_size) == (0, 7)
        tokenizer.save(tmp_path / "tokenizer.json")
        again = WordLevelTokenizer.from_file(tmp_path / "tokenizer.json")
        assert again == tokenizer
        assert again.special_tokens == tokenizer.special_tokens


@given(text=word_texts)
def test_it_reads_what_it_wrote(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "word_level.json"
    tokenizer = WordLevelTokenizer(create_vocabulary([text]))
    tokenizer.save(path)
    again = WordLevelTokenizer.from_file(path)
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode(text) == tokenizer.encode(text)
    assert tokenizer != text


def test_the_configuration_names_every_special_token(
    tokenizer: WordLevelTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [config[f"{role}_token"] for role in ("unk", "bos", "eos", "pad")]
    assert named == ["<|unk|>", "<|bos|>", "<|endoftext|>", "<|pad|>"]
    assert {*named, *config["extra_special_tokens"]} == set(SPECIAL_TOKENS)
    assert repr(tokenizer) == f"WordLevelTokenizer(vocab_size={tokenizer.vocab_size})"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"type": "BPE"}}, "it is no word-level tokenizer: expected 'WordLevel'"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is not what"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer is not what"),
        ({"added_tokens": []}, "added_tokens is not what"),
        ({"unk_token": "[UNK]"}, "model is not what WordLevelTokenizer.save writes: this is"),
        ({"unicode_version": "15.0.0"}, "model is not what"),
        ({"vocab": {"a": 0, "b": 2, "<|unk|>": 1}}, "added_tokens is not what"),
        ({"vocab": {"a": "0", "b": 1, "<|unk|>": 2}}, ": model.vocab: vocabulary: should be a"),
        ({"vocab": {"a": 0, "b": 7, "<|unk|>": 2}}, "ids of the vocabulary are not the numbers"),
        ({"vocab": {"a": 0, "b c": 1, "<|unk|>": 2}}, "'b c' in the vocabulary is no word"),
    ],
)
def test_other_files_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tokenizer.json"
    WordLevelTokenizer(["a", "b"]).save(path)
    top = json.loads(path.read_text())
    for name, value in change.items():
        (top if name in top else top["model"])[name] = value
    path.write_text(json.dumps(top))
    with pytest.raises(UnsupportedTokenizerError) as refused:
        WordLevelTokenizer.from_file(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)
