"""Megatron Core: `IndexedDataset`, and `GPTDataset` as its builder makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from answer import answer
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset


class Tokenizer:
    """What a trainer's tokenizer tells the dataset."""

    unique_identifiers = {"class": "tokenizer of the tests"}  # noqa: RUF012

    def __init__(self, vocab_size: int, end_id: int) -> None:
        self.vocab_size, self.eod, self.pad = vocab_size, end_id, vocab_size


def read(out: Path, length: int, vocab_size: int, end_id: int) -> dict[str, Any]:
    dataset = IndexedDataset(f"{out}/train")
    documents = [dataset[i] for i in range(len(dataset))]

    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=length,
        blend=([f"{out}/train"], None),
        split="1,0,0",
        path_to_cache=f"{out}/cache",
        tokenizer=Tokenizer(vocab_size, end_id),
        reset_position_ids=True,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [None, None, None]
    train = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]
    samples = [train[i] for i in range(len(train))]
    return {
        "documents": [document.tolist() for document in documents],
        "document_bounds": dataset.document_indices.tolist(),
        "document_order": train.document_index.tolist(),
        "order": train.shuffle_index.tolist(),
        "tokens": [sample["tokens"].tolist() for sample in samples],
        "labels": [sample["labels"].tolist() for sample in samples],
        "positions": [sample["position_ids"].tolist() for sample in samples],
    }


if __name__ == "__main__":
    answer(read)
