"""The routes of the web page at `/` and of the static files that it loads.

The files are read and compressed once, when the application is built. To compress the viewer of the OpenAPI document
takes tens of milliseconds, in which nothing else would be answered. An HTML file is made in each language that has a
catalogue of texts, `web/text/LANGUAGE.json`.
"""

import gzip
import hashlib
import html
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from litestar import Request, Response, Router, get
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
    SecurityRequirement,
    SecurityScheme,
    Server,
)
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from serving.api.middleware import REVALIDATE, accepts_gzip, entity_tag, revalidated
from serving.api.problems import MEDIA_TYPE, codes_by_status
from serving.schemas import MAX_IMAGES, Parameters, Problem, declared, wanted_languages

WEB: Final = Path(__file__).resolve().parents[1] / "web"
_PAGE: Final = "."  # the name of index.html, which stands at the root alone: its addresses begin there
_DEFAULT_LANGUAGE: Final = "en"
_PARTS: Final = "parts"  # folder of what stands in several pages
_WORKER: Final = "worker.js"
_NOT_OFFLINE: Final = (_WORKER, "icons/", "schema.", "sunflower.", "vendor/")  # what the page does without
_PLACEHOLDER: Final = re.compile(r"\{\{([\w.]+)\}\}")
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
    return [_file, _documentation]


@get(["/", "/web/{name:path}"], include_in_schema=False, sync_to_thread=False, opt={PRECOMPRESSED: True})
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


@get(["/docs", "/openapi.json"], include_in_schema=False, sync_to_thread=False)
def _documentation(request: Request[Any, Any, Any]) -> Redirect:
    """Leads from where other services have their documentation to ours."""
    page = "schema" if request.url.path.startswith("/docs") else "schema/openapi.json"
    return Redirect(_root(request) + page)


def _root(request: Request[Any, Any, Any]) -> str:
    """Returns the way to the root from an address directly below it, since a proxy may put the root behind a path."""
    return "../" if request.scope["raw_path"].endswith(b"/") else "./"


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


# ---- The OpenAPI document and its viewer, which loads nothing from other hosts

API_VERSION: Final = "1.0"
ADMIN_KEY: Final[list[SecurityRequirement]] = [{"bearer": []}, {"api_key": []}]
"""Security of a route that needs an admin key, in either header."""
OPTIONAL_KEY: Final[list[SecurityRequirement]] = [{}, *ADMIN_KEY]
"""Security of a route that needs a key only if the service has API keys."""
_KEY_DESCRIPTION: Final = "An API key. Required if the service has API keys; `/admin` routes always require one."
_SCHEMES: Final[dict[str, SecurityScheme | Reference]] = {
    "bearer": SecurityScheme(type="http", scheme="bearer", description=_KEY_DESCRIPTION),
    "api_key": SecurityScheme(
        type="apiKey", name="X-API-Key", security_scheme_in="header", description=_KEY_DESCRIPTION
    ),
}


def problem_responses(
    *statuses: int, record: type[msgspec.Struct] = Problem, media_type: str = MEDIA_TYPE
) -> dict[int, ResponseSpec]:
    """Returns the problem documents of these statuses, or what stands for them, for a route's `responses`."""
    codes = codes_by_status()
    return {
        status: ResponseSpec(
            record,
            generate_examples=False,
            media_type=media_type,
            description="Problem with the code " + " or ".join(f"`{code}`" for code in codes[status]),
        )
        for status in statuses
    }


def _header(kind: str, description: str) -> OpenAPIHeader:
    schema: Any = {"type": kind}
    return OpenAPIHeader(schema=schema, description=description)


