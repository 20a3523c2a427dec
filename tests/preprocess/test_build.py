"""`build`, `train`, `encode`, `count`: the law of the `.bin`, whatever the workers and units."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import digests
import numpy as np
import pytest
import tiktoken
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from torture import contents

from bpe import Tokenizer, reference
from bpe.errors import CorpusError, TokenmillError
from preprocess import build, open_tokens, pipeline
from preprocess.run.encode_pass import SpecialTokenError

pytestmark = pytest.mark.usefixtures("few_ranges")

END = "<|endoftext|>"
OUTPUTS = ["tokenizer.json", "tokenizer_config.json", "train.bin", "train.docs", "train.json"]
PIECES = ["a", "b", "aa", "\n", "\n\n", " ", "word", "é", "日本", "<|end", "1 2", "b a"]
OUTPUTS += ["val.bin", "val.docs", "val.json"]


def some_text(seed: int, n_documents: int, separator: str = END) -> str:
    """Documents of words, some long, some empty, some with odd characters and look-alikes."""
    chosen = random.Random(seed)
    words = ["the", "low", "lower", "newest", "it's", "naïve", "日本語", "42", "—", "<|pad|>"]
    words += ["\n", "  ", "été"]
    documents = []
    for _ in range(n_documents):
        length = chosen.choice([0, 1, 3, 40, 400])
        documents.append(" ".join(chosen.choice(words) for _ in range(length)))
    return separator.join(documents)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with train/a.txt, of several blocks of digests, train/b/c.txt and val.txt."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "train" / "b").mkdir(parents=True)
    (root / "train" / "a.txt").write_text(some_text(1, 180))
    (root / "train" / "b" / "c.txt").write_text(some_text(2, 30))
    (root / "val.txt").write_text(some_text(3, 20))
    return root


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    paths = [corpus / "train"]
    pipeline.train(paths=paths, out=path, vocab_size=300, special_tokens=["<|pad|>"], workers=1)
    return path


def split(path: Path, separator: str = END) -> list[str]:
    return path.read_text().split(separator)


def expected_ids(documents: list[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids and document ends, by tiktoken."""
    encoding: tiktoken.Encoding = tokenizer.to_tiktoken()
    ids: list[int] = []
    ends: list[int] = []
    for document in filter(None, documents):
        ids += [*encoding.encode_ordinary(document), tokenizer.special_tokens[END]]
        ends.append(len(ids))
    return ids, ends


def test_build_trains_encodes_and_reports(corpus: Path, tmp_path: Path) -> None:
    result = build(
        train=corpus / "train", val=[corpus / "val.txt"], out=tmp_path, vocab_size=300, workers=2
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*OUTPUTS, "stats.json"])
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert tokenizer == result.tokenizer
    assert tokenizer.eos_token == END
    train_documents = split(corpus / "train" / "a.txt") + split(corpus / "train" / "b" / "c.txt")
    assert tokenizer.merges == reference.train(train_documents, 300, [END])
    for name, documents in (("train", train_documents), ("val", split(corpus / "val.txt"))):
        file = open_tokens(tmp_path / f"{name}.bin", tokenizer=tokenizer)
        ids, ends = expected_ids(documents, tokenizer)
        assert file.tokens.tolist() == ids
        assert file.document_ends.tolist() == ends
        manifest = result.manifests[name]
        assert manifest == file.manifest
        assert manifest.n_bytes == sum(len(document.encode()) for document in documents)
        assert manifest.end_of_text_id == 299
        assert manifest.begin_of_text_id is None
    sources = result.manifests["train"].sources
    assert [source["name"] for source in sources] == ["a.txt", "b/c.txt"]
    for source in sources:
        data = (corpus / "train" / source["name"]).read_bytes()
        assert source["bytes"] == len(data)
        assert source["digest"] == digests.digest_of_source(data)
    stats = json.loads((tmp_path / "stats.json").read_text())
    every = [*train_documents, *split(corpus / "val.txt")]
    assert stats["files"] == 3
    assert stats["documents"] == sum(map(bool, every))
    assert stats["empty_documents"] == every.count("")
    assert stats["tokens"] == sum(m.n_tokens for m in result.manifests.values())
    assert stats["bytes_per_token"] == pytest.approx(stats["bytes"] / stats["tokens"])
    assert stats["peak_memory_bytes"] > 10**6
    assert stats["cpu_seconds"] > 0
    assert [stage["name"] for stage in stats["stages"]] == [
        "counting", "merging", "encoding train", "encoding val",
    ]  # fmt: skip
    assert stats["outputs"]["val"]["documents"] == sum(map(bool, split(corpus / "val.txt")))
    assert sum(source["tokens"] for source in stats["sources"]) == stats["tokens"]
    assert any(line.startswith("train: ") for line in result.lines)


