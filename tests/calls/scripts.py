"""Calls in the spelling of notebooks, NPZ scripts, pickled dumps, CS336 and nanoGPT."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
from inputs import END, TEXTS, ids_of, same

from bpe import TokenmillError


def run(command: str) -> str:
    """Run a command, and return what it printed."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def notebook_windows() -> None:
    import tiktoken
    import tokenizers
    import torch
    import transformers

    import bpe
    from preprocess import WindowDataset, window_loader

    text = "".join(TEXTS[:4]) + "<|endoftext|>" + "".join(TEXTS[4:6])
    ours = bpe.train_bpe("train.txt", vocab_size=600, special_tokens=["<|endoftext|>"])
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=ours.to_huggingface())
    kinds = [ours, ours.to_tiktoken(), ours.to_huggingface(), theirs]
    assert isinstance(kinds[1], tiktoken.Encoding)
    assert isinstance(kinds[2], tokenizers.Tokenizer)
    ids = ours.to_tiktoken().encode(text, allowed_special={"<|endoftext|>"})
    starts = range(0, len(ids) - 256, 128)
    for tokenizer in kinds:
        dataset = WindowDataset(text, tokenizer, max_length=256, stride=128)
        assert len(dataset) == len(starts)
        for (x, y), start in zip((dataset[n] for n in range(len(dataset))), starts, strict=True):
            assert x.tolist() == ids[start : start + 256]
            assert y.tolist() == ids[start + 1 : start + 257]
        loader = window_loader(
            text, tokenizer, batch_size=4, max_length=256, stride=128, shuffle=True, drop_last=True,
            num_workers=0,
        )
        assert len(loader) == len([*loader]) == len(starts) // 4
        x, y = next(iter(loader))
        assert (x.shape, y.shape, x.dtype) == ((4, 256), (4, 256), torch.int64)
        some = window_loader(
            text, tokenizer, batch_size=4, max_length=256, stride=128, shuffle=False,
            drop_last=False, num_workers=0,
        )
        sizes = [len(x) for x, _ in some]
        assert (len(some), len(sizes)) == (-(-len(starts) // 4),) * 2
        assert sum(sizes) == len(starts)
    # A tokenizer that has no such token reads it as text.
    plain = transformers.AutoTokenizer.from_pretrained("tok")
    assert len(WindowDataset(text, plain, max_length=256, stride=128))


def npz_script() -> None:
    run("tokenmill build --train posts --text-preset title-text --tokenizer tok --val-fraction 0"
        " --out dataset --batch-size 500 --workers 4 --max-minutes 10")  # fmt: skip
    rows = ("tokenmill rows --input dataset --output out --format npz --max-length 1024"
            " --stride 512 --workers 4 --max-minutes 10")  # fmt: skip
    run(rows)
    tokens = np.load("out/part_000.npz")
    assert tokens["input_ids"].dtype in (np.int32, np.int64)
    assert tokens["input_ids"].shape == tokens["attention_mask"].shape
    documents = []
    for name in ("first", "second"):
        for line in Path(f"posts/{name}.jsonl").read_text().splitlines():
            item = json.loads(line)
            title, text = item.get("title", "").strip(), item.get("text", "").strip()
            if document := "\n".join(each for each in (title, text) if each):
                documents.append(document)
    expected = []
    for document in documents:
        ids = ids_of(document, False) + ids_of(END, False)
        at = 0
        while True:
            expected.append(ids[at : at + 1024])
            if at + 1024 >= len(ids):
                break
            at += 512
    found = [
        row[mask.astype(bool)]
        for row, mask in zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
    ]
    same(found, expected)
    assert "up to date" in run(rows)


def pickled_dumps() -> None:
    run(
        "tokenmill build --data_file x.parquet --tokenizer tok --out dumped --val-fraction 0"
        " --chars_to_tokenize 100000 --starting_character 0"
    )
    run("tokenmill rows dumped --tokenization_folder testme --format pickle --seq_length 1536"
        " --drop-short")  # fmt: skip
    from preprocess import PickledTrainerDataset

    dataset = PickledTrainerDataset(["testme"])
    assert len(dataset) > 3
    assert all(dataset[n]["input_ids"].shape == (1536,) for n in range(len(dataset)))
    ids: list[int] = []
    n_characters = 0
    for text in TEXTS:
        if n_characters < 100_000:
            ids += ids_of(text, False) + ids_of(END, False)
        n_characters += len(text)
    same([dataset[n]["input_ids"].numpy() for n in range(len(dataset))],
         [ids[at : at + 1536] for at in range(0, len(ids) - 1535, 1536)])  # fmt: skip
    meta = json.loads(Path("testme/dump-meta_data.json").read_text())
    assert meta["samples"] == len(dataset)
    # A dump that is missing is noticed.
    shutil.copytree("testme", "less")
    rows = pickle.loads(Path("less/dump-0.pkl").read_bytes())
    Path("less/dump-0.pkl").write_bytes(pickle.dumps(rows[:-1]))
    try:
        PickledTrainerDataset(["less"])
    except TokenmillError as error:
        assert "samples" in str(error) or "rows" in str(error)
    else:
        raise AssertionError("fewer samples than in dump-meta_data.json")
    # Rows that are arrays.
    Path("arrays").mkdir()
    Path("arrays/dump-0.pkl").write_bytes(pickle.dumps([np.array(row) for row in rows]))
    arrays = PickledTrainerDataset(["arrays"])
    same([arrays[n]["input_ids"].numpy() for n in range(len(rows))], rows)
