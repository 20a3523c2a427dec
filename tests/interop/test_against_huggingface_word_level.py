"""The word-level tokenizer beside Hugging Face's own engine, which reads the file it saves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nasty import nasty_text, word_texts
from published import check_ids

from bpe.word_level import SPECIAL_TOKENS, WordLevelTokenizer, create_vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="needs Hugging Face's tokenizers")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("word_level") / "tokenizer.json"


@given(
    known=st.lists(word_texts, max_size=5),
    texts=st.lists(st.one_of(word_texts, nasty_text(max_pieces=12)), max_size=10),
)
def test_same_ids(path: Path, known: list[str], texts: list[str]) -> None:
    ours = WordLevelTokenizer(create_vocabulary([*known, *texts[::2]], 30))
    ours.save(path)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    check_ids(ours, theirs, texts)
    assert theirs.get_vocab_size() == ours.vocab_size


def test_white_space_of_every_code_point(path: Path) -> None:
    ours = WordLevelTokenizer(["a"])
    ours.save(path)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    text = "".join(f"a{chr(c)}a." for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text)


def test_a_file_that_hugging_face_saved_anew_is_read(path: Path) -> None:
    ours = WordLevelTokenizer(create_vocabulary(["some words, and -- marks"]))
    ours.save(path)
    tokenizers.Tokenizer.from_file(str(path)).save(str(path))
    assert WordLevelTokenizer.from_file(path) == ours


def test_transformers_knows_the_special_tokens(path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    ours = WordLevelTokenizer(create_vocabulary(["some words, and -- marks"]))
    ours.save(path)
    theirs = transformers.AutoTokenizer.from_pretrained(str(path.parent))
    assert theirs.eos_token == ours.eos_token
    text = "".join(f"some{token}words " for token in SPECIAL_TOKENS)
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    decoded = theirs.decode(ours.encode(text), skip_special_tokens=True)
    assert decoded == " ".join(["some words"] * 5)
