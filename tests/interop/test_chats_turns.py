"""What is trained on under templates without marks: as transformers with marks at the same places.

Each template here has marks; without them it writes the same text, so both sides are comparable.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from chat_cases import TEMPLATES, say
from hypothesis import given, settings
from hypothesis import strategies as st
from published import NATIVE, of_other_models

from bpe import train_bpe
from preprocess import ChatTemplateTransform, CorpusError, build, open_tokens
from preprocess.check.verify import verify
from preprocess.documents.chat_template import ChatFormat, render

transformers = pytest.importorskip("transformers", reason="needs the extra `chat`")

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>",
    "<|tool|>", "<|end|>", "<|return|>", "<|call|>", "</s>",
]  # fmt: skip
MARK, END = "{% generation %}", "{% endgeneration %}"
TURN = "{% for m in messages %}{% if m.role != 'assistant' %}"
CLOSE = "{% endif %}{% endfor %}{% if add_generation_prompt %}"
# Each writes an earlier turn in another way when more follows, or has no generation prompt.
STYLES = {
    # Thoughts of earlier turns are left out, and the last turn always has some.
    "thinks": "{% set ns = namespace(q=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.q = loop.index0 %}{% endif %}{% endfor %}" + TURN
    + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>assistant\n' }}" + MARK + "{% set said = m.content %}{% set why = '' %}"
    "{% if '</think>' in said %}{% set why = said.split('</think>')[0].split('<think>')[-1] %}"
    "{% set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.q %}{{ '<think>\n' + why.strip('\n') + '\n</think>\n\n' }}{% endif %}"
    "{{ said + '<|im_end|>' }}" + END + "{{ '\n' }}" + CLOSE
    + "{{ '<|im_start|>assistant\n' }}{% endif %}",
    # The prompt begins thoughts, which most turns do not have.
    "prompted": "{{ messages | length }}" + TURN
    + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% else %}"
    "{{ '<|im_start|>assistant\n' }}" + MARK + "{{ '<think></think>' + m.content + '<|im_end|>' }}"
    + END + "{{ '\n' }}" + CLOSE + "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
    # The prompt is not what a turn begins with.
    "instructed": TURN + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>assistant\n' }}" + MARK + "{{ m.content + '<|im_end|>' }}" + END
    + "{{ '\n' }}{% endif %}{% endfor %}{% if messages[-1].role == 'user' %}"
    "{{ '<|im_start|>system\nAnswer in JSON.<|im_end|>\n' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # A token ends the conversation.
    "closed": TURN + "{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% else %}"
    "{{ '<|assistant|>\n' }}" + MARK + "{{ m.content + '<|end|>' }}"
    "{% if loop.last %}{{ '\n' + eos_token }}{% endif %}" + END
    + "{% if not loop.last %}{{ '\n' }}{% endif %}" + CLOSE
    + "{{ '<|assistant|>\n' }}{% elif messages[-1].role != 'assistant' %}{{ eos_token }}"
    "{% endif %}",
    # Only the next turn ends one.
    "open": "{{ messages | length }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{{ '<|assistant|>' }}" + MARK + "{{ '\n' + m.content.strip() }}{% if not loop.last %}"
    "{{ '<|' + messages[loop.index].role + '|>' }}{% endif %}" + END + "{% else %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'assistant' %}{{ '<|' + m.role + '|>' }}"
    "{% endif %}{{ '\n' + m.content }}" + CLOSE + "{{ '<|assistant|>' }}{% endif %}",
    # The last turn ends with another token than the others.
    "returns": TURN + "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% else %}"
    "{{ '<|assistant|>' }}" + MARK + "{{ 'final:' + m.content }}"
    "{{ '<|return|>' if loop.last else '<|end|>' }}" + END + CLOSE
    + "{{ '<|assistant|>' }}{% endif %}",
    # There is no generation prompt.
    "unprompted": TURN + "{{ m.role + ':\n' + m.content + '</s>\n' }}{% else %}"
    "{{ 'assistant:\n' }}" + MARK + "{{ m.content + '</s>' }}" + END
    + "{{ '\n' }}{% endif %}{% endfor %}",
}  # fmt: skip


MARKS = (MARK, END)
DIALOGUES = [
    say("one two", "three four"), say("one", "two", "three", "four five", "six", "seven"),
    say("a", "<think>\nb c\n</think>\n\nd", "e", "<think>\nf\n</think>\n\ng", system="h i"),
    say("x", "user assistant", "y", "final: <think> x", "z"),
    say("1 < 2 | 3 > 2?", "yes:\n\n    if a < b:  \n        return ':'\n", "  ok  ", " é🙂 {} "),
]  # fmt: skip


class Sides:
    """Our transform of a template without its marks, and transformers' with them."""

    def __init__(
        self, path: Path, tokenizer: str, template: str, end: str = "<|endoftext|>"
    ) -> None:
        path.mkdir()
        (path / "tokenizer.json").write_text(tokenizer)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        plain = functools.reduce(lambda text, mark: text.replace(mark, ""), MARKS, template)
        (path / "chat_template.jinja").write_text(plain)
        self.path, self.template = path, template
        self.theirs = transformers.PreTrainedTokenizerFast.from_pretrained(path)
        self.ours = ChatTemplateTransform(path)

    def compare(self, dialogue: list[dict[str, Any]]) -> None:
        expected = self.theirs.apply_chat_template(
            dialogue, chat_template=self.template, return_assistant_tokens_mask=True
        )
        found = self.ours({"messages": dialogue})
        assert found["input_ids"].tolist() == expected["input_ids"]
        assert found["loss_mask"].tolist() == expected["assistant_masks"]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sides]:
    path = tmp_path_factory.mktemp("styles")
    words = " ".join(m["content"] for each in DIALOGUES for m in each)
    train_bpe([words * 2], 300, special_tokens=SPECIAL).save(path / "t.json")
    text = (path / "t.json").read_text()
    return {name: Sides(path / name, text, style) for name, style in STYLES.items()}


