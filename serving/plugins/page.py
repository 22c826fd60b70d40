"""Plugin: the web page at `/` and the static files that it loads.

The files are read and compressed once, when the application is built. To compress the viewer of the OpenAPI document
takes tens of milliseconds, in which nothing else would be answered. An HTML file is made in each language that has a
catalogue of texts, `web/text/LANGUAGE.json`.
"""

import gzip
import hashlib
import html
import mimetypes
import re
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Request, Response, get
from litestar.config.app import AppConfig
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.plugins import InitPlugin

from serving.api.middleware import (
    MIN_COMPRESSED_BYTES,
    PRECOMPRESSED,
    PUBLIC,
    REVALIDATE,
    accepts_gzip,
    entity_tag,
)
from serving.schemas import wanted_languages

WEB: Final = Path(__file__).resolve().parents[1] / "web"
_PAGE: Final = "."  # the name of index.html, which stands at the root alone: its addresses begin there
_DEFAULT_LANGUAGE: Final = "en"
_PARTS: Final = "parts"  # folder of what stands in several pages
_WORKER: Final = "worker.js"
_NOT_OFFLINE: Final = (_WORKER, "icons/", "schema.", "love-in-a-mist.", "vendor/")  # what the page does without
_PLACEHOLDER: Final = re.compile(r"\{\{([\w.]+)\}\}")


class _WebFile(NamedTuple):
    media_type: str
    headers: dict[str, str]
    content: bytes
    compressed: bytes | None


class Page(InitPlugin):
    """Adds the routes of the page."""

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Reads and compresses the files, and adds their route."""
        _web_files()
        app_config.route_handlers.append(_file)
        return app_config


@get(["/", "/web/{name:path}"], include_in_schema=False, sync_to_thread=False, opt={PRECOMPRESSED: True, **PUBLIC})
def _file(request: Request[Any, Any, Any], name: FromPath[Path] = Path(_PAGE)) -> Response[bytes]:
    path = name.as_posix().lstrip("/")
    remembered = re.findall(r"(?:^|;) ?lang=(\w+)", request.headers.get("cookie", ""))  # that of the longest path first
    chosen = [request.query_params.get("lang", ""), *remembered]
    language = _language(chosen, request.headers.get("accept-language", ""))
    file = _web_files().get((path, "")) or _web_files().get((path, language))
    if file is None:
        raise NotFoundException
    if file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers = {**file.headers, "Content-Encoding": "gzip"}
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=file.headers)


def _language(chosen: Sequence[str], accept_language: str) -> str:
    """Returns the language of a page: the first with a catalogue among what was chosen and what the browser wants."""
    wanted = (each.partition("-")[0].lower() for each in (*chosen, *wanted_languages(None, accept_language)))
    return next((each for each in wanted if each in _catalogues()), _DEFAULT_LANGUAGE)


@cache
def _web_files() -> dict[tuple[str, str], _WebFile]:
    """Returns (name below /web/, language) -> file; the language is "" where a file is the same in all."""
    contents: dict[tuple[str, str], bytes] = {}
    for path in filter(Path.is_file, sorted(WEB.rglob("*"))):
        if path.parent.name == _PARTS:
            continue
        name = _PAGE if path.name == "index.html" else path.relative_to(WEB).as_posix()
        content = path.read_bytes()
        if path.suffix == ".html":
            for language in _catalogues():
                contents[name, language] = _translated(name, content.decode(), language).encode()
        else:
            contents[name, ""] = content
    version = hashlib.sha256(b"".join(contents.values())).hexdigest()[:16]
    contents[_WORKER, ""] = _worker(contents, version).encode()
    return {
        (name, language): _web_file(name, language, content, version) for (name, language), content in contents.items()
    }


def _worker(contents: Mapping[tuple[str, str], bytes], version: str) -> str:
    """Returns the service worker, with a version that changes with each file, and the addresses of what it keeps."""
    names = sorted({name for name, _ in contents if not name.startswith(_NOT_OFFLINE)})
    kept = ["/" if name == _PAGE else f"/web/{name}" for name in names]
    constants = {"VERSION": version, "FILES": kept}
    lines = [f"const {name} = {msgspec.json.encode(value).decode()};\n" for name, value in constants.items()]
    return "".join(lines) + contents[_WORKER, ""].decode()


def _web_file(name: str, language: str, content: bytes, version: str) -> _WebFile:
    compressed = gzip.compress(content, mtime=0) if len(content) >= MIN_COMPRESSED_BYTES else None
    headers = {"ETag": entity_tag(content), "Cache-Control": REVALIDATE, "Page-Version": version}
    if name == _WORKER:
        headers["Service-Worker-Allowed"] = "../"  # its scope is wider than its address
    elif not language:  # other files change the worker, and another language has another ETag, but the same time
        headers["Last-Modified"] = formatdate((WEB / name).stat().st_mtime, usegmt=True)
    media_type = "text/html" if language else mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _WebFile(media_type, headers, content, compressed)


@cache
def _catalogues() -> dict[str, dict[str, Any]]:
    """Returns language -> key -> text of the page."""
    return {path.stem: msgspec.json.decode(path.read_bytes()) for path in sorted((WEB / "text").glob("*.json"))}


def _translated(name: str, page: str, language: str) -> str:
    """Fills in the head of all pages, texts, which stand there as `{{key}}`, the way to the root, and the languages."""
    page = page.replace("  {{head}}\n", (WEB / _PARTS / "head.html").read_text(encoding="utf-8"))
    links = (
        f'<a href="?lang={each}" hreflang="{each}" lang="{each}"{" aria-current=true" if each == language else ""}>'
        f"{html.escape(texts['language.name'])}</a>"
        for each, texts in _catalogues().items()
    )
    root = "./" if name == _PAGE else "../"
    more = {"language": language, "languages": " ".join(links), "root": root}
    texts = _catalogues()[language]
    return _PLACEHOLDER.sub(lambda match: more.get(match[1]) or html.escape(texts[match[1]]), page)
