"""Datasets in a bucket: written document by document, compared, and read to write others."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from remote_cases import upload

from bpe import train_bpe
from preprocess import DatasetWriter, append, build, diff, drop, open_tokens
from preprocess.storage.remote import open_objects

TEXTS = [f"text {i}, and more of it: {'low lower newest ' * (i % 5)}" for i in range(60)]


def test_documents_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    tokenizer = train_bpe(TEXTS, 290, special_tokens=["<|endoftext|>"])
    places = f"{bucket}/data/train.bin", str(tmp_path / "train.bin")
    for place in places:
        with DatasetWriter(place, tokenizer=tokenizer, shard_tokens=200) as writer:
            for text in islice(TEXTS, writer.n_documents, None):
                writer.write(text)
    remote, here = (place.replace(".bin", ".json") for place in places)
    found = diff(remote, here)
    assert found["same"]
    file = open_tokens(here)
    dropped = [3, 4, 50]
    for place, out in ((remote, tmp_path / "x" / "train.bin"), (here, tmp_path / "y" / "z.bin")):
        drop(place, out=out, documents=dropped)
        left = open_tokens(out.with_suffix(".json"))
        assert left.n_documents == file.n_documents - len(dropped)
        assert left.doc(3).tolist() == file.doc(5).tolist()
        only = diff(here, str(out.with_suffix(".json")))["datasets"]
        assert next(iter(only.values()))["only_in_old"]["first"] == dropped
    drop(here, out=f"{bucket}/clean/train.bin", documents=dropped)
    assert diff(f"{bucket}/clean/train.json", str(tmp_path / "y" / "z.json"))["same"]
    # One without shards is known to the bucket since it was copied there.
    build(train=lambda: TEXTS, out=tmp_path / "whole", vocab_size=290, val_fraction=0)
    tokenizer = tmp_path / "whole" / "tokenizer.json"
    places = upload(tmp_path / "whole", bucket, "whole"), str(tmp_path / "whole")
    remote, here = (f"{place}/train.json" for place in places)
    for place in (remote, here):
        append(place, train=lambda: TEXTS[:7], tokenizer=tokenizer, shard_tokens=100)
    assert open_tokens(remote).manifest == open_tokens(here).manifest
    names = {key for key, _ in open_objects(bucket).keys("whole/")}
    assert names >= {"whole/train_00000.bin", "whole/train_00001.bin"}
    assert "whole/train.bin" not in names
