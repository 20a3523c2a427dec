"""Tokenizer files: what is written, what is read, and what is refused with its own sentence."""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trained
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_file_cases import MERGES, write

from bpe import Tokenizer
from bpe.byte_level import to_byte_level
from bpe.errors import TokenizerFileError, VocabularyError
from bpe.formats import hf_read, hf_write
from bpe.formats.hf_read import TokenizerFiles
from bpe.formats.hf_write import TokenizerParts
from bpe.split.patterns import PATTERNS
from bpe.unicode_classes import UNICODE_VERSION
from bpe.vocabulary import AddedToken, Vocabulary

SPECIAL = ["<|endoftext|>", "<|é \n|>"]


PARTS = TokenizerParts(
    Vocabulary.from_merges(MERGES, SPECIAL), "gpt2", "greatest-bytes", "<|endoftext|>"
)


def load(path: Path) -> TokenizerParts:
    return TokenizerFiles.read(path).parts()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    hf_write.save(path, PARTS)
    return path


# --- ours ----------------------------------------------------------------------------------------


def test_what_is_saved_is_read_again(saved: Path) -> None:
    assert load(saved) == PARTS
    assert sorted(path.name for path in saved.parent.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_the_text_is_that_of_the_format(saved: Path) -> None:
    text = saved.read_text(encoding="utf-8")
    value = json.loads(text)
    model = value["model"]
    assert model["vocab"]["Ġa"] == 257
    assert model["vocab"]["<|é \n|>"] == 261
    assert list(model["vocab"].values()) == list(range(262))
    assert model["merges"] == [["#", "#"], ["Ġ", "a"], ["Ġa", "Ċ"], ["Ã", "©"]]
    assert [added["id"] for added in value["added_tokens"]] == [260, 261]
    assert model["unicode_version"] == UNICODE_VERSION
    assert model["pattern"] == "gpt2"
    assert model["tie_break"] == "greatest-bytes"
    assert text.endswith("}\n")
    # One line for each token and each merge: two tokenizers can be compared with diff.
    assert text.count("\n") < 262 + len(MERGES) + len(SPECIAL) + 60


def test_the_same_tokenizer_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    again = tmp_path / "again" / "tokenizer.json"
    again.parent.mkdir()
    hf_write.save(again, load(saved))
    text = again.read_text(encoding="utf-8")
    assert again.read_bytes() == saved.read_bytes() == text.encode()
    beside = again.with_name("tokenizer_config.json")
    assert beside.read_bytes() == saved.with_name("tokenizer_config.json").read_bytes()


def test_ranks_stay_ranks(tmp_path: Path) -> None:
    ranks = {bytes([byte]): 255 - byte for byte in range(256)} | {b"ab": 256, b"abc": 300}
    parts = TokenizerParts(Vocabulary.from_ranks(ranks, {"<x>": 298}), "gpt2")
    hf_write.save(tmp_path / "t.json", parts)
    assert load(tmp_path / "t.json") == parts
    model = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["model"]
    assert model["ignore_merges"] is True
    assert model["merges"] == [["a", "b"], ["ab", "c"]]


def test_ranks_that_merges_cannot_say_are_not_written(tmp_path: Path) -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"abc": 256, b"ab": 257}
    with pytest.raises(VocabularyError, match="cannot be written as a list of merges"):
        hf_write.save(
            tmp_path / "t.json", TokenizerParts(Vocabulary.from_ranks(ranks, {}), "gpt2")
        )
    assert list(tmp_path.iterdir()) == []


def test_the_configuration_belongs_to_its_file(tmp_path: Path) -> None:
    for name, eos_token in (("one", "<|endoftext|>"), ("two", "<|é \n|>"), ("three", None)):
        parts = TokenizerParts(PARTS.vocabulary, "gpt2", None, eos_token)
        hf_write.save(tmp_path / f"{name}.json", parts)
    for name, eos_token in (("one", "<|endoftext|>"), ("two", "<|é \n|>"), ("three", None)):
        assert load(tmp_path / f"{name}.json").eos_token == eos_token
    config = json.loads((tmp_path / "one_config.json").read_text(encoding="utf-8"))
    assert config["eos_token"] == "<|endoftext|>"


