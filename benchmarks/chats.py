"""Conversations to token ids, through a chat template, beside transformers.

Law: both sides render the same conversations with the same template, and the ids are equal. Ours
makes a loss mask as well, and files. The first conversations, which load libraries and compile the
template, are not timed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import OURS, Clock, Job, Result, digest_of, documents, side
from benchmarks.token_files import new_directory

_TURNS = 6
_CHARACTERS = 200  # of a turn
_AT_MOST = 5_000_000  # bytes of text
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' }}{% if message['role'] == 'assistant'"
    " %}{% generation %}{{ message['content'] + '<|endoftext|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '\n' }}{% endif %}{% endfor %}"
)


def conversations(job: Job) -> Path:
    """Write pieces of the documents as turns, JSON Lines, if the file is not there."""
    path = job.directory / f"{job.corpus.stem}-chats.jsonl"
    if path.exists():
        return path
    turns = (
        text[at : at + _CHARACTERS]
        for text in documents(job.corpus)
        for at in range(0, len(text), _CHARACTERS)
    )
    roles = ("user", "assistant")
    with open(path, "w", encoding="utf-8") as file:
        rows: list[dict[str, str]] = []
        for turn in turns:
            rows.append({"role": roles[len(rows) % 2], "content": turn})
            if len(rows) == _TURNS:
                file.write(f"{json.dumps({'messages': rows})}\n")
                rows = []
            if file.tell() > _AT_MOST:
                break
    return path


@side("chats", OURS, package="transformers")
def chats_tokenbin(job: Job, clock: Clock) -> Result:
    """Ours: `encode`."""
    from preprocess import open_tokens
    from preprocess.pipeline import encode

    path, directory = conversations(job), new_directory(job)
    template = directory / "template.jinja"
    template.write_text(TEMPLATE)
    few = directory / "few.jsonl"
    few.write_text("".join(path.read_text("utf-8").splitlines(keepends=True)[:10]), "utf-8")

    def work(source: Path) -> Any:
        return encode(
            paths=[source], tokenizer=job.tokenizer, chat_template=str(template),
            workers=job.threads, out=directory / f"{source.stem}.bin", overwrite=True,
        )

    work(few)
    clock.time("chats", lambda: work(path))
    ids = open_tokens(directory / f"{path.stem}.bin").tokens
    return Result(path.stat().st_size, digest_of(np.asarray(ids).astype(np.int64)))


@side("chats", "apply_chat_template", package="transformers")
def chats_transformers(job: Job, clock: Clock) -> Result:
    """By transformers, one conversation after another; it makes no mask, and no files."""
    import transformers

    lines = conversations(job).read_text("utf-8").splitlines()
    rows = [json.loads(line)["messages"] for line in lines]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(job.tokenizer))
    tokenizer.chat_template = TEMPLATE

    def work(some: list[Any]) -> list[list[int]]:
        return [tokenizer.apply_chat_template(row, return_dict=False) for row in some]

    work(rows[:10])
    found = clock.time("chats", lambda: work(rows))
    ids = np.array([token for row in found for token in row], np.int64)
    return Result(conversations(job).stat().st_size, digest_of(ids))