@pytest.mark.parametrize(
    "options",
    [{}, {"val_fraction": 0.2, "on_invalid_utf8": "skip"}, {"pattern": r"\p{L}+|\s+|[^\p{L}\s]"}],
)
def test_workers_and_units_change_nothing(
    corpus: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    if "val_fraction" not in options:
        options = options | {"val": corpus / "val.txt"}
    built = []
    for number, (workers, unit_size) in enumerate([(1, "256MiB"), (2, 900), (7, 100)]):
        out = tmp_path / str(number)
        build(
            train=corpus / "train", out=out, vocab_size=300, workers=workers, unit_size=unit_size,
            special_tokens=["<|pad|>", "low lower"], **options,
        )
        stats = json.loads((out / "stats.json").read_text())
        built.append((contents(out), stats["look_alikes"], stats["empty_documents"]))
    assert all(each == built[0] for each in built)
    assert built[0][1]["<|pad|>"] > 100
    assert built[0][1]["low lower"] > 10


@settings(max_examples=30)
@given(
    pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=40),
    separator=st.sampled_from(["\n\n", "aa", END, "", " "]),
    unit_size=st.integers(1, 40),
    workers=st.sampled_from([1, 2]),
    begin=st.booleans(),
)
def test_the_law_of_the_bin(
    tokenizer: Path, tmp_path_factory: pytest.TempPathFactory, pieces: list[str], separator: str,
    unit_size: int, workers: int, begin: bool,
) -> None:
    directory = tmp_path_factory.mktemp("law")
    text = "".join(pieces)
    (directory / "text").write_text(text)
    documents = [d for d in (text.split(separator) if separator else [text]) if d]
    options = {
        "paths": directory / "text", "tokenizer": tokenizer, "out": directory / "x.bin",
        "separator": separator, "unit_size": unit_size, "workers": workers,
        "begin_of_text": "<|pad|>" if begin else None,
    }
    if not documents:
        with pytest.raises(CorpusError, match="no document for x"):
            pipeline.encode(**options)
        return
    result = pipeline.encode(**options)
    loaded = Tokenizer.from_file(tokenizer)
    specials = loaded.special_tokens
    ids: list[int] = []
    ends: list[int] = []
    for document in documents:
        ids += [specials["<|pad|>"]] if begin else []
        ids += [*loaded.encode_ordinary(document), specials[END]]
        ends.append(len(ids))
    file = open_tokens(directory / "x.bin", tokenizer=loaded)
    assert file.tokens.tolist() == ids
    assert file.document_ends.tolist() == ends
    assert result.manifests["x"].begin_of_text_id == (specials["<|pad|>"] if begin else None)
    assert np.memmap(directory / "x.bin", np.uint16, "r").tolist() == ids


def test_validation_documents_are_taken_out_of_train_by_their_hash(
    corpus: Path, tmp_path: Path
) -> None:
    result = build(train=corpus / "train", val_fraction=0.2, out=tmp_path, vocab_size=290)
    documents = split(corpus / "train" / "a.txt") + split(corpus / "train" / "b" / "c.txt")
    below = 0.2 * 2**64
    sides: dict[str, list[str]] = {"train": [], "val": []}
    for document in documents:
        in_val = xxhash.xxh3_64_intdigest(document.encode()) < below
        sides["val" if in_val else "train"].append(document)
    assert result.tokenizer.merges == reference.train(sides["train"], 290, [END])
    for name, chosen in sides.items():
        ids, ends = expected_ids(chosen, result.tokenizer)
        file = open_tokens(tmp_path / f"{name}.bin")
        assert file.tokens.tolist() == ids
        assert file.document_ends.tolist() == ends


