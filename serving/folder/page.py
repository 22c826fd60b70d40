"""What the pages of a run share: one file without scripts, in the light or dark colors of the reader."""

import html
from typing import Final

_STYLE: Final = """
body { font: 16px/1.45 system-ui, sans-serif; margin: 1rem; color: #1c1c1c; background: #fff }
.more { color: #555 }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #161616 } .more { color: #aaa } }
"""


def page(title: str, style: str, body: str) -> str:
    """Returns a page.

    Args:
        title: Its title and heading.
        style: Its own CSS.
        body: What follows the heading, HTML.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{style}</style>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</html>\n"
    )
