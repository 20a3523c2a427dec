"""Against Hugging Face: it loads our file with the same ids, and learns the same merges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trained
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import nasty_text, nasty_texts

from bpe import Tokenizer, reference, train_bpe
from bpe.byte_level import from_byte_level
from bpe.errors import UnsupportedTokenizerError, VocabularyError
from bpe.vocabulary import Vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")

SPECIAL = ["<|endoftext|>", "<|end", "<|", "<|endoftext|><|endoftext|>", " \n", "x<", "日本"]
OURS = Tokenizer.from_vocabulary(
    Vocabulary.from_merges(trained.merges("huggingface"), SPECIAL), tie_break="huggingface"
)

special_text = st.lists(
    st.one_of(nasty_text(4), st.sampled_from([*SPECIAL, "<", "|", "end", "oftext", ">"])),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "tokenizer.json"
    OURS.save(path)
    return path


@pytest.fixture(scope="module")
def theirs(saved: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(saved))


# --- encoding ------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(nasty_texts() | st.lists(special_text, max_size=5))
def test_nasty_text_with_special_tokens(theirs: tokenizers.Tokenizer, texts: list[str]) -> None:
    expected = [theirs.encode(text).ids for text in texts]
    assert OURS.encode_batch(texts) == expected
    assert theirs.decode_batch(expected, skip_special_tokens=False) == texts
    assert [OURS.decode(ids) for ids in expected] == texts


def test_code_points_side_by_side_and_between_letters_digits_and_spaces(
    theirs: tokenizers.Tokenizer,
) -> None:
    """All of the first two planes; in the others are long blocks of one class."""
    numbers = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 31)]
    characters = [*map(chr, numbers)]
    texts = []
    for first in range(0, len(characters), 1 << 10):
        part = characters[first : first + (1 << 10)]
        texts += [joint.join(part) for joint in ("", "a", "1", " ")]
    # The fast form leaves out the offsets, and most of the time.
    for text, encoding in zip(texts, theirs.encode_batch_fast(texts), strict=True):
        assert OURS.encode(text) == encoding.ids


def test_a_long_run_of_spaces_where_tiktoken_fails(theirs: tokenizers.Tokenizer) -> None:
    text = " " * 1_000_000 + "x"
    ids = OURS.encode(text)
    assert ids == theirs.encode(text).ids
    assert OURS.decode(ids) == text


# --- files ---------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(
        st.binary(min_size=2, max_size=6).map(lambda b: bytes(97 + x % 3 for x in b)), unique=True
    ),
    st.lists(st.text("abc ", max_size=30), max_size=10),
)
def test_ranks_written_as_merges_encode_the_same(tokens: list[bytes], texts: list[str]) -> None:
    """Or are refused, unless parts stand before wholes."""
    ranks = {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *tokens])}
    ours = Tokenizer.from_vocabulary(Vocabulary.from_ranks(ranks, {"<|x|>": 1000}))
    try:
        theirs = ours.to_huggingface()
    except VocabularyError:
        assert tokens != sorted(tokens, key=len)
        return
    texts += [token.decode() for token in tokens] + ["".join(texts)]
    assert ours.encode_batch(texts) == [theirs.encode(text).ids for text in texts]


def test_transformers_loads_the_directory_with_its_special_tokens(saved: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    theirs = transformers.AutoTokenizer.from_pretrained(str(saved.parent))
    assert theirs.eos_token == "<|endoftext|>"
    assert theirs.eos_token_id == OURS.special_tokens["<|endoftext|>"]
    assert set(theirs.all_special_tokens) == set(SPECIAL)
    assert set(theirs.all_special_ids) == set(OURS.special_tokens.values())
    for text in [*trained.documents(), "a<|endoftext|>b<|end x<日本", "\u3000 \n x ?"]:
        ids = theirs(text)["input_ids"]
        assert ids == OURS.encode(text)
        assert theirs.decode(ids) == text


def test_an_object_of_transformers_brings_its_configuration(saved: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(saved), bos_token=SPECIAL[1], eos_token=SPECIAL[0], pad_token=SPECIAL[0]
    )
    # Padding is of this call, not of the tokenizer.
    theirs(["a", "b c d"], padding=True, truncation=True, max_length=2)
    ours = Tokenizer.from_huggingface(theirs)
    assert (ours.bos_token, ours.eos_token) == (SPECIAL[1], SPECIAL[0])
    ours.save(tmp_path / "tokenizer.json")
    again = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert again.special_tokens_map == theirs.special_tokens_map
    assert again("x <|end")["input_ids"] == theirs("x <|end")["input_ids"]


def test_an_object_that_is_not_fast_is_refused() -> None:
    class Slow:
        def save_pretrained(self, directory: str) -> None:
            Path(directory, "vocab.txt").touch()

    with pytest.raises(
        UnsupportedTokenizerError, match=r"Slow: expected a fast tokenizer .* found"
    ):
        Tokenizer.from_huggingface(Slow())


def bpe_of_theirs(**options: object) -> tokenizers.Tokenizer:
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(**options))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = tokenizers.decoders.ByteLevel()
    return theirs


def test_the_settings_that_we_leave_out_have_the_values_that_we_think(saved: Path) -> None:
    # A file that says nothing of a setting means their default, which we must know.
    value = json.loads(saved.read_text(encoding="utf-8"))
    for key in ("dropout", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"):
        del value["model"][key]
    del value["pre_tokenizer"]["use_regex"], value["truncation"], value["padding"]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(value))
    text = trained.documents()[-1]
    assert theirs.encode(text).ids == OURS.encode(text)
    path = saved.with_name("sparse.json")
    path.write_text(json.dumps(value), encoding="utf-8")
    assert Tokenizer.from_file(path).encode(text) == theirs.encode(text).ids


# --- training ------------------------------------------------------------------------------------


def their_merges(
    documents: list[str], vocab_size: int, min_frequency: int = 2, limit: int | None = None
) -> list[tuple[bytes, bytes]]:
    theirs = bpe_of_theirs()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        max_token_length=limit,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    theirs.train_from_iterator(documents, trainer)
    merges = json.loads(theirs.to_str())["model"]["merges"]
    return [(from_byte_level(left), from_byte_level(right)) for left, right in merges]


def test_their_trainer_learns_what_the_reference_learns() -> None:
    assert their_merges(trained.documents(), 256 + 600) == list(trained.merges("huggingface"))


@settings(max_examples=200)
@given(
    st.lists(st.text("ab c\n1é", max_size=40), min_size=1, max_size=8), st.integers(1, 3),
    st.none() | st.integers(1, 7),
)  # fmt: skip
def test_on_small_corpora_as_well(
    documents: list[str], min_frequency: int, limit: int | None
) -> None:
    documents.append("abcd abcd")
    options: dict[str, Any] = {"min_frequency": min_frequency, "max_token_length": limit}
    learnt = reference.train(documents, 256 + 60, tie_break="huggingface", **options)
    assert learnt == their_merges(documents, 256 + 60, min_frequency, limit)
    assert learnt == train_bpe(documents, 256 + 60, tie_break="huggingface", **options).merges


@pytest.mark.parametrize(
    ("tie_break", "expected"),
    [("huggingface", [b"ab", b"cd"]), ("greatest-bytes", [b"cd", b"bcd", b" a"])],
)
def test_the_limit_of_a_token_is_that_of_the_tie_break(
    tie_break: str, expected: list[bytes]
) -> None:
    learnt = train_bpe(["abcd abcd abcd"], 300, tie_break=tie_break, max_token_length=3).merges
    assert [left + right for left, right in learnt] == expected


@settings(max_examples=60)
@given(nasty_texts(), nasty_texts(), st.booleans())
def test_an_extended_tokenizer_has_the_ids_of_huggingface(
    learnt: list[str], texts: list[str], ignore_merges: bool
) -> None:
    old = OURS.vocabulary
    vocabulary = Vocabulary(old.tokens, old.merges, old.special_tokens, ignore_merges=ignore_merges)
    small = Tokenizer.from_vocabulary(vocabulary)
    new = train_bpe([*learnt, "abab"], small.vocab_size + 30, ["<x>"], extend=small)
    theirs = tokenizers.Tokenizer.from_str(new.to_json())
    for text in [*texts, *learnt, "a<x>b"]:
        assert new.encode(text) == theirs.encode(text).ids
    assert new.special_tokens["<x>"] == new.vocab_size - 1


@settings(max_examples=60)
@given(nasty_texts(), nasty_texts())
def test_tokens_of_several_words_have_the_ids_of_huggingface(
    learnt: list[str], texts: list[str]
) -> None:
    learnt = [*learnt, "it isn't that it isn't so", "it isn't so that it is"]
    words = train_bpe(learnt, 280)
    phrases = Tokenizer.from_vocabulary(words.vocabulary, pattern="superwords")
    new = train_bpe(learnt, 320, extend=phrases)
    theirs = tokenizers.Tokenizer.from_str(new.to_json())
    for text in [*texts, *learnt]:
        assert new.encode(text) == theirs.encode(text).ids
