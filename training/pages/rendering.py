"""Renders a page: one file that works offline and without scripts. Texts of data sets are escaped."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def render(template: Path, filters: Mapping[str, Callable[..., str]], **content: Any) -> str:
    """Renders a template, which may include `style.css` and import `macros.html` of this folder.

    Args:
        template: The file.
        filters: Name -> function that formats a value; `number` is there already.
        content: What the template shows.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, **filters}
    return environment.get_template(template.name).render(**content)


def _number(value: int) -> str:
    return f"{value:,}"