@pytest.mark.parametrize(
    ("text", "separator", "special_token"),
    [("ab\n\n\n\nab ab", "\n\n", "\n\n\n"), ("ab<s><s>ab ab", "<s>", "<s><")],
)
def test_what_stands_between_documents_is_not_counted(
    tmp_path: Path, text: str, separator: str, special_token: str
) -> None:
    (tmp_path / "text").write_text(text)
    special_tokens = [separator, special_token]
    tokenizer, _ = pipeline.train(
        paths=tmp_path / "text", out=tmp_path / "tokenizer.json", separator=separator,
        end_of_text=separator, special_tokens=special_tokens, vocab_size=300, min_frequency=1,
    )
    expected = reference.train(["ab", "ab ab"], 300, special_tokens, min_frequency=1)
    assert tokenizer.merges == expected


def test_a_given_tokenizer_is_used_and_copied(
    corpus: Path, tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = build(
        train=corpus / "train", val=corpus / "val.txt", out=tmp_path, tokenizer=tokenizer,
        name="tiny", vocab_size=999,
    )
    assert result.tokenizer == Tokenizer.from_file(tokenizer)
    assert (tmp_path / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    assert open_tokens(tmp_path / "tiny_train.bin").manifest == result.manifests["train"]
    assert (tmp_path / "tiny_stats.json").exists()
    assert "not used: vocab_size (it has 300 tokens)" in caplog.text
    # A second corpus beside the first, with the same tokenizer, which is left alone.
    before = (tmp_path / "tokenizer.json").stat()
    for given_path in (tmp_path / "tokenizer.json", tokenizer):
        name = f"other{given_path == tokenizer}"
        build(
            train=corpus / "val.txt", val=corpus / "val.txt", out=tmp_path, tokenizer=given_path,
            name=name,
        )
    assert (tmp_path / "tokenizer.json").stat() == before


def test_the_end_of_text_is_the_users_or_the_tokenizers(corpus: Path, tmp_path: Path) -> None:
    result = build(
        train=corpus / "train", val=corpus / "val.txt", out=tmp_path / "1", vocab_size=300,
        end_of_text="</s>", begin_of_text="<s>", special_tokens=["<|pad|>"],
    )
    assert result.tokenizer.special_tokens == {"</s>": 297, "<s>": 298, "<|pad|>": 299}
    assert result.tokenizer.eos_token == "</s>"
    manifest = result.manifests["train"]
    assert (manifest.end_of_text_id, manifest.begin_of_text_id) == (297, 298)
    again = {"train": corpus / "train", "val": corpus / "val.txt"}
    again["tokenizer"] = tmp_path / "1" / "tokenizer.json"
    by_default = build(**again, out=tmp_path / "2").manifests["train"]
    assert (by_default.end_of_text_id, by_default.begin_of_text_id) == (297, None)
    chosen = build(**again, out=tmp_path / "3", end_of_text="<|pad|>").manifests["train"]
    assert chosen.end_of_text_id == 299


@pytest.mark.parametrize(
    ("policy", "documents"), [("replace", ["ok", "b�d�", "�"]), ("skip", ["ok"])]
)
def test_text_that_is_not_utf8(
    tmp_path: Path, tokenizer: Path, policy: str, documents: list[str]
) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"ok<|endoftext|>b\xffd\xe4\xb8<|endoftext|>\xc3")
    result = pipeline.encode(
        paths=path, tokenizer=tokenizer, out=tmp_path / "x.bin", on_invalid_utf8=policy
    )
    loaded = Tokenizer.from_file(tokenizer)
    assert open_tokens(tmp_path / "x.bin").tokens.tolist() == expected_ids(documents, loaded)[0]
    counted = (result.stats["replaced_sequences"], result.stats["skipped_documents"])
    assert counted == ((3, 0) if policy == "replace" else (0, 2))


@pytest.mark.parametrize("name", ["", "code"])
def test_what_an_overwritten_build_no_longer_makes_is_removed(
    corpus: Path, tmp_path: Path, tokenizer: Path, name: str
) -> None:
    """Validation files, shards, plans and bad records; nothing that another command wrote."""
    options: dict[str, Any] = {
        "train": corpus / "train", "tokenizer": tokenizer, "out": tmp_path / "out", "name": name,
    }
    out, stem = tmp_path / "out", f"{name}_" * bool(name)

    def names() -> set[str]:
        return {path.name for path in out.iterdir()}

    build(**options, val_fraction=0)
    wanted = names()
    build(**options, val_fraction=0.2, shard_tokens=900, on_bad_record="skip", overwrite=True)
    validation = names() - wanted
    assert {f"{stem}val.json", f"{stem}val_00000.bin", f"{stem}train_00001.bin"} <= validation
    plans = [f"{stem}val.{how}-32-{'0' * 16}.plan" for how in ("greedy", "best_fit-turns")]
    for kept in (f"{stem}val.txt", f"{stem}val_99999.bin", *plans):
        (out / kept).touch()
    pipeline.encode(paths=[corpus / "val.txt"], tokenizer=tokenizer, out=out / "other.bin")
    others = {f"{stem}val.txt", f"{stem}val_99999.bin"} | {
        f"other{x}" for x in (".bin", ".docs", ".json", "_stats.json")
    }
    build(**options, val_fraction=0, overwrite=True)
    assert names() == wanted | others
    build(**options, val_fraction=0.2, overwrite=True)
    manifest = out / f"{stem}val.json"
    (out / f"{stem}train.json").unlink()
    for path in out.glob(f"{stem}train.[bd]*"):
        path.unlink()
    with pytest.raises(TokenmillError, match=rf"{manifest.name}: exists; .*, or replace it"):
        build(**options, val_fraction=0)
    manifest.write_text(manifest.read_text() + " ")  # of somebody else
    build(**options, val_fraction=0)
    assert manifest.exists()


def test_the_default_corpus(tmp_path: Path) -> None:
    manifests = build(out=tmp_path, vocab_size=300).manifests
    assert manifests["train"].n_documents > 300
    assert manifests["val"].n_documents > 0
    (source,) = manifests["train"].sources
    assert source["name"].startswith("standard library of Python 3.")


def test_count_counts_by_file(corpus: Path, tokenizer: Path) -> None:
    report = pipeline.count(paths=corpus / "train", tokenizer=tokenizer, unit_size=100)
    loaded = Tokenizer.from_file(tokenizer)
    for source, counts in report.sources:
        documents = list(filter(None, split(corpus / "train" / source.name)))
        assert counts.documents == len(documents)
        assert counts.bytes == sum(len(document.encode()) for document in documents)
        assert counts.tokens == sum(len(loaded.encode_ordinary(document)) for document in documents)
    assert report.total().documents == sum(counts.documents for _, counts in report.sources)


def test_an_end_of_text_that_documents_could_spell_is_refused(tmp_path: Path) -> None:
    from bpe import Vocabulary

    base = Vocabulary.from_merges([(b"e", b"n"), (b"en", b"d")])
    # One entry of tokenizer.json, which the merges reach from ordinary text, too.
    tokenizer = Tokenizer.from_vocabulary(Vocabulary(base.tokens, base.merges, {"end": 257}))
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "text.txt").write_text("the end of it")
    with pytest.raises(SpecialTokenError, match="'end' is an ordinary token"):
        build(
            train=[tmp_path / "text.txt"], out=tmp_path / "out",
            tokenizer=tmp_path / "tokenizer.json", end_of_text="end",
        )
    assert not (tmp_path / "out").exists()
