"""The messages of errors, with remedies, as they are in the source code: for docs/errors.md."""

from __future__ import annotations

import ast
import html
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
# Functions that raise, or return, an error with the message that they are given.
_REFUSING = {"refuse", "unsupported"}
# A remedy without a semicolon before it begins with one of these words.
_REMEDIES = (
    "build|check|choose|copy|correct|delete|download|encode|export|expected|free|get|give|install"
    "|keep|leave|make|move|name|open|put|read|remove|repeat|rerun|run|save|set|start|take|train"
    "|use|wait|write"
)
_REMEDY = re.compile(rf"^(.*)(?:; |[:,.] (?=(?:{_REMEDIES})\b))(.+)$", re.DOTALL)
_MOST = 12  # versions of one message that are listed
_PACKAGES = {  # in the order of the page; others follow
    "preprocess.sources": "Files of text",
    "preprocess.documents": "Conversations and templates",
    "preprocess": "Command, options and configurations",
    "preprocess.run": "Builds",
    "preprocess.storage": "Places of outputs",
    "preprocess.dataset": "Datasets",
    "preprocess.edit": "Changes of datasets",
    "preprocess.sampling": "Sampling",
    "preprocess.rows": "Rows",
    "preprocess.export": "Exports",
    "preprocess.imports": "Imports",
    "preprocess.check": "Inspection and verification",
    "preprocess.find": "Search",
    "preprocess.view": "The page in the browser",
    "preprocess.report": "Reports of runs",
    "bpe": "Tokenizers",
    "bpe.formats": "Files of tokenizers",
    "bpe.split": "Split patterns",
    "bpe.train": "Training of tokenizers",
    "bpe.encode": "Encoding",
    "bpe.text": "Text",
    "bpe.files": "Paths and URLs",
    "bpe.runtime": "Compilation",
}


class Message(NamedTuple):
    """A message; "…" stands for a value."""

    module: str
    error: str  # "" if a function makes it
    text: str


def messages() -> Iterator[Message]:
    """Yield the messages of all errors, by module and line."""
    paths = sorted([*(ROOT / "bpe").rglob("*.py"), *(ROOT / "preprocess").rglob("*.py")])
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    constants = {
        name: values for tree in trees.values() for name, values in _assigned(tree).items()
        if name.isupper() and isinstance(values[0], ast.Constant | ast.JoinedStr)
    }
    for path, tree in trees.items():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for scope in [tree, *_of_type(tree, ast.FunctionDef)]:
            found = [*_errors_in(scope)]
            assigned = constants | (_assigned(scope) if found else {})
            for call, name in found:
                texts = {x for given in call.args for x in _texts(given, assigned)}
                for text in sorted(texts):
                    if re.search(r"\w", text):
                        yield Message(module, name if name[0].isupper() else "", text)


def _of_type(tree: ast.AST, kind: type[ast.FunctionDef]) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef):
            yield child
            yield from _inside(child)


def _errors_in(scope: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in a scope that make an error, and the name of what is called."""
    for node in _inside(scope):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call):
            name = ast.unparse(call.func).rpartition(".")[2]
            is_raised = isinstance(node, ast.Raise) and name != "AssertionError"
            if is_raised or name in _REFUSING:
                yield call, name


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """The values that a scope gives to each name."""
    found: dict[str, list[ast.expr]] = {}
    for node in _inside(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return found


def _texts(node: ast.AST, assigned: dict[str, list[ast.expr]]) -> list[str]:
    """The texts that an expression may have; of values that are not known, "…"."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=orelse):
            return _texts(body, assigned) + _texts(orelse, assigned)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined([_texts(left, assigned), _texts(right, assigned)])
        case ast.JoinedStr(values=values):
            return _joined([_texts(value, assigned) for value in values])
        case ast.FormattedValue(value=value):
            return _texts(value, assigned)
        case ast.Name(id=name) if name in assigned:
            others = {key: value for key, value in assigned.items() if key != name}
            return [text for value in assigned[name] for text in _texts(value, others)]
    return ["…"]


def _joined(parts: list[list[str]]) -> list[str]:
    found = itertools.islice(itertools.product(*parts), _MOST)
    return list(dict.fromkeys(re.sub("…(?:\\s*…)+", "…", "".join(each)) for each in found))


def page() -> str:
    """The tables of messages in Markdown, by package and module."""
    of_module: dict[str, dict[Message, None]] = {}
    for message in (each for each in messages() if " " in each.text.strip("… ")):
        of_module.setdefault(message.module, {})[message] = None
    parts = []
    for package in sorted({_package(module) for module in of_module}, key=_place):
        parts.append(f"\n## {_PACKAGES.get(package) or _subject(package)}\n")
        for module, found in of_module.items():
            if _package(module) == package:
                parts.append(f"\n**{_subject(module)}**\n\n| message | remedy | |\n|---|---|---|\n")
                parts += map(_row, found)
    return "".join(parts)


def _package(module: str) -> str:
    """The package of a module, which is one if it has `__init__`."""
    is_package = (ROOT / module.replace(".", "/")).is_dir()
    return module if is_package else module.rpartition(".")[0]


def _place(package: str) -> tuple[int, str]:
    return [*_PACKAGES, package].index(package), package


def _subject(module: str) -> str:
    """The first sentence of a module's docstring."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or module
    return doc.partition("\n")[0].rstrip(".")


def _row(message: Message) -> str:
    text = message.text.strip().removeprefix("…: ")
    match = _REMEDY.match(text)
    has_both = match and match[1].strip("… ") and not match[2].startswith(("got ", "found "))
    what, remedy = match.groups() if match and has_both else (text, "")
    error = f"`{message.error}`" if message.error else ""
    return f"| {_escaped(what)} | {_escaped(remedy)} | {error} |\n"


def _escaped(text: str) -> str:
    text = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"([\\`*_\[\]|{}#])", lambda match: f"&#{ord(match[0])};", text)
