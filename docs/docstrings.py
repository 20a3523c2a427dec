"""Change docstrings and signatures for the pages of the site, as an extension of griffe."""

from __future__ import annotations

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> .*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    """Examples as code, and the arguments of functions whose arguments are options."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Make code of the examples of an object."""
        if obj.docstring:
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Show options as keyword arguments: `takes` makes them of the fields of settings."""
        if any(str(each.value).startswith("takes(") for each in func.decorators):
            keywords = griffe.ParameterKind.var_keyword
            func.parameters = griffe.Parameters(griffe.Parameter("options", kind=keywords))
