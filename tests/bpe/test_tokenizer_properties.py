"""What a tokenizer tells of itself; its files, copies and threads."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import trained
from tokenizer_cases import SPECIAL, TOKENIZER

import bpe
from bpe import Tokenizer
from bpe.byte_level import to_byte_level
from bpe.errors import ArgumentError, PatternError, TokenizerFileError, VocabularyError
from bpe.vocabulary import Vocabulary

# --- making one ----------------------------------------------------------------------------------

BYTES = {byte: bytes([byte]) for byte in range(256)}


def test_special_tokens_take_the_ids_that_the_vocabulary_has_for_them() -> None:
    vocab = BYTES | {256: b"ab", 257: b"<|x|>", 258: b"cd"}
    tokenizer = Tokenizer(vocab, [(b"a", b"b"), (b"c", b"d")], ["<|x|>", "<|new|>"])
    assert tokenizer.special_tokens == {"<|x|>": 257, "<|new|>": 259}
    assert tokenizer.vocab == vocab | {259: b"<|new|>"}
    assert tokenizer.encode("ab<|x|>cd<|new|>") == [256, 257, 258, 259]
    assert Tokenizer(vocab, tokenizer.merges, {"<|x|>": 257, "<|new|>": 259}) == tokenizer


def test_a_special_token_that_spells_a_byte_is_a_token_of_its_own() -> None:
    tokenizer = Tokenizer(BYTES, [], ["\n"])
    assert tokenizer.encode("a\nb") == [97, 256, 98]
    assert tokenizer.encode_ordinary("a\nb") == [97, 10, 98]


def test_special_tokens_named_wrongly_are_refused() -> None:
    with pytest.raises(VocabularyError, match="'<x>' is named twice"):
        Tokenizer(BYTES, [], ["<x>", "<x>"])
    with pytest.raises(ArgumentError, match="special_tokens: should be a mapping or a list of tex"):
        Tokenizer(BYTES, [], "<x>")
    with pytest.raises(VocabularyError, match="is not valid Unicode"):
        Tokenizer(BYTES, [], ["\udc00"])


def test_what_it_is_can_be_asked() -> None:
    assert TOKENIZER.vocab_size == 256 + 600 + len(SPECIAL)
    assert TOKENIZER.vocab[97] == b"a"
    assert TOKENIZER.merges == list(trained.merges())
    assert TOKENIZER.eos_token == "<|endoftext|>"
    assert TOKENIZER.pattern == "gpt2"
    assert TOKENIZER.tie_break is None
    assert TOKENIZER.unicode_version == "16.0.0"
    assert TOKENIZER.vocabulary.special_tokens == TOKENIZER.special_tokens
    assert Tokenizer(BYTES, []).eos_token is None
    assert Tokenizer(BYTES, [], ["</s>"], eos_token="</s>").eos_token == "</s>"
    assert repr(Tokenizer(BYTES, [], ["</s>"])) == (
        "Tokenizer(vocab_size=257, pattern='gpt2', special_tokens=['</s>'])"
    )


def test_what_it_gives_away_are_copies() -> None:
    for copied in (TOKENIZER.vocab, TOKENIZER.special_tokens, TOKENIZER.merges):
        copied.clear()
    assert TOKENIZER.vocab
    assert TOKENIZER.special_tokens
    assert TOKENIZER.merges


def test_files_bring_it_back_and_the_fingerprint_is_of_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary(
        TOKENIZER.vocabulary, tie_break="huggingface", eos_token="|>"
    )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = Tokenizer.from_file(str(path))
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    assert again.eos_token == "|>"
    assert again.tie_break == "huggingface"
    assert again.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokenizer != TOKENIZER
    assert tokenizer != "tokenizer"


def test_copies_and_pickles_carry_no_cache() -> None:
    TOKENIZER.encode("warm " * 1000)
    pickled = pickle.dumps(TOKENIZER)
    assert len(pickled) < 100_000
    for other in (pickle.loads(pickled), copy.copy(TOKENIZER), copy.deepcopy(TOKENIZER)):
        assert other == TOKENIZER
        assert other.encode("naïve <|endoftext|>") == TOKENIZER.encode("naïve <|endoftext|>")


def test_gpt2_files(tmp_path: Path) -> None:
    merges = trained.merges()
    tokens = [*BYTES.values(), *(left + right for left, right in merges)]
    vocab = {to_byte_level(token): index for index, token in enumerate(tokens)}
    (tmp_path / "v.json").write_text(json.dumps(vocab | {"<|endoftext|>": 856}), encoding="utf-8")
    lines = [" ".join(map(to_byte_level, pair)) for pair in merges]
    (tmp_path / "m.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n", encoding="utf-8")
    tokenizer = Tokenizer.from_gpt2_files(tmp_path / "v.json", tmp_path / "m.txt")
    assert tokenizer == Tokenizer.from_vocabulary(Vocabulary.from_merges(merges, ["<|endoftext|>"]))
    named = Tokenizer.from_gpt2_files(
        tmp_path / "v.json", tmp_path / "m.txt", ["<|endoftext|>", "<|pad|>"], eos_token="<|pad|>"
    )
    assert named.special_tokens == {"<|endoftext|>": 856, "<|pad|>": 857}
    (tmp_path / "v.json").write_text(json.dumps(vocab | {"日本": 856}), encoding="utf-8")
    assert Tokenizer.from_gpt2_files(tmp_path / "v.json", tmp_path / "m.txt").special_tokens == {
        "日本": 856
    }
    del vocab["a"]
    (tmp_path / "v.json").write_text(json.dumps(vocab), encoding="utf-8")
    with pytest.raises(
        TokenizerFileError, match=r"v.json with .*m.txt: .* bytes in UTF-8 have no token"
    ):
        Tokenizer.from_gpt2_files(tmp_path / "v.json", tmp_path / "m.txt")


def test_a_file_of_ranks(tmp_path: Path) -> None:
    ranks = TOKENIZER.vocabulary.ranks()
    path = tmp_path / "x.tiktoken"
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items()]
    path.write_text("".join(lines))
    tokenizer = Tokenizer.from_tiktoken(path, pattern="gpt2", special_tokens=SPECIAL)
    assert tokenizer.special_tokens == TOKENIZER.special_tokens
    text = trained.documents()[-1]
    assert tokenizer.encode(text) == TOKENIZER.encode(text)
    with pytest.raises(PatternError, match="does not say how text is split: pass pattern="):
        Tokenizer.from_tiktoken(str(path))


# --- several threads, and a light import ---------------------------------------------------------


def test_one_tokenizer_serves_several_threads() -> None:
    tokenizer = Tokenizer.from_vocabulary(TOKENIZER.vocabulary)
    texts = [f"{text} {number}" for number in range(10) for text in trained.documents()]
    expected = [TOKENIZER.encode(text) for text in texts]
    got: dict[int, list[list[int]]] = {}
    start = threading.Barrier(4)

    def encode_all(number: int) -> None:
        start.wait()
        got[number] = [tokenizer.encode(text) for text in texts]

    threads = [threading.Thread(target=encode_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[number] == expected for number in range(4)] == [True] * 4


def test_encoders_share_tables_and_nothing_else() -> None:
    first, second = TOKENIZER.new_encoder(), TOKENIZER.new_encoder()
    assert first is not second
    buffer = np.frombuffer(b"some text", np.uint8)
    ids, offsets = first.encode(buffer, np.array([[0, len(buffer)]]))
    assert ids.tolist() == second.encode(buffer, np.array([[0, len(buffer)]]))[0].tolist()
    assert offsets.tolist() == [0, len(ids)]


def test_the_public_names_are_there() -> None:
    assert sorted(bpe.__all__) == sorted(set(bpe.__all__))
    assert set(bpe.__all__) <= set(dir(bpe))
    for name in bpe.__all__:
        assert getattr(bpe, name) is not None
    with pytest.raises(AttributeError, match="module 'bpe' has no attribute 'nothing'"):
        bpe.nothing  # noqa: B018 - the access is what is tested


def test_importing_bpe_loads_nothing_heavy() -> None:
    heavy = "numpy numba pyarrow torch tokenizers transformers tiktoken"
    code = f"import sys, bpe; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