def test_without_a_configuration_there_is_no_eos_token(saved: Path) -> None:
    saved.with_name("tokenizer_config.json").unlink()
    assert load(saved).eos_token is None


def test_a_write_that_fails_leaves_what_was_there(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    other = TokenizerParts(Vocabulary.from_merges([]), "gpt2")
    with pytest.raises(OSError, match="No space left"):
        hf_write.save(saved, other)
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert len(list(saved.parent.iterdir())) == 2
    assert load(saved) == PARTS


# --- Hugging Face's ------------------------------------------------------------------------------


def document(**changes: Any) -> dict[str, Any]:
    """Return a small file of Hugging Face's, with settings changed; dots lead inside."""
    vocabulary = Vocabulary.from_merges(MERGES)
    value: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": 260, "content": "<|end|>", "single_word": False, "lstrip": False}
            | {"rstrip": False, "normalized": True, "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "dropout": None,
            "unk_token": "<|end|>",
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "vocab": {to_byte_level(token): i for i, token in vocabulary.tokens.items()}
            | {"<|end|>": 260},
            "merges": [" ".join(map(to_byte_level, pair)) for pair in MERGES],
        },
    }
    for path, change in changes.items():
        *parents, name = path.split("__")
        inner = value
        for parent in parents:
            inner = inner[int(parent)] if parent.isdigit() else inner[parent]
        inner[name] = change
    return value


SPLIT = {"type": "Split", "pattern": {"Regex": PATTERNS["gpt2"]}, "behavior": "Isolated"}


NO_REGEX = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


