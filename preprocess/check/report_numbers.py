"""Measure datasets for `tokenmill report`: the numbers of its page, as JSON.

Occurrences, lengths, copies and divergences are of all tokens (`preprocess.check.scan` has the
memory). What needs text is of documents at equal distances, of about 2 million tokens; `sample`
says how many they are, and `everything` is true if they are all.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bpe.errors import TokenmillError
from bpe.files.locations import is_url, shown_url
from preprocess.check import report_page
from preprocess.check.inspect import (
    compare_val_with_train,
    describe_scan,
    describe_tokenizer,
    noted,
)
from preprocess.check.preview import token_texts
from preprocess.check.rows import find_places
from preprocess.check.scan import Numbers, Scan
from preprocess.check.verify import verify
from preprocess.dataset.columns import TokenFileError, manifest_name
from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, open_tokens, read_bounds, tokenizer_of
from preprocess.locations import join_location, url_name
from preprocess.options import ReportSettings
from preprocess.report.progress import progress_of
from preprocess.report.summary import counted
from preprocess.run.outputs import (
    STATS_FORMAT,
    find_stats_file,
    find_token_files,
    names_of_datasets,
    read_object,
)
from preprocess.sampling.packing import count_rows
from preprocess.settings import takes
from preprocess.storage import open_files
from preprocess.storage.files import directory_of

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Facts = dict[str, Any]
Check = tuple[str, bool | None, str]  # about, ok, text; see `_judge`

ROW_LENGTHS = (1024, 4096, 32768)
LENGTH_EDGES = tuple(dict.fromkeys(round(2 ** (i / 2)) for i in range(2 * 40 + 1)))  # of bins
_RANKS = 200  # points of the curve of frequencies
_LISTED = 20  # tokens in a list
_SAMPLE_TOKENS, _SAMPLE_DOCUMENTS = 1 << 21, 1 << 12
_MOST_OF_DOCUMENT = 1 << 15  # tokens that are decoded of one document
_SHOWN_DOCUMENTS, _SHOWN_TOKENS = 5, 240
_SCRIPT_CHARACTERS = 4096  # that decide the script of a document
# First word of the names of its letters -> name of a script.
_SCRIPTS = {"CJK": "Han", "IDEOGRAPHIC": "Han", "KATAKANA-HIRAGANA": "Katakana"}
# UTF-8 that was read as Latin-1 or Windows-1252, and encoded again.
_MOJIBAKE = re.compile("[ÂÃ][\x80-\xbf]|â€[\x80-\x9f™œ]")
_UNUSED_SHARE = 0.2  # of the vocabulary, above which unused tokens are a problem
_COPIES_SHARE = 0.01  # of the documents, likewise


@takes(ReportSettings)
def report(settings: ReportSettings) -> Facts:
    """Measure all datasets of a directory, or one, and write the page if `out` is given.

    Options: docs/options.md or `tokenmill report --help`; docs/look.md has the keys.

    Raises:
        PlotError: `out` is given, and matplotlib or jinja2 is not installed.
        OutputError: The page cannot be written, or another file has its name.
        TokenFileError: There is no dataset, or the only one given cannot be read.
        TokenizerFileError: A given tokenizer cannot be read.
    """
    from bpe import load_tokenizer

    if settings.out is not None:
        report_page.check_page(settings.out)
    beside, given = None, settings.tokenizer
    if settings.beside is not None:
        beside = _name_of(settings.beside), load_tokenizer(settings.beside)
    scans, findings, bad = dict[str, Scan](), list[Facts](), list[Facts]()
    progress = progress_of(settings.progress)
    for location in find_datasets(settings.path):
        for each in verify(location, tokenizer=given, progress=progress):
            findings.append({"path": str(each.path), "ok": each.sound, "text": each.text})
        with noted(bad, location):
            file = open_tokens(location)
            name = Path(file.path).stem
            with progress.stage(f"reading {name}", len(file), "tokens") as stage:
                scans[name] = Scan(file).run(stage.advance)

    if not scans and not Path(settings.path).is_dir():
        wrong = next(each for each in (*findings, *bad) if not each.get("ok"))
        raise TokenFileError(f"{wrong['path']}: {wrong['text']}")

    def load(name: str) -> tuple[str, AnyTokenizer]:
        file = scans[name].file
        return _name_of(given or file.tokenizer_file()[1]), tokenizer_of(file, given)

    path = shown_url(settings.path) if is_url(settings.path) else settings.path
    found: Facts = {"path": path} | measure(scans, load, beside)
    found |= {"findings": findings, "bad_files": bad}
    found = {"verdict": _judge(found)} | found
    if settings.out is not None:
        report_page.write_page(found, settings.out)
    return found


def find_datasets(path: str) -> list[str]:
    """Return the manifests of all datasets in a directory, also damaged ones, or the one given."""
    is_file = Path(path).suffix in (".bin", ".json") if is_url(path) else not Path(path).is_dir()
    names = [] if is_file else names_of_datasets(open_files(path))
    found = [join_location(path, manifest_name(name)) for name in names]
    places = [] if is_url(path) or is_file or found else [*map(str, find_places(Path(path)))]
    if places not in ([], [str(Path(path))]):
        raise TokenFileError(f"{path}: has several datasets; give one of them: {', '.join(places)}")
    return found or find_token_files(path)


def _name_of(tokenizer: Any) -> str:
    return tokenizer if isinstance(tokenizer, str) else type(tokenizer).__name__


def measure(
    scans: Mapping[str, Scan], load: Callable[[str], tuple[str, AnyTokenizer]],
    beside: tuple[str, AnyTokenizer] | None = None,
) -> Facts:
    """Return what sections of the page are drawn of: numbers of datasets, as JSON.

    Args:
        scans: What reading each dataset found, by its name.
        load: Returns the location and the tokenizer of a dataset. If it raises an error, there are
            no numbers of the text.
        beside: Name and tokenizer whose bytes per token are found, too.
    """
    datasets, runs = list[Facts](), dict[str, Facts]()
    tokenizers: dict[str, tuple[str, AnyTokenizer]] = {}  # by fingerprint
    for name, scanned in scans.items():
        found, fingerprint = _measure_counts(scanned), scanned.file.manifest.tokenizer_fingerprint
        try:
            if fingerprint not in tokenizers:
                tokenizers[fingerprint] = load(name)
            found |= _measure_text(scanned, tokenizers[fingerprint][1], beside and beside[1])
        except TokenmillError as error:
            found["no_text"] = str(error)
        datasets.append({"name": name} | found)
        runs |= _find_run(scanned.file)
    return {
        "datasets": datasets,
        "val_in_train": _compare(scans, {x: y for x, (_, y) in tokenizers.items()}),
        "runs": [*runs.values()],
        "tokenizers": [describe_tokenizer(Path(x), y) for x, y in tokenizers.values()],
        "beside": beside and {"name": beside[0], "vocab_size": beside[1].vocab_size},
    }


# --- numbers of ids ---


def _measure_counts(scanned: Scan) -> Facts:
    """Measure what needs no text: sources, lengths, frequencies, rows."""
    file, lengths = scanned.file, scanned.lengths
    in_order = np.sort(scanned.counts[scanned.counts > 0])[::-1]
    ranks = np.unique(np.geomspace(1, max(len(in_order), 1), _RANKS).round().astype(np.int64))
    ranks = ranks[: len(in_order)]
    longest = int(lengths.values.max(initial=1))
    edges = [edge for edge in LENGTH_EDGES if edge <= 2 * longest]  # the last is above it
    sources = [
        {key: each.get(key) for key in ("name", "bytes", "documents", "tokens")}
        for each in file.manifest.sources
    ]
    return describe_scan(scanned) | {
        "sources": sources, "pattern": file.manifest.pattern, "digest": file.manifest.digest,
        "is_imported": file.manifest.is_imported,
        "lengths": {"edges": edges, "documents": lengths.histogram(edges)},
        "frequencies": {"ranks": ranks.tolist(), "counts": in_order[ranks - 1].tolist()},
        "rows": [_measure_rows(scanned, length) for length in ROW_LENGTHS],
    }


def _measure_rows(scanned: Scan, length: int) -> Facts:
    """Return what is lost with rows of so many tokens: cut off, or padding."""
    file, lengths = scanned.file, scanned.lengths
    n_rows = count_rows(lengths.values, lengths.counts, length)
    cut_off, is_longer = lengths.above(length), lengths.values > length
    room, of_documents = n_rows * length, file.n_documents * length
    padding = of_documents - (file.n_tokens - cut_off)
    return {
        "length": length, "longer_documents": int(lengths.counts[is_longer].sum()),
        "cut_off_tokens": cut_off, "cut_off_share": cut_off / max(file.n_tokens, 1),
        "padding_of_documents": padding,
        "padding_of_documents_share": padding / max(of_documents, 1),
        "packed_rows": n_rows, "packed_padding": room - file.n_tokens,
        "packed_padding_share": (room - file.n_tokens) / max(room, 1),
    }


def divergence(first: Numbers, second: Numbers) -> tuple[float, Any]:
    """Return the Jensen-Shannon divergence of two counts in bits, and the part of each id.

    It is 0 for equal shares of all ids, and 1 for counts that have no id in common.

    Args:
        first: int64[n], occurrences of each id, at least one.
        second: Likewise.

    Returns:
        (divergence, float64[n] of which it is the sum).
    """
    shares = [counts / counts.sum() for counts in (first, second)]
    mean, parts = (shares[0] + shares[1]) / 2, np.zeros(len(first))
    for share in shares:
        there = share > 0
        parts[there] += share[there] * np.log2(share[there] / mean[there]) / 2
    return float(parts.sum()), parts


def _compare(scans: Mapping[str, Scan], tokenizers: Mapping[str, AnyTokenizer]) -> list[Facts]:
    """Compare each NAMEval with NAMEtrain; `tokenizers` are by their fingerprints."""
    found = [*compare_val_with_train(scans)]
    for pair in found:
        if "in_train" in pair:
            train, val = scans[pair["train"]], scans[pair["val"]]
            tokenizer = tokenizers.get(val.file.manifest.tokenizer_fingerprint)
            pair |= _compare_tokens(train, val, tokenizer)
    return found


def _compare_tokens(train: Scan, val: Scan, tokenizer: AnyTokenizer | None) -> Facts:
    """Compare the tokens of two datasets, the special ids around documents left out."""
    manifest = val.file.manifest
    around = manifest.end_of_text_id, manifest.begin_of_text_id
    size = max(len(each.counts) for each in (train, val))
    counts = [np.pad(each.counts, (0, size - len(each.counts))) for each in (train, val)]
    for each in counts:
        each[[x for x in around if x is not None and x < size]] = 0
    n_train, n_val = (int(each.sum()) for each in counts)
    if not n_train or not n_val:
        return {"divergence": None, "divergence_of_draw": None, "tokens": []}
    value, parts = divergence(*counts)
    # The least that can be expected: as many tokens, drawn from train one by one.
    draw = np.random.default_rng(0).multinomial(n_val, counts[0] / n_train)
    listed = np.argsort(-parts, kind="stable")[:_LISTED]
    return {
        "divergence": value, "divergence_of_draw": divergence(counts[0], draw)[0],
        "tokens": [
            {
                "id": i, "text": _text_of(i, tokenizer), "train_share": int(counts[0][i]) / n_train,
                "val_share": int(counts[1][i]) / n_val, "part": float(parts[i]),
            }
            for i in listed.tolist() if parts[i] > 0
        ],
    }


def _text_of(token: int, tokenizer: AnyTokenizer | None) -> str | None:
    has_text = tokenizer is not None and token in tokenizer.vocab
    return token_texts([token], tokenizer)[0] if tokenizer and has_text else None


# --- numbers of text ---


def _measure_text(scanned: Scan, tokenizer: AnyTokenizer, beside: AnyTokenizer | None) -> Facts:
    """Measure what needs the tokenizer."""
    file = scanned.file
    vocab = {i: token for i, token in tokenizer.vocab.items() if i < file.vocab_size}
    ids = np.fromiter(vocab, np.int64, len(vocab))
    unused = ids[scanned.counts[ids] == 0]
    order = np.argsort(-scanned.counts, kind="stable")[:_LISTED]
    single = [i for i, token in vocab.items() if len(token) == 1]
    parts = [i for i in single if vocab[i] >= b"\x80"]
    n_single, n_parts = (int(scanned.counts[each].sum()) for each in (single, parts))
    return {
        "unused_tokens": len(unused), "tokens_of_vocabulary": len(vocab),
        "unused": _listed_tokens(unused[:_LISTED], scanned, tokenizer),
        "frequent": _listed_tokens(order[scanned.counts[order] > 0], scanned, tokenizer),
        "single_bytes": {
            "tokens": n_single, "share": n_single / max(file.n_tokens, 1),
            "parts_of_characters": n_parts, "parts_share": n_parts / max(file.n_tokens, 1),
        },
        "sample": _sample(file, tokenizer, beside),
        "decoded": [*_decode_documents(file, tokenizer)],
    }


def _listed_tokens(ids: Numbers, scanned: Scan, tokenizer: AnyTokenizer) -> list[Facts]:
    return [
        {"id": i, "text": _text_of(i, tokenizer), "count": int(scanned.counts[i])}
        for i in ids.tolist()
    ]


def _decode_documents(file: TokenFile, tokenizer: AnyTokenizer) -> Iterator[Facts]:
    """Decode the beginnings of documents at equal distances, token by token."""
    n = file.n_documents
    for number in sorted({*np.linspace(0, n - 1, min(n, _SHOWN_DOCUMENTS)).astype(int).tolist()}):
        start, stop = read_bounds(file, number, number + 1).tolist()
        end = min(stop, start + _SHOWN_TOKENS)
        ids = file[start:end].tolist()
        yield {
            "document": number, "tokens": stop - start, "ids": ids,
            "texts": token_texts(ids, tokenizer),
            "trained": np.asarray(file.loss_mask[start:end]).tolist() if file.has_mask else None,
        }


def _sample(file: TokenFile, tokenizer: AnyTokenizer, beside: AnyTokenizer | None) -> Facts:
    """Decode a sample of documents: bytes per token by source and script, and broken text."""
    n = file.n_documents
    most = int(_SAMPLE_TOKENS / max(file.n_tokens / max(n, 1), 1)) + 1
    numbers = np.linspace(0, n - 1, min(n, most, _SAMPLE_DOCUMENTS)).astype(np.int64)
    sources = Sources(file)
    groups: dict[str, dict[str, Counter[str]]] = {"source": {}, "script": {}}
    broken, is_cut = Counter[str](), False
    for number in dict.fromkeys(numbers.tolist()):
        start, stop = read_bounds(file, number, number + 1).tolist()
        # Without the special ids around it.
        start, stop = start + (file.manifest.begin_of_text_id is not None), stop - 1
        end = min(stop, start + _MOST_OF_DOCUMENT)
        is_cut |= end < stop
        data = tokenizer.decode_bytes(file[start:end]) if end > start else b""
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(data, end == stop)
        broken.update(_find_broken(data, text))
        counts = {"documents": 1, "bytes": len(data), "tokens": end - start}
        if beside is not None:
            counts["beside_tokens"] = len(beside.encode_ordinary(text))
        groups["script"].setdefault(script_of(text), Counter()).update(counts)
        if sources.in_order:
            (source,) = (sources.names[i] for i in sources.of(np.array([number])))
            groups["source"].setdefault(source, Counter()).update(counts)
    return {
        "documents": sum(x["documents"] for x in groups["script"].values()),
        "everything": len(numbers) == n and not is_cut,
        "broken": {x: broken[x] for x in ("not_utf8", "replaced", "mojibake", "documents")},
    } | {f"by_{key}": [*_ratios(key, of_key)] for key, of_key in groups.items()}


def _find_broken(data: bytes, text: str) -> list[str]:
    """Return what is broken in a document, and "documents" if something is."""
    n_own, n_shown = data.count("\ufffd".encode()), text.count("\ufffd")
    found = ["not_utf8"] * (n_shown > n_own) + ["replaced"] * (n_shown == n_own > 0)
    found += ["mojibake"] * (_MOJIBAKE.search(text) is not None)
    return [*found, "documents"] if found else []


def script_of(text: str) -> str:
    """Return the script of most letters at the beginning of a text.

    >>> script_of("print('привет, мир')"), script_of("日本 1 2 3 and"), script_of("1 + 2")
    ('Cyrillic', 'Latin', 'no letters')
    """
    found = Counter(filter(None, map(_script_of_letter, text[:_SCRIPT_CHARACTERS])))
    return max(sorted(found), key=found.__getitem__, default="no letters")


@functools.cache
def _script_of_letter(character: str) -> str:
    """Return the script of a letter, "" of another character."""
    word = unicodedata.name(character, "UNKNOWN").partition(" ")[0]
    return _SCRIPTS.get(word, word.title()) if character.isalpha() else ""


def _ratios(key: str, groups: Mapping[str, Counter[str]]) -> Iterator[Facts]:
    """Yield the bytes per token of each group, the most bytes first."""
    for name, counts in sorted(groups.items(), key=lambda x: -x[1]["bytes"]):
        ratios = {
            f"{of.removesuffix('tokens')}bytes_per_token": counts["bytes"] / max(counts[of], 1)
            for of in counts if of.endswith("tokens")
        }
        yield {key: name} | counts | ratios


# --- the run, and the verdict ---


def _find_run(file: TokenFile) -> dict[str, Facts]:
    """Return {location of the stats.json of the run that made a dataset: what it records}."""
    place = str(file.absolute_path)
    directory = directory_of(place) if is_url(place) else str(Path(place).parent)
    stem = Path(url_name(place) if is_url(place) else place).stem
    files = open_files(directory)
    name = find_stats_file(files, manifest_name(stem))
    if name is None or (content := read_object(files, name, STATS_FORMAT)) is None:
        return {}
    left_out = ("manifests", "rejects", "made_from", "format", "format_version", "fingerprint")
    kept = {key: value for key, value in content.items() if key not in left_out}
    return {files.where(name): {"file": name} | kept}


def _judge(found: Facts) -> Facts:
    """Return {"ok", "line", "checks"}; the ok of a check is None if it could not be made."""
    each = [*_judge_damage(found), *_judge_documents(found), *_judge_text(found)]
    checks = [{"about": about, "ok": ok, "text": text} for about, ok, text in each]
    problems = [text for _, ok, text in each if ok is False]
    unknown = [text for _, ok, text in each if ok is None]
    line = f"look at this first: {'; '.join(problems)}" if problems else "nothing wrong was found"
    return {"ok": not problems, "line": "; ".join([line, *unknown]), "checks": checks}


def _judge_damage(found: Facts) -> Iterator[Check]:
    wrong = [*(x for x in found["findings"] if not x["ok"]), *found["bad_files"]]
    text = f"no damage in {counted(len(found['datasets']), 'dataset')}"
    for each in wrong[:1]:
        text = f"damage: {Path(each['path']).name}: {each['text']}"
    yield "damage", not wrong, text


def _judge_documents(found: Facts) -> Iterator[Check]:
    for pair in found["val_in_train"]:
        if "in_train" in pair:
            n, text = pair["in_train"], f"{counted(pair['documents'], 'document')} of {pair['val']}"
            yield "leaks", n == 0, f"{n:,} of {text} are in {pair['train']}, too"
        else:
            text = f"{pair['val']} was not compared with {pair['train']}: {pair['not_compared']}"
            yield "leaks", None, text
    if not found["val_in_train"]:
        yield "leaks", None, "there is no train with its validation, so leaks are not known"
    n = sum(each["copies"] for each in found["datasets"])
    n_documents = sum(each["documents"] for each in found["datasets"])
    text = f"{n:,} of {counted(n_documents, 'document')} are copies of others in their dataset"
    yield "copies", n <= _COPIES_SHARE * n_documents, text


def _judge_text(found: Facts) -> Iterator[Check]:
    for each in found["datasets"]:
        if "no_text" in each:
            yield "text", None, f"{each['name']} was not decoded: {each['no_text']}"
    known = [each for each in found["datasets"] if "no_text" not in each]
    if largest := max(known, key=lambda x: int(x["tokens"]), default=None):
        n, n_all = largest["unused_tokens"], largest["tokens_of_vocabulary"]
        text = f"{n:,} of {n_all:,} tokens of the vocabulary are not in {largest['name']}"
        yield "unused", n <= _UNUSED_SHARE * n_all, text
        broken = sum(each["sample"]["broken"]["documents"] for each in known)
        looked = sum(each["sample"]["documents"] for each in known)
        text = f"{broken:,} of {looked:,} documents that were decoded have broken text"
        yield "broken", broken == 0, text


# --- text for people ---


def format_lines(found: Facts) -> list[str]:
    """Format the verdict, and a line for each dataset."""
    marks = {True: "ok     ", False: "LOOK   ", None: "unknown"}
    lines = [f"{marks[x['ok']]}  {x['about']}: {x['text']}" for x in found["verdict"]["checks"]]
    for each in found["datasets"]:
        lines.append(
            f"{each['name']}: {counted(each['documents'], 'document')},"
            f" {counted(each['tokens'], 'token')}, {each['bytes_per_token']:.2f} bytes per token"
        )
    lines += [
        f"{x['val']} against {x['train']}: divergence {x['divergence']:.4f} bits"
        for x in found["val_in_train"] if x.get("divergence") is not None
    ]
    return lines
