"""The page: one self-contained HTML file that opens from disk without a network."""

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from conceptors.report import data
from conceptors.report.sections import sections
from conceptors.report.summary import summary
from conceptors.report.text import clean, setting
from conceptors.report.theme import DARK, LIGHT, page_svg


def render(results: dict[str, Any]) -> str:
    """Return the page of checked results as text; see `write_page`."""
    results = clean(results)
    settings = data.settings(results)
    shared = (settings.nunique(axis=1) == 1) & settings.notna().all(axis=1)
    return fill(
        "page.html",
        title=results.get("title") or results["scenario"],
        results=results,
        command=re.split(r"\s+(?=--)", results.get("command") or ""),
        rows=summary(results),
        sections=sections(results),
        settings=settings[~shared].fillna("–"),
        shared=dict(settings[shared].iloc[:, 0]),
        environment={k: setting(v) for k, v in results["environment"].items() if v is not None},
        tasks=data.task_names(results),
    )


def fill(template: str, *scripts: str, **values: Any) -> str:
    """Fill a template with values, the style and the scripts that its content policy allows.

    `scripts` are additional script files beside the template.
    """
    environment = Environment(
        loader=PackageLoader("conceptors.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    folder = files("conceptors.report") / "templates"
    script = "\n".join((folder / name).read_text("utf-8") for name in ("page.js", *scripts))
    style = environment.get_template("page.css").render(light=LIGHT, dark_colours=DARK)
    return environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        draw=page_svg,
        **values,
    )
