"""Hooks of `mkdocs build`: what the pages of the site have and the files in docs/ have not."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import bpe
import preprocess

sys.path.insert(0, str(Path(__file__).parent))
import errors

ROOT = Path(__file__).parent.parent
# A link to a file outside of docs/; one whose text is a page's name; a page that a docstring names;
# a public name.
_TO_SOURCE = re.compile(r"\]\(\.\./([^)#]+)\)")
_PAGE_AS_TEXT = re.compile(r"\[([\w-]+)\.md\]\(")
_TO_PAGE = re.compile(r"\bdocs/([\w-]+)\.md\b")
_NAME = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add pages: of the public names, and with each file of the repository that a page links to."""
    pages = [Path(file.abs_src_path).read_text("utf-8") for file in files.documentation_pages()]
    for path in sorted({path for page in pages for path in _TO_SOURCE.findall(page)}):
        text = (ROOT / path).read_text("utf-8")
        language = Path(path).suffix.removeprefix(".")
        front = "---\nsearch: {exclude: true}\n---\n"
        content = f"{front}# {path}\n\n``````{language}\n{text}``````\n"
        files.append(File.generated(config, f"source/{path}.md", content=content))
    for package in (bpe, preprocess):
        name = package.__name__
        directives = [
            f"::: {path}\n    options:\n      inherited_members: {'Config' not in path}"
            for path in public(package).values()
        ]
        content = "\n\n".join([f"# Names of {name}", *directives])
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def public(package: Any) -> dict[str, str]:
    """Return each public name of a package, also those that need PyTorch, and its path."""
    names = sorted({*package.__all__, *package._MODULE_OF}, key=str.lower)
    return {name: f"{package._MODULE_OF.get(name, 'bpe.errors')}.{name}" for name in names}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Add the messages of errors and links to names; point other links to pages of the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    if page.file.src_uri == "errors.md":
        markdown += errors.page()
    if page.file.src_uri == "python.md":
        paths = public(bpe) | public(preprocess)
        markdown = _NAME.sub(lambda name: f"| [`{name[1]}`][{paths[name[1]]}] |", markdown)
    markdown = _PAGE_AS_TEXT.sub(lambda link: f"[{title(link[1])}](", markdown)
    return _TO_SOURCE.sub(r"](source/\1.md)", markdown)


def title(page: str) -> str:
    """The title of a page of docs/."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return text.partition("\n")[0].removeprefix("# ")


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    r"""Link pages that docstrings name; take the backslash from `\|` in cells of tables."""
    if page.file.src_uri.startswith("source/"):
        return html
    up = "../" * page.file.src_uri.count("/")
    html = _TO_PAGE.sub(lambda x: f'<a href="{up}{x[1]}.html">{title(x[1])}</a>', html)
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace(r"\|", "|"), html, flags=re.DOTALL)
