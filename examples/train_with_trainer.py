"""Train a model of transformers with its Trainer, on packed documents.

    pip install 'tokenbin[torch,hf]' accelerate
    python examples/train_with_trainer.py data

The Trainer shuffles windows, divides them among processes, saves and resumes by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from preprocess import Sampler, WindowDataset, open_tokens

CONTEXT_LENGTH = 128


def main(data: str, max_steps: int = 100) -> Trainer:
    """Train on the train.bin of a directory."""
    file = open_tokens(Path(data) / "train.bin")
    end_of_text = file.manifest.end_of_text_id
    sampler = Sampler(
        file,
        global_batch_size=1,  # the Trainer makes batches
        context_length=CONTEXT_LENGTH,
        windows="packed",
        order="sequential",  # the Trainer shuffles
        fields=("input_ids", "labels", "position_ids"),
    )
    config = GPT2Config(
        vocab_size=file.vocab_size, n_positions=CONTEXT_LENGTH, n_embd=64, n_layer=2, n_head=2,
        bos_token_id=end_of_text, eos_token_id=end_of_text,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="checkpoints/trainer", per_device_train_batch_size=16, max_steps=max_steps,
        learning_rate=1e-3, logging_steps=10, save_steps=50, report_to=[],
        dataloader_pin_memory=torch.cuda.is_available(),
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=WindowDataset(sampler))
    trainer.train(resume_from_checkpoint=any(Path("checkpoints/trainer").glob("checkpoint-*")))
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