SEQUENCE = {"type": "Sequence", "pretokenizers": [SPLIT | {"invert": False}, NO_REGEX]}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__type": "BPE"},
        {"model__merges": [[to_byte_level(a), to_byte_level(b)] for a, b in MERGES]},
        {"model__dropout": 0.0, "model__byte_fallback": False, "post_processor": None},
        {"model__byte_fallback": True, "model__fuse_unk": True},
        {"pre_tokenizer": SEQUENCE},
        {"model__somebody": "else's key"},
    ],
)
def test_their_files_with_settings_that_are_implemented_are_read(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    parts = load(write(tmp_path / "tokenizer.json", document(**changes)))
    special = [AddedToken("<|end|>", 260, normalized=True)]
    expected = Vocabulary(Vocabulary.from_merges(MERGES).tokens, MERGES, special)
    # What they say besides is kept, to be written again.
    assert replace(parts, settings="") == TokenizerParts(expected, "gpt2")


def test_a_special_token_need_not_stand_in_the_model(tmp_path: Path) -> None:
    value = document()
    del value["model"]["vocab"]["<|end|>"]
    parts = load(write(tmp_path / "tokenizer.json", value))
    assert parts.vocabulary.special_tokens == {"<|end|>": 260}


def test_only_tokens_outside_the_model_are_numbered(tmp_path: Path) -> None:
    # As tokenizers 0.23 does: what stands in the model behind a gap moves no other.
    value = document()
    value["model"]["vocab"]["<|end|>"] = 300
    value["added_tokens"] = [added(id=300), added(content="<new>", id=261)]
    parts = load(write(tmp_path / "tokenizer.json", value))
    assert parts.vocabulary.special_tokens == {"<new>": 261, "<|end|>": 300}
    value["added_tokens"][1]["id"] = 301
    with pytest.raises(TokenizerFileError, match="has the id 301: expected 261, as Hugging Face"):
        load(write(tmp_path / "tokenizer.json", value))


def test_thousands_of_added_tokens_are_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_looked_at = 0
    looks = hf_read._begins_with_white_space

    def counted(token: AddedToken) -> bool:
        nonlocal n_looked_at
        n_looked_at += 1
        return looks(token)

    monkeypatch.setattr(hf_read, "_begins_with_white_space", counted)
    value = document()
    value["added_tokens"] += [added(content=f"<{i}>", id=261 + i, rstrip=True) for i in range(2000)]
    load(write(tmp_path / "tokenizer.json", value))
    assert n_looked_at == 2001


def test_ignore_merges_takes_whole_pretokens_first(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", document(model__ignore_merges=True))
    assert load(path).vocabulary.ignore_merges


def added(**changes: object) -> dict[str, object]:
    return document()["added_tokens"][0] | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, r"the setting version is \"2.0\": only \"1.0\" is implemented"),
        ({"extra": 1}, r"it has the unknown key 'extra'"),
        ({"truncation": {"max_length": 9}}, r"the setting truncation is \{\"max_length\": 9\}"),
        ({"padding": {}}, r"the setting padding is \{\}"),
        ({"pre_tokenizer": None}, r"pre_tokenizer has the steps \[\]: only Split and Digits"),
        (
            {"pre_tokenizer": {"type": "Whitespace"}},
            r"pre_tokenizer is \"Whitespace\": only Split, Digits, ByteLevel are implemented",
        ),
        ({"pre_tokenizer__use_regex": 1}, r"ByteLevel.use_regex is 1: only false or true"),
        ({"pre_tokenizer__add_prefix_space": 0}, r"ByteLevel.add_prefix_space is 0"),
        ({"pre_tokenizer": SEQUENCE | {"pretokenizers": {}}}, r"pretokenizers is \{\}: expected a"),
        (
            {"pre_tokenizer": SEQUENCE | {"pretokenizers": [NO_REGEX, {"type": "Digits"}]}},
            r"has the steps \[\"ByteLevel\", \"Digits\"\]: only Split and Digits",
        ),
        (
            {"pre_tokenizer": SEQUENCE | {"pretokenizers": [SPLIT, {"type": "ByteLevel"}]}},
            r"before a ByteLevel with add_prefix_space: only a ByteLevel alone may have it",
        ),
        (
            {
                "pre_tokenizer": SEQUENCE
                | {"pretokenizers": [SPLIT | {"behavior": "Removed"}, NO_REGEX]}
            },
            r"pre_tokenizer: the split pattern .* with the behavior Removed can drop text",
        ),
        (
            {
                "pre_tokenizer": SEQUENCE
                | {"pretokenizers": [SPLIT | {"pattern": {"Regex": r"\w+"}}, NO_REGEX]}
            },
            r"pre_tokenizer: unsupported split pattern .*: '\\w' at character 0",
        ),
        (
            {"post_processor": {"type": "Magic"}},
            r"post_processor is \"Magic\": only ByteLevel, Temp",
        ),
        ({"post_processor": 5}, r"post_processor is 5: only ByteLevel, Template"),
        (
            {"post_processor": {"type": "Sequence", "processors": [{"type": "Magic"}]}},
            r"post_processor.processors\[0\] is \"Magic\"",
        ),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [None]}},
            r"normalizer.normalizers\[0\] is null: only NFC",
        ),
        ({"normalizer": {"type": "Lowercase"}}, r"normalizer is \"Lowercase\": only NFC, NFD,"),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}]}},
            r"normalizer.normalizers\[0\] is \"Strip\"",
        ),
        (
            {"decoder": {"type": "Sequence", "decoders": []}},
            r"decoder is \{\"type\": \"Sequence\".*: expected one Byte",
        ),
        ({"decoder": None}, r"decoder is null: expected one ByteLevel"),
        ({"decoder": {"type": "Metaspace"}}, r"decoder is \"Metaspace\": only ByteLevel"),
        ({"model__type": "Unigram"}, r"model.type is 'Unigram': expected 'BPE'"),
        ({"model__type": "WordPiece"}, r"model.type is 'WordPiece'"),
        ({"model__dropout": 0.1}, r"model.dropout is 0.1: only null or 0 is implemented"),
        ({"model__end_of_word_suffix": "</w>"}, r"model.end_of_word_suffix is \"</w>\""),
        ({"model__continuing_subword_prefix": "##"}, r"model.continuing_subword_prefix is"),
        ({"model__ignore_merges": 1}, r"model.ignore_merges is 1: only false or true"),
        ({"model__unicode_version": "15.1.0"}, r"model.unicode_version is \"15.1.0\""),
        ({"model__pattern": "cl100k"}, r"model.pattern is \"cl100k\": expected 'gpt2', as pre_tok"),
        ({"model__pattern": "none"}, r"model.pattern: unknown split pattern 'none'"),
        ({"model__tie_break": "dice"}, r"model.tie_break is \"dice\""),
        ({"model__ranked_by": "age"}, r"model.ranked_by is \"age\""),
        ({"model__vocab": [["a", 0]]}, r"'vocab' is not an object"),
        ({"model__merges": {}}, r"model.merges is a dict: expected a list"),
        ({"model__merges": ["#"]}, r"model.merges\[0\] is \"#\": expected two tokens"),
        ({"model__merges": [["#", 1]]}, r"model.merges\[0\] is \[\"#\", 1\]"),
        ({"model__merges": [["#", ""]]}, r"model.merges\[0\] is"),
        ({"model__merges": ["x y"]}, r"merge 0 of b'x' and b'y': b'xy' is not in the vocabulary"),
        ({"model__vocab__日本": 270}, r"'日本' is not spelled in GPT-2's byte-level alphabet"),
        ({"model__vocab__zz": "1"}, r"'zz' has the id \"1\": expected a number"),
        ({"model__vocab__zz": True}, r"'zz' has the id true: expected a number"),
        ({"model__vocab__zz": 5}, r"'zz' has the id 5, which .* has already"),
        ({"added_tokens": {"<x>": 1}}, r"added_tokens is a dict: expected a list"),
        ({"added_tokens": ["<x>"]}, r"added_tokens\[0\] is \"<x>\": expected an object with 'id'"),
        (
            {"added_tokens": [added(rstrip=True), added(content=" x", id=261)]},
            r"'<\|end\|>' has rstrip and ' x' begins with white space",
        ),
        ({"added_tokens__0__special": 1}, r"added_tokens\[0\].special .* is 1: only false or true"),
        ({"added_tokens__0__id": 400}, r"has the id 400: expected 260, as Hugging Face would"),
        ({"added_tokens": [added(), added()]}, r"added_tokens\[1\] '<\|end\|>' appears twice"),
        ({"added_tokens": [added(content="<new>", id=262)]}, r"has the id 262: expected 261, as"),
    ],
)
def test_every_other_setting_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "tokenizer.json", document(**changes))
    with pytest.raises(TokenizerFileError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_a_vocabulary_that_lacks_bytes_names_the_file(tmp_path: Path) -> None:
    value = document()
    del value["model"]["vocab"]["Z"]
    with pytest.raises(TokenizerFileError, match=r"tokenizer.json: 1 of the bytes in UTF-8.*b'Z'"):
        load(write(tmp_path / "tokenizer.json", value))


# --- damage --------------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_is_called_truncated(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    path = tmp_path / "cut.json"
    for length in [*range(1, 400, 7), *range(400, len(data) - 2, 997), len(data) - 2]:
        path.write_bytes(data[:length])
        message = r"in the middle.*it is truncated; copy or|is not UTF-8"
        with pytest.raises(TokenizerFileError, match=message):
            load(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"it is empty: expected a tokenizer file; was writing it interr"),
        (b" \n", r"it is empty"),
        (b"once upon a time", r"not JSON: Expecting value in line 1, column 1"),
        (b'{"a": 1,, "b": 2}', r"not JSON: .* line 1, column"),
        (b"PK\x03\x04\xff\xfe", r"byte 4 is not UTF-8 .*: expected a text file"),
        (b"[1, 2]", r"it is a JSON list: expected an object"),
        (b"version https://git-lfs.github.com/spec/v1\n", r"a Git LFS pointer: get the file"),
        (b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02", r"Piece: expected a tokenizer.json, as save"),
        (b"IQ== 0\nIg== 1\n", r"tiktoken's ranks, .*: copy it to NAME.tiktoken, and give the spl"),
        (b'{"train": 1}', r"it has no 'model' \(its keys are 'train'\): expected a tokenizer.json"),
        (b'{"a": NaN}', r"it has the number NaN: expected JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"not JSON: Exceeds the limit"),
        (b'{"a": ' * 100_000 + b"1", r"stand too deep inside one another"),
        (b'{"model": 1}', r"'model' is not an object"),
        (b'{"model": {"type": "BPE"}}', r"model.type is 'BPE': expected 'BPE' with 'vocab' and"),
        (b'{"model": {"vocab": {"a": 0}}}', r"expected 'BPE' with 'vocab' and 'merges'"),
    ],
)
def test_what_is_not_a_tokenizer_is_told_what_it_is(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(TokenizerFileError, match=message) as raised:
        load(path)
    assert str(raised.value).startswith(str(path))


def test_a_surrogate_among_the_settings_is_refused(tmp_path: Path) -> None:
    text = json.dumps(document(model__unk_token="\ud800"))
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(TokenizerFileError, match=r"it has a lone surrogate, '\\ud800'"):
        load(tmp_path / "tokenizer.json")


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=r"none.json: cannot be read: No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(TokenizerFileError, match=r"cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"tokenizer_config.json: the file ends in the middle"),
        ('{"eos_token": 5}', r"eos_token is 5: expected text or null"),
        ('{"add_prefix_space": true}', r"add_prefix_space is true: .*tokenizer.json has false, wh"),
        ('{"added_tokens_decoder": 5}', r"added_tokens_decoder is '5': expected an object of obj"),
        ('{"added_tokens_decoder": {"7": "<new>"}}', r"added_tokens_decoder is '{\"7\": \"<new>"),
        ('{"extra_special_tokens": [5]}', r"extra_special_tokens is 5: expected text or null"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    saved: Path, config: str, message: str
) -> None:
    saved.with_name("tokenizer_config.json").write_text(config)
    with pytest.raises(TokenizerFileError, match=message):
        load(saved)


def test_a_configuration_without_an_eos_token_stays_without(saved: Path, tmp_path: Path) -> None:
    # Ours is taken for granted here, but `transformers` would read what we write.
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<|endoftext|>"}
    saved.with_name("tokenizer_config.json").write_text(json.dumps(said))
    tokenizer = Tokenizer.from_file(saved)
    assert tokenizer.eos_token == "<|endoftext|>"
    tokenizer.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again_config.json").read_text()) == said
    assert Tokenizer.from_file(tmp_path / "again.json") == tokenizer


def test_their_configurations_may_hold_an_object(saved: Path) -> None:
    config = '{"eos_token": {"content": "<|endoftext|>", "lstrip": false}}'
    saved.with_name("tokenizer_config.json").write_text(config)
    assert load(saved).eos_token == "<|endoftext|>"


# --- anything ------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=5).map(lambda text: f"<|{text}|>"), unique=True),
    st.integers(0, 40),
    st.booleans(),
)
def test_any_tokenizer_comes_back_from_its_text(
    special: list[str], n_merges: int, ignore_merges: bool
) -> None:
    base = Vocabulary.from_merges(trained.merges()[:n_merges])
    ids = {text: 300 + 2 * index for index, text in enumerate(special)}
    vocabulary = Vocabulary(base.tokens, base.merges, ids, ignore_merges=ignore_merges)
    parts = TokenizerParts(vocabulary, "gpt2", "huggingface")
    text = hf_write.tokenizer_json(parts)
    assert TokenizerFiles(Path("t.json"), text, None).parts() == parts


@settings(max_examples=300)
@given(st.data())
def test_a_file_with_one_value_replaced_is_read_or_refused_but_never_breaks(
    data: st.DataObject,
) -> None:
    value = copy.deepcopy(document())
    places: list[tuple[Any, Any]] = []

    def visit(inner: Any) -> None:
        # Of a long list or object the first and the last few entries will do.
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
        for key in keys if len(keys) < 20 else keys[:2] + keys[-6:]:
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                visit(inner[key])

    visit(value)
    inner, key = data.draw(st.sampled_from(places))
    inner[key] = data.draw(
        st.sampled_from([None, True, False, 0, 5, -1, 1.5, "", "x", [], {}, [1]])
    )
    try:
        TokenizerFiles(Path("t.json"), json.dumps(value), None).parts()
    except TokenizerFileError as error:
        assert str(error).startswith("t.json: ")
