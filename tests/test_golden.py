"""Golden digests: the bytes of every output for fixed texts and options, whatever else changes.

A digest here may change only when a change of the outputs is announced in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path
from typing import Any

import pytest

from bpe import train_bpe
from preprocess import build, pipeline

END = "<|endoftext|>"


def corpus_text(seed: int, n_documents: int) -> str:
    """Documents in several scripts with contractions, numbers, blanks and special-token text."""
    chosen = random.Random(seed)
    alphabets = ["etaoinshrdlu", "ETAOIN", "äöüßéè", "абвгде", "あいうえお漢字", "กขคงจ"]
    alphabets.append("0123456789")
    vocabulary = [
        "".join(chosen.choice(alphabet) for _ in range(chosen.randint(1, 9)))
        for alphabet in alphabets
        for _ in range(60)
    ]
    vocabulary += ["it's", "WE'LL", "don’t", "<|pad|>", "🎉🎉", "a\u0301", "\u00a0", "\t"]
    vocabulary += ["\n\n", "--"]
    documents = []
    for _ in range(n_documents):
        words = chosen.choices(vocabulary, k=chosen.choice([0, 1, 5, 60, 300]))
        documents.append(chosen.choice([" ", "  ", "\n", ""]).join(words))
    return END.join(documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("golden")
    (directory / "train").mkdir()
    (directory / "train" / "a.txt").write_text(corpus_text(1, 300))
    (directory / "train" / "b.txt").write_text(corpus_text(2, 60))
    (directory / "val.txt").write_text(corpus_text(3, 40))
    return directory


def digests(directory: Path) -> list[str]:
    """Each output but statistics and manifests, with its digest, as in `GOLDEN`."""
    return [
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        for path in sorted(directory.iterdir())
        if path.suffix in (".bin", ".docs") or path.name.startswith("tokenizer")
    ]


def golden(name: str) -> list[str]:
    return [line.strip() for line in re.split("[,\n]", GOLDEN[name]) if line.strip()]


BUILDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2_huggingface_ties": {"tie_break": "huggingface"},
    "cl100k_begin_of_text": {"pattern": "cl100k", "begin_of_text": "<|begin|>"},
    "o200k_special_tokens": {"pattern": "o200k", "special_tokens": ["<|pad|>", "<|x|>"]},
    "wide_ids": {"special_tokens": [f"<|{n}|>" for n in range(66_000)], "vocab_size": 66_700},
    "shards": {"shard_tokens": 20_000},
    "split_shards": {"shard_tokens": 20_000, "split_documents": True},
    "validation_file": {"val": "val.txt"},
    "no_separator": {"separator": "", "val_fraction": 0},
}

# Name of a build -> each output and the first 16 hexadecimal digits of its sha256.
GOLDEN = {
    "gpt2": """
        tokenizer.json 927684da42a9f38d, tokenizer_config.json 3b81ad49cae5017a
        train.bin f0fcd263385acf35, train.docs 5a943f675bbdaf42
        val.bin eef5982af463e8df, val.docs 213adcc7e09dd3a7
    """,
    "gpt2_huggingface_ties": """
        tokenizer.json 61c7ebce9f80510c, tokenizer_config.json 3b81ad49cae5017a
        train.bin 0932031b98cd8b35, train.docs 8dbef8116af7731c
        val.bin 9c99e0a2789a00a8, val.docs 55e5dde959663b32
    """,
    "cl100k_begin_of_text": """
        tokenizer.json c2df8b0d2797ee28, tokenizer_config.json 60aa4a0b2642cc6d
        train.bin 3511c1dddad8b7ee, train.docs 8458be216b2ab8bc
        val.bin 6414ab176f17eaf2, val.docs 90bcfebb03427448
    """,
    "o200k_special_tokens": """
        tokenizer.json 5a14372dd6563c58, tokenizer_config.json cf416831bedc839e
        train.bin 40d4279dbf52a1b2, train.docs 1d9f42a11e442854
        val.bin 5eb8e6498b8a0003, val.docs 634f70a6ed488f6b
    """,
    "wide_ids": """
        tokenizer.json 736b72e065b4a018, tokenizer_config.json 1aa9a5607b1f2913
        train.bin 7636b19d6ee89af4, train.docs 5a943f675bbdaf42
        val.bin 560f9f7f0fa86b86, val.docs 213adcc7e09dd3a7
    """,
    "shards": """
        tokenizer.json 927684da42a9f38d, tokenizer_config.json 3b81ad49cae5017a
        train_00000.bin fdd71332fdca1b8b, train_00000.docs df5d185fb8996004
        train_00001.bin 992b0140bfccbed9, train_00001.docs 9b517b001ced2811
        train_00002.bin 127767a02be5e7d1, train_00002.docs eea5c76c811a9dde
        train_00003.bin 8a0371b49e49ddad, train_00003.docs e51c3d7b8edc02d0
        val_00000.bin eef5982af463e8df, val_00000.docs 213adcc7e09dd3a7
    """,
    "split_shards": """
        tokenizer.json 927684da42a9f38d, tokenizer_config.json 3b81ad49cae5017a
        train_00000.bin 5875b020a293e70c, train_00000.docs df5d185fb8996004
        train_00001.bin 10a691b10d2b65f5, train_00001.docs f6bdf6e3c7f8799b
        train_00002.bin 5662be6472af2c10, train_00002.docs 46bdd9d74215e575
        train_00003.bin bc5323d015ec1868, train_00003.docs aecbb93f62468dbb
        val_00000.bin eef5982af463e8df, val_00000.docs 213adcc7e09dd3a7
    """,
    "validation_file": """
        tokenizer.json 20d0bac3a08b561e, tokenizer_config.json 3b81ad49cae5017a
        train.bin 853f1bcb4ec7eb78, train.docs 76edf3e56e6a76cf
        val.bin 3e9cefb66468c324, val.docs 7956dc431830cbfc
    """,
    "no_separator": """
        tokenizer.json 20d0bac3a08b561e, tokenizer_config.json 3b81ad49cae5017a
        train.bin 561d67b5ff5cad4d, train.docs 533ef1476adfcdd2
    """,
    "encode": """
        all.bin e94532f3a43a316f, all.docs 8d87f1bc979d6182
    """,
}


@pytest.mark.parametrize(("name", "workers"), [("gpt2", 1), *((name, 2) for name in BUILDS)])
def test_build_makes_the_golden_bytes(
    name: str, workers: int, corpus: Path, tmp_path: Path
) -> None:
    options = {"vocab_size": 700, "val_fraction": 0.1, "unit_size": 40_000} | BUILDS[name]
    if "val" in options:
        options["val"] = corpus / options["val"]
        del options["val_fraction"]
    build(train=[corpus / "train"], out=tmp_path / "out", workers=workers, **options)
    assert digests(tmp_path / "out") == golden(name)


def test_encode_makes_the_golden_bytes(corpus: Path, tmp_path: Path) -> None:
    """A vocabulary read from a file, whose entries the text does not reach in full."""
    vocabulary = train_bpe([corpus_text(4, 100)], vocab_size=900, special_tokens=[END])
    vocabulary.save(tmp_path / "tokenizer.json")
    pipeline.encode(
        paths=[corpus / "train", corpus / "val.txt"],
        tokenizer=tmp_path / "tokenizer.json",
        out=tmp_path / "out" / "all.bin",
    )
    assert digests(tmp_path / "out") == golden("encode")
