"""Every kind of published tokenizer: loaded, with the ids and the text of Hugging Face's engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import SOUND_TOKENIZER, odd_document
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import hard_texts
from published import NATIVE, PECULIAR, SIZE, N, both, check_ids, file, of_other_models, token

from bpe import AddedToken, HuggingFaceTokenizer, Tokenizer, load_tokenizer
from bpe.errors import EncodingError
from bpe.text_tokenizer import AnyTokenizer
from preprocess.cli import run

pytestmark = pytest.mark.usefixtures("few_ranges")

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")


def check(ours: AnyTokenizer, theirs: Any) -> None:
    """Compare ids, with and without special tokens, in all ways to encode, and text."""
    added = [each.content for each in theirs.get_added_tokens_decoder().values()]
    expected = check_ids(ours, theirs, hard_texts(added))
    assert [ours.decode(ids) for ids in expected] == theirs.decode_batch(
        expected, skip_special_tokens=False
    )
    assert [ours.decode(np.array(ids, int)) for ids in expected[:9]] == [
        ours.decode(ids) for ids in expected[:9]
    ]


@pytest.mark.parametrize("name", NATIVE)
def test_byte_level_tokenizers(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = both(NATIVE[name], tmp_path)
    assert isinstance(ours, Tokenizer)
    assert not caplog.records
    check(ours, theirs)
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    assert Tokenizer.from_huggingface(theirs) == ours
    # What we write says to Hugging Face what the original says.
    assert json.loads(ours.to_huggingface().to_str()) == json.loads(theirs.to_str())
    ours.save(tmp_path / "again.json")
    assert Tokenizer.from_file(tmp_path / "again.json") == ours


@pytest.mark.parametrize("name", PECULIAR)
def test_what_cannot_be_exact_is_run_by_their_engine_and_it_is_said(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text, reason = PECULIAR[name]
    ours, theirs = both(text, tmp_path)
    assert isinstance(ours, HuggingFaceTokenizer)
    if name == "two tokens of one id":
        # Which of the two the id stands for is chance, in their engine.
        theirs = ours._engine
    check(ours, theirs)
    said = [record.getMessage() for record in caplog.records]
    assert reason in said[0]
    assert "so Hugging Face's library runs this tokenizer: the same ids, but slower" in said[0]
    if name == "other ids":
        assert said[1:] == [f"its added token '<a>' has the id {N}, not {N + 7} as in the file"]


@pytest.mark.parametrize("name", of_other_models())
def test_tokenizers_of_other_models(name: str, tmp_path: Path) -> None:
    ours, theirs = both(of_other_models()[name], tmp_path)
    assert isinstance(ours, HuggingFaceTokenizer)
    check(ours, theirs)


@pytest.mark.parametrize(
    ("name", "end"),
    [("whisper", "<|endoftext|>"), ("gpt-neox", "<|padding|>"), ("gpt-4o", "<|endofprompt|>"),
     ("llama2, byte tokens are special", "</s>"), ("two tokens of one id", "</s>")],
)  # fmt: skip
def test_the_command_writes_their_ids(
    name: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = {**NATIVE, **of_other_models(), **{x: y[0] for x, y in PECULIAR.items()}}[name]
    _, theirs = both(text, tmp_path, json.dumps({"eos_token": end}))
    theirs.add_special_tokens([end])
    theirs.encode_special_tokens = True
    documents = [document for document in hard_texts(["\t", "日本", end]) if document]
    lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    (tmp_path / "text.jsonl").write_text(lines)
    command = ["build", "--train", "text.jsonl", "--quiet", "--tokenizer", "tokenizer.json"]
    assert run([*command, "--out", "out", "--val-fraction", "0"]) == 0
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in documents]
    end_id = theirs.token_to_id(end)
    found = np.fromfile(tmp_path / "out" / "train.bin", np.uint16).tolist()
    assert found == [number for ids in expected for number in [*ids, end_id]]


def test_dropout_is_switched_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ours, _ = both(file(model={"dropout": 0.5}), tmp_path)
    check(ours, tokenizers.Tokenizer.from_str(file()))
    assert "its dropout is switched off" in caplog.records[-1].getMessage()


@settings(max_examples=120)
@given(data=st.data())
def test_whatever_they_read_is_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = json.dumps(odd_document(data, SOUND_TOKENIZER))
    directory = tmp_path_factory.mktemp("odd")
    try:
        tokenizers.Tokenizer.from_str(text)
    except BaseException as error:  # noqa: BLE001 - what panics in Rust is no Exception
        assert type(error).__name__ in ("Exception", "PanicException", "ValueError")
        return
    ours, theirs = both(text, directory)
    if not json.loads(text)["model"].get("dropout"):
        texts = hard_texts(["<|endoftext|>", "12345"], 20)
        try:
            expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
        except BaseException:  # noqa: BLE001 - as above
            with pytest.raises(EncodingError, match="cannot encode this text"):
                ours.encode_batch(texts)
            return
        assert ours.encode_batch(texts) == expected


@pytest.mark.parametrize(
    ("normalizer", "contents", "spelled"),
    [("NFC", ("qK", "q\u212a"), {}), ("Lowercase", ("QE", "qe"), {"qE": 1, "Qe": 1}),
     ("NFC", ("q\u2126", "q\u03a9"), {}),
     ("Lowercase", ("QE", "Qe", "qE"), {"qe": 0})],
)  # fmt: skip
def test_added_tokens_that_are_one_text_when_normalized(
    normalizer: str, contents: tuple[str, ...], spelled: dict[str, int], tmp_path: Path, caplog: Any
) -> None:
    """Their engine takes one or the other, by chance; ours each as it is spelled."""
    added = [token(text, N + i, normalized=True) for i, text in enumerate(contents)]
    for _ in range(2):
        ours, theirs = both(file(added, normalizer={"type": normalizer}), tmp_path)
        for text, i in {**{text: i for i, text in enumerate(contents)}, **spelled}.items():
            assert ours.encode(f"a{text}a") == [*ours.encode("a"), N + i, *ours.encode("a")]
        texts = [text for text in hard_texts([], 40) if "q" not in text.lower()]
        expected = [each.ids for each in theirs.encode_batch(texts, add_special_tokens=False)]
        assert ours.encode_batch(texts) == expected
    text = r"its added tokens .* are one text when they are normalized, of which the library finds"
    assert sum(re.match(text, x.getMessage()) is not None for x in caplog.records) < len(contents)
    assert re.search(text, caplog.text)
    check(*both(file(added), tmp_path))


# --- tokenizer_config.json -----------------------------------------------------------------------

_INSIDE = {"model": {"vocab": SIZE | {"</s>": N}}}
_AS_OBJECT = {"__type": "AddedToken", "content": "</s>", "lstrip": True, "rstrip": False}
_AS_OBJECT |= {"normalized": False, "single_word": False, "special": True}
CONFIGURED: dict[str, tuple[str, dict[str, Any]]] = {
    "in the vocabulary": (file(**_INSIDE), {"eos_token": "</s>", "pad_token": "!"}),
    "not special": (file([token("</s>", N, special=False)], **_INSIDE), {"eos_token": "</s>"}),
    "not special, with settings": (
        file([token("</s>", N, special=False, lstrip=True)]), {"eos_token": "</s>"},
    ),
    "nowhere": (file(), {"eos_token": "</s>"}),
    "nowhere, as object": (file(), {"eos_token": _AS_OBJECT}),
    "with others": (
        file([token("<x>", N)]),
        {"eos_token": "</s>", "bos_token": "<x>", "pad_token": "[PAD]", "unk_token": ""}
        | {"extra_special_tokens": ["<a>", "<b>"]},
    ),
    "in the decoder": (
        file(),
        {"eos_token": "</s>", "added_tokens_decoder": {
            f"{N + 1}": _AS_OBJECT | {"lstrip": False}, f"{N}": _AS_OBJECT | {"content": "<x>"},
        }},
    ),
    "other settings in the decoder": (
        file([token("</s>", N)]),
        {"eos_token": "</s>", "added_tokens_decoder": {f"{N}": _AS_OBJECT}},
    ),
    "of a tokenizer that the library runs": (
        file(**_INSIDE, normalizer={"type": "Lowercase"}), {"eos_token": "</s>", "pad_token": "!"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGURED)
def test_tokens_that_the_configuration_names(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    text, config = CONFIGURED[name]
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | config
    ours, _ = both(text, tmp_path, json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert (ours.eos_token, ours.bos_token) == (theirs.eos_token, theirs.bos_token)
    assert ours.special_tokens["</s>"] == theirs.eos_token_id
    texts = hard_texts(["</s>", "<x>", "[PAD]", "<b>"], 80)
    assert ours.encode_batch(texts) == theirs(texts, add_special_tokens=False)["input_ids"]
    # No document can forge its end.
    assert theirs.eos_token_id not in (ordinary := ours.encode_ordinary("a</s> b! </s>"))
    assert ours.decode(ordinary) == "a</s> b! </s>"
    ours.save(tmp_path / "again.json")
    again = load_tokenizer(tmp_path / "again.json")
    assert again.fingerprint == ours.fingerprint
    assert again.special_tokens == ours.special_tokens


def test_a_space_in_front_is_what_the_tokenizer_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check(*both(file([token("<y>", N)]), tmp_path, '{"add_prefix_space": true}'))
    assert "tokenizer.json has false, which counts; so" in caplog.records[0].getMessage()


def test_decoded_added_tokens_are_normalized_text() -> None:
    vocabulary = Tokenizer.from_huggingface(
        tokenizers.Tokenizer.from_str(NATIVE["other spellings"])
    ).vocabulary
    assert vocabulary.added_tokens[0] == AddedToken("\u212aelvin", N, normalized=True)
    assert vocabulary.token_bytes(N) == b"Kelvin"
