"""What the calls in this directory are given: real text, a tokenizer, conversations."""

from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

TEXTS = [text for _, text in sorted(topics.items())][:60]
BEGIN, END, PAD = "<s>", "</s>", "<pad>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    """Write JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in records))


def make_tokenizer(directory: Path) -> None:
    """Save a tokenizer as transformers does, one that puts BEGIN and END around a text."""
    import tokenizers
    import transformers

    engine = tokenizers.ByteLevelBPETokenizer()
    engine.train_from_iterator(
        TEXTS, vocab_size=1200, special_tokens=[BEGIN, END, PAD, "<|user|>", "<|assistant|>"],
        show_progress=False,
    )
    engine._tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, 0), (END, 1)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine._tokenizer, bos_token=BEGIN, eos_token=END, pad_token=PAD,
        chat_template=TEMPLATE,
    ).save_pretrained(directory)


def make_inputs(directory: Path) -> None:
    """Make all inputs in a directory."""
    make_tokenizer(directory / "tok")
    for number in range(2):
        texts = TEXTS[number * 30 : number * 30 + 30]
        write_lines(directory / f"data/part-{number}.jsonl", [{"text": x} for x in texts])
    code = [{"code": Path(module.__file__).read_text()} for module in (json, json.decoder)]
    write_lines(directory / "code/all.jsonl", code)
    chats = [
        {"messages": [{"role": "user", "content": x[:80]}, {"role": "assistant", "content": x}]}
        for x in TEXTS[:20]
    ]
    write_lines(directory / "chats/all.jsonl", chats)
    some = [{"title": x[:20], "text": x} for x in TEXTS[:8]]
    some += [{"title": "only a title"}, {"text": "only a text"}, {"other": "none of both"}]
    write_lines(directory / "posts/first.jsonl", some[:6])
    write_lines(directory / "posts/second.jsonl", some[6:])
    (directory / "train.txt").write_text("<|endoftext|>".join(TEXTS[:50]))
    try:
        import pandas
    except ModuleNotFoundError:
        return
    pandas.DataFrame({"text": TEXTS}).to_parquet(directory / "x.parquet")


def ids_of(text: str, special: bool = True) -> list[int]:
    """Return the ids that transformers gives a text."""
    import transformers

    found: list[int] = transformers.AutoTokenizer.from_pretrained("tok")(
        text, add_special_tokens=special
    )["input_ids"]
    return found


def same(found: Any, expected: Any) -> None:
    """Check that two arrays, or lists of them, are equal."""
    assert len(found) == len(expected), (len(found), len(expected))
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other), (one, other)
