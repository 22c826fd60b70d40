"""The routes of the web page at `/` and of the static files that it loads.

The files are read and compressed once, when the application is built. To compress the viewer of the OpenAPI document
takes tens of milliseconds, in which nothing else would be answered.
"""

import gzip
import mimetypes
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from serving.caching import REVALIDATE, accepts_gzip, entity_tag

WEB: Final = Path(__file__).resolve().parent / "web"
PRECOMPRESSED: Final = "precompressed"
"""Name of the option of a route whose responses are not to be compressed again."""
MIN_COMPRESSED_BYTES: Final = 1_000
"""A shorter text is sent as it is: it fits into one packet anyway."""


class _WebFile(NamedTuple):
    media_type: str
    headers: dict[str, str]
    content: bytes
    compressed: bytes | None


def page_routes() -> list[ControllerRouterHandler]:
    """Returns the routes of the page."""
    _web_files()  # reads and compresses them before the first request
    return [_page, _file, _documentation]


@get("/", include_in_schema=False, sync_to_thread=False, opt={PRECOMPRESSED: True})
def _page(request: Request[Any, Any, Any]) -> Response[bytes]:
    return _response(request, "index.html")


@get("/web/{name:path}", include_in_schema=False, sync_to_thread=False, opt={PRECOMPRESSED: True})
def _file(request: Request[Any, Any, Any], name: FromPath[Path]) -> Response[bytes]:
    return _response(request, name.as_posix().lstrip("/"))


@get(["/docs", "/openapi.json"], include_in_schema=False, sync_to_thread=False)
def _documentation(request: Request[Any, Any, Any]) -> Redirect:
    """Leads from where other services have their documentation to ours."""
    return Redirect("/schema" if request.url.path.startswith("/docs") else "/schema/openapi.json")


def _response(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    file = _web_files().get(name)
    if file is None:
        raise NotFoundException
    if file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers = {**file.headers, "Content-Encoding": "gzip"}
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=file.headers)


@cache
def _web_files() -> dict[str, _WebFile]:
    """Returns name below /web/ -> file."""
    return {path.relative_to(WEB).as_posix(): _read(path) for path in sorted(WEB.rglob("*")) if path.is_file()}


def _read(path: Path) -> _WebFile:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
    compressed = gzip.compress(content, mtime=0) if len(content) >= MIN_COMPRESSED_BYTES else None
    headers = {
        "ETag": entity_tag(content),
        "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True),
        "Cache-Control": REVALIDATE,
    }
    return _WebFile(media_type, headers, content, compressed)
