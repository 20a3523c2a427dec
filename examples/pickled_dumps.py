"""Tokenize a slice of a Parquet file into pickled dumps, and train on them with the Trainer.

    python examples/pickled_dumps.py --data_file code.parquet --tokenization_folder dumps \
        --chars_to_tokenize 100000000 --starting_character 0 --seq_length 1536

Every row has seq_length tokens; the last is padded, which the labels leave out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import transformers

from preprocess import PickledTrainerDataset, build, write_rows


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Write the dumps, train for some steps, and return the losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data_file", required=True)
    parser.add_argument("--tokenization_folder", required=True)
    parser.add_argument("--chars_to_tokenize", type=int, default=100_000_000)
    parser.add_argument("--starting_character", type=int, default=0)
    parser.add_argument("--seq_length", type=int, default=1536)
    parser.add_argument("--vocab_size", type=int, default=32_000)
    parser.add_argument("--chunk_size", help="changes nothing: text is read in units")
    options = parser.parse_args(arguments)

    tokens = Path(options.tokenization_folder, "tokens")
    build(
        train=options.data_file, val_fraction=0, out=tokens, vocab_size=options.vocab_size,
        start_character=options.starting_character, max_characters=options.chars_to_tokenize,
    )  # fmt: skip
    (result,) = write_rows(
        tokens, out=Path(options.tokenization_folder, "dumps"), format="pickle",
        seq_length=options.seq_length,
    )  # fmt: skip
    dataset = PickledTrainerDataset([result.path])  # prints dump-meta_data.json
    assert dataset[0]["input_ids"].shape == dataset[-1]["labels"].shape == (options.seq_length,)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokens)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=options.seq_length, n_embd=32, n_layer=1, n_head=2
    )
    training = transformers.TrainingArguments(
        str(Path(options.tokenization_folder, "model")), max_steps=2,
        per_device_train_batch_size=2, logging_steps=1, report_to=[], use_cpu=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(config), training, train_dataset=dataset,
        processing_class=tokenizer, data_collator=transformers.default_data_collator,
    )  # fmt: skip
    trainer.train()
    return [each["loss"] for each in trainer.state.log_history if "loss" in each]


if __name__ == "__main__":
    print(main())