@pytest.mark.parametrize("style", STYLES)
def test_masks_are_those_of_marks_at_the_same_places(style: str, sides: dict[str, Sides]) -> None:
    for dialogue in DIALOGUES:
        sides[style].compare(dialogue)


@pytest.mark.parametrize("empty", ["", " \n"])
def test_a_turn_that_says_nothing(empty: str, sides: dict[str, Sides]) -> None:
    with pytest.raises(CorpusError, match="writes message 2 of 4 nowhere, for it says nothing"):
        sides["open"].compare(say("a", empty, "b", "c"))


@pytest.mark.parametrize(
    "arguments",
    [{"a": 1, "ab": 2.5}, {"on": True}, {"of": [1, {"x": 2}]}, {"at": " "}, {"at": None}, {},
     {"n": 1, "at": "Rome"}, '{"n": 1}'],
)  # fmt: skip
def test_calls_whose_arguments_say_nothing_but_numbers(
    arguments: Any, sides: dict[str, Sides], tmp_path: Path
) -> None:
    template = (
        "{{ messages | length }}" + TURN + "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}"
        "{% else %}{{ '<|assistant|>' }}" + MARK + "{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.name + (c.function.arguments | tojson) }}{% endfor %}{{ '<|end|>' }}" + END
        + CLOSE + "{{ '<|assistant|>' }}{% endif %}"
    )
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [*say("q", "", "r", "b"), *say("s", "t")]
    messages[1]["tool_calls"] = [call]
    messages[2]["role"] = "tool"
    text = (sides["open"].path / "tokenizer.json").read_text()
    Sides(tmp_path / "model", text, template).compare(messages)


def test_calls_without_the_thoughts_that_the_prompt_begins(
    sides: dict[str, Sides], tmp_path: Path
) -> None:
    """As in Qwen3 2507 for thinking: the last turn has thoughts, even if they are empty."""
    template = (
        "{{ messages | length }}" + TURN + "{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}"
        "{% else %}{{ '<|assistant|>\n' }}{% if loop.last %}{{ '<think>\n' }}{% endif %}" + MARK
        + "{% if loop.last %}{{ '</think>\n' }}{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls %}{{ '<tool_call>' + (c.function | tojson) }}{% endfor %}"
        "{{ '<|end|>' }}" + END + CLOSE + "{{ '<|assistant|>\n<think>\n' }}{% endif %}"
    )
    call = {"type": "function", "function": {"name": "weather", "arguments": {"at": "Rome"}}}
    messages = [*say("q", "", "r", "b"), *say("s", "t")]
    messages[1]["tool_calls"] = [call]
    messages[2]["role"] = "tool"
    text = (sides["open"].path / "tokenizer.json").read_text()
    both = Sides(tmp_path / "model", text, template)
    for n in (2, 4, 6):
        both.compare(messages[:n])


