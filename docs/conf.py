"""How Sphinx builds these pages: no network, no JavaScript for mathematics."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

import conceptors

logger = logging.getLogger(__name__)

project = "conceptors"
author = "the conceptors authors"
release = version = conceptors.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_update_mathjax = False

html_theme = "furo"
html_title = "conceptors"
html_static_path = ["assets"]
html_css_files = ["style.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
copyright = ""
html_show_copyright = False
highlight_language = "python"
pygments_style = "tango"
templates_path: list[str] = []
exclude_patterns: list[str] = []

default_role = "code"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]
# Python, torch, numpy and scikit-learn are documented elsewhere, and nothing is fetched.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|numpy|npt|np|sklearn|pathlib|collections|typing|os)\..*"),
    ("py:.*", r"(Tensor|Path|Any|Self|Callable|Sequence|Array|NDArray|\.\.\.)"),
    ("py:.*", r"(bool|bytes|float|int|str|object|None|dict|list|tuple|type)"),
    ("py:exc", r"\w*Error"),
    ("py:class", r"conceptors\.(algebra\.forms|shield\.health)\.\w+"),
    ("py:class", r"conceptors\.experiments\.(methods\.settings\.T|scenarios\.data\.read\.Data)"),
]


# --- mathematics as MathML, which browsers draw by themselves ------------------------------


def mathml(node: nodes.Element, display: str) -> str:
    latex = node.astext()
    for bar in ("Vert", "vert"):  # as fences, or they are spaced like operators
        latex = latex.replace(rf"\l{bar}", rf"\left\l{bar}").replace(rf"\r{bar}", rf"\right\r{bar}")
    found: str = convert(latex, display=display)
    if re.search(r"<m[io]>(&<|\\)", found):
        logger.warning("latex2mathml does not know all of: %s", latex, location=node)
    # infinity is no operator, and neither are names such as tr before a parenthesis
    found = found.replace("<mo>&#x0221E;</mo>", "<mi>&#x0221E;</mi>")
    found = re.sub(r"<mo>([a-z]{2,})</mo>(?=<mo[^>]*>&#x00028;)", r"<mi>\1</mi>", found)
    return found.replace("<mo>&#x0002F;</mo>", '<mo lspace="0em" rspace="0em">/</mo>')


def visit_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def visit_math_block(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="formula">{mathml(node, "block")}</div>')
    raise nodes.SkipNode


def trim_code(app: Sphinx, document: nodes.document) -> None:
    """The blank line that ends a doctest need not be seen."""
    for block in document.findall(nodes.literal_block):
        text = block.astext().rstrip()
        block.rawsource, block.children = text, []
        block.append(nodes.Text(text))


def unbreak_numbers(app: Sphinx, document: nodes.document) -> None:
    """Keep 97.2 ± 0.1 and 4.1 → 0.9 on one line."""
    for text in list(document.findall(nodes.Text)):
        joined = re.sub(" ([±→]) ", "\u00a0\\1\u00a0", text)
        if joined != text and not isinstance(text.parent, nodes.literal_block):
            text.parent.replace(text, nodes.Text(joined))


# --- docstrings, before napoleon reads them ------------------------------------------------


def prepare(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show indented formulas as written, split shared entries, and escape bars."""
    # napoleon takes what precedes a colon in the first line of a property for its type
    found: list[str] = ["..", ""] if what == "property" else []
    above, formula, doctest = "", False, False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not lines_end(found) and above and not above.startswith(" "):
            formula = True
            found += [".. code-block:: text", ""]
        formula = formula and (indented or not line)
        doctest = bool(line) and (doctest or line.startswith(">>>"))
        above = line or above
        if formula or doctest:
            found.append(line)
        elif shared := re.match(r"    (\w+(?:, \w+)+): (.*)", line):
            names = shared[1].split(", ")
            found += [f"    {name}: {shared[2]}" for name in names if not name.endswith("Error")]
            found += [line] if names[0].endswith("Error") else []
        else:
            found.append(line.replace("|", r"\|"))
    lines[:] = found


def lines_end(lines: list[str]) -> str:
    return lines[-1].strip() if lines else "nothing yet"


def short_arrays(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, given: str, returned: str
) -> tuple[str, str] | None:
    """numpy's alias for arrays of any shape and type is long when written out."""
    if not returned or "ndarray[" not in returned:
        return None
    return given, re.sub(r"(~?[\w.]*ndarray)\[.*dtype\[.*?\]\]", r"\1", returned)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", short_arrays)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("doctree-read", trim_code)
    app.connect("doctree-read", unbreak_numbers)
    app.connect("autodoc-process-docstring", prepare, priority=400)