_RETRY_AFTER: Final = {"Retry-After": _header("integer", "Seconds to wait before trying again")}
_QUOTA: Final = {
    "RateLimit": _header("string", "How many requests the client may still send, if there is a limit"),
    "RateLimit-Policy": _header("string", "The limit, if there is one"),
}
_HEADERS: Final[dict[str, dict[str, OpenAPIHeader | Reference]]] = {
    "200": {**_QUOTA},
    "401": {"WWW-Authenticate": _header("string", "Always `Bearer`")},
    "429": {**_RETRY_AFTER, **_QUOTA},
    "503": {**_RETRY_AFTER},
}
_PICTURE: Final = {"type": "string", "format": "binary"}
IMAGES: Final = {
    "type": "array",
    "items": _PICTURE,
    "minItems": 1,
    "maxItems": MAX_IMAGES,
    "description": "Photographs of one plant: JPEG, PNG, WebP, HEIC or AVIF",
}
"""The pictures in a form."""


def form_body(
    fields: Mapping[str, Any], description: str | None = None, *, required: str | None = None, raw: Sequence[str] = ()
) -> RequestBody:
    """Returns a body that is a form, in which one field may be required, or a picture of a `raw` media type."""
    form: Any = {"type": "object", "properties": fields, "required": required and [required]}
    picture: Any = _PICTURE
    content = {"multipart/form-data": OpenAPIMediaType(schema=form)}
    content |= {kind: OpenAPIMediaType(schema=picture) for kind in raw}
    return RequestBody(content, description, required=required is not None)


def operation(parameters: type[msgspec.Struct], body: RequestBody | None = None, *others: Parameter) -> type[Operation]:
    """Returns what declares a route that reads query and body itself, so that Litestar cannot infer them.

    Args:
        parameters: Declares the query.
        body: Of the request, if it has one.
        others: More parameters, such as headers.
    """

    @dataclass
    class Declared(Operation):
        def __post_init__(self) -> None:
            self.request_body = body
            self.parameters = [*(self.parameters or []), *_query_parameters(parameters), *others]
            for status, response in (self.responses or {}).items():
                if status in _HEADERS and isinstance(response, OpenAPIResponse):
                    response.headers = {**(response.headers or {}), **_HEADERS[status]}

    return Declared


def _query_parameters(record: type[msgspec.Struct]) -> Iterator[Parameter]:
    for name, schema in declared(record).items():
        described: Any = dict(schema)
        yield Parameter(name, "query", description=described.pop("description"), schema=described)


PREFER: Final = Parameter(
    name="Prefer",
    param_in="header",
    schema=Schema(type=OpenAPIType.STRING),
    example="wait=5",
    description="`wait=SECONDS` (RFC 7240): the longest time from the complete upload to the answer. It can only "
    "shorten the service's own deadline. Other preferences are ignored.",
)
_RAW_TYPES: Final = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/avif", "application/octet-stream")
IDENTIFY_BODY: Final = form_body(
    {"image": IMAGES, **declared(Parameters)}, "The photographs of one plant", required="image", raw=_RAW_TYPES
)


class OfflineViewer(OpenAPIRenderPlugin):
    """Serves the viewer page of `serving/web`; Litestar's viewer pages load scripts from other hosts."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Returns the page."""
        return (WEB / "schema.html").read_text(encoding="utf-8").replace("{{root}}", _root(request)).encode()


def openapi_config() -> OpenAPIConfig:
    """Returns the configuration of the document at `/schema/openapi.json` and its viewer at `/schema`."""
    return OpenAPIConfig(
        title="botanify",
        version=API_VERSION,
        description="Identifies plants on photographs. Errors are problem documents (RFC 9457) with a stable `code`.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, *_: handler.handler_name,
        components=Components(security_schemes=_SCHEMES),
        servers=[Server(url="..")],  # relative to the address of the document
        render_plugins=[OfflineViewer(), JsonRenderPlugin(media_type=MediaType.JSON)],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_finish),
    )


async def _finish(response: Response[Any]) -> Response[Any]:
    """Turns Litestar's own 404 page below `/schema` into a problem document; other responses may be kept."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return await revalidated(response)