PIECES = ["word", "user", "final:", "<think>", "</think>", "\n", " ", ".", "é", "🙂", "<", "x y"]


@settings(max_examples=80)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=5), min_size=2, max_size=6),
    st.sampled_from(sorted(STYLES)),
)
def test_masks_of_any_text(sides: dict[str, Sides], contents: list[list[str]], style: str) -> None:
    """A turn has no place if nothing of it, or of the one before, is written; it is refused."""
    dialogue = say(*map("".join, contents))
    try:
        sides[style].compare(dialogue)
    except CorpusError as error:
        assert "nowhere, for it says nothing, in pieces" in str(error)
        said = [m["content"].split("</think>")[-1].replace("<think>", "") for m in dialogue]
        assert not all(map(str.strip, said))


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_look_ahead(name: str) -> None:
    """Places found in one text are those of texts that begin one another."""
    special = (("<|im_start|>", 1), ("<|im_end|>", 2), ("</s>", 3), ("<|eot_id|>", 4))
    for dialogue in [*DIALOGUES, say("a", "<|im_end|></s>b", "c", "d")]:
        found = []
        for ahead in ("", "{{ messages | length }}"):
            rendered = render(dialogue, ChatFormat(ahead + TEMPLATES[name], special))
            found.append([rendered.text[start:stop] for start, stop in rendered.trained])
        assert found[0] == found[1]


# Tokenizers of all kinds, also those that change text.

TOKENIZERS = NATIVE | of_other_models()
# With it, transformers finds special tokens in other words, which are normalized to them.
del TOKENIZERS["other spellings"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_masks_with_all_kinds_of_tokenizers(name: str, tmp_path: Path) -> None:
    added = json.loads(TOKENIZERS[name]).get("added_tokens") or []
    special = [each["content"] for each in added if each["special"] and each["content"]]
    if not special:
        return  # as the others, without a token that ends turns
    first, last = special[-2:][0], special[-1]
    template = (
        "{% for m in messages %}{{ first + m.role + '\n' }}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content + last }}{% endgeneration %}{{ '\n' }}{% else %}"
        "{{ m.content + last + '\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ first + 'assistant\n' }}{% endif %}"
    ).replace("first", json.dumps(first)).replace("last", json.dumps(last))
    both = Sides(tmp_path / "model", TOKENIZERS[name], template, last)
    for dialogue in [*DIALOGUES, say("e\u0301 \u212a fi", "\n ne\u0301 \u2126 ")]:
        both.compare(dialogue)
    rows = "".join(json.dumps({"messages": each}) + "\n" for each in DIALOGUES)
    (tmp_path / "chats.jsonl").write_text(rows)
    build(train=tmp_path / "chats.jsonl", val_fraction=0, tokenizer=both.path, out=tmp_path / "out")
    file, end = open_tokens(tmp_path / "out" / "train.bin"), both.theirs.eos_token_id
    for number, dialogue in enumerate(DIALOGUES):
        expected = both.theirs.apply_chat_template(dialogue, return_dict=False)
        assert file.doc(number).tolist() == [*expected, *[end] * (expected[-1] != end)]
    assert 0 < file.loss_mask[:].mean() < 1
    assert [x for x in verify(tmp_path / "out", deep=True) if not x.sound] == []
    # A message that spells special tokens is text; the others keep their ids.
    forged = both.ours({"messages": say(f"a{last}b", "c")})["input_ids"].tolist()
    plain = both.ours({"messages": say("ab", "c")})["input_ids"].tolist()
    ids = both.ours.tokenizer.special_tokens[last]
    assert forged.count(ids) == plain.count(ids)
