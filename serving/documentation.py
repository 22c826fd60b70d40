"""The OpenAPI document and its viewer, which loads nothing from other machines."""

from dataclasses import dataclass
from typing import Any, Final

from litestar import Request, Response, Router
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import OpenAPIFormat, OpenAPIMediaType, OpenAPIType, Operation, RequestBody, Schema

from serving.pages import WEB
from serving.problems import MEDIA_TYPE, codes_by_status
from serving.schemas import DEFAULT_K, MAX_IMAGES, MAX_K, Problem

API_VERSION: Final = "1.0"
_RAW_TYPES: Final = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/avif", "application/octet-stream")


def whole_number_schema(most: int, default: int) -> dict[str, Any]:
    """JSON schema of a parameter that is read as text, so that a bad one gets a sentence of ours."""
    return {"type": OpenAPIType.INTEGER, "minimum": 1, "maximum": most, "default": default}


def problem_responses(*statuses: int) -> dict[int, ResponseSpec]:
    """The problem documents of some statuses, for a route's `responses`."""
    codes = codes_by_status()
    return {
        status: ResponseSpec(
            Problem,
            generate_examples=False,
            media_type=MEDIA_TYPE,
            description="Problem with the code " + " or ".join(f"`{code}`" for code in codes[status]),
        )
        for status in statuses
    }


@dataclass
class IdentifyOperation(Operation):
    """Declares both kinds of body, which Litestar cannot read off a handler that streams its body."""

    def __post_init__(self) -> None:
        """Adds the bodies to what Litestar found out."""
        picture = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
        images = Schema(
            type=OpenAPIType.ARRAY,
            items=picture,
            min_items=1,
            max_items=MAX_IMAGES,
            description="Photographs of one plant: JPEG, PNG, WebP, HEIC or AVIF",
        )
        k = Schema(type=OpenAPIType.INTEGER, minimum=1, maximum=MAX_K, default=DEFAULT_K)
        form = Schema(type=OpenAPIType.OBJECT, properties={"image": images, "k": k}, required=["image"])
        content = {"multipart/form-data": OpenAPIMediaType(schema=form)}
        content |= {kind: OpenAPIMediaType(schema=picture) for kind in _RAW_TYPES}
        self.request_body = RequestBody(content=content, required=True, description="One plant")


class OfflineViewer(OpenAPIRenderPlugin):
    """A page of our own that loads nothing from other machines; every plugin of Litestar's would."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Gives the page."""
        return (WEB / "schema.html").read_bytes()


def openapi_config() -> OpenAPIConfig:
    """The document at /schema/openapi.json and its viewer at /schema."""
    return OpenAPIConfig(
        title="botanify",
        version=API_VERSION,
        description="Identifies plants on photographs. Errors are problem documents (RFC 9457) with a stable `code`.",
        use_handler_docstrings=True,
        render_plugins=[OfflineViewer(), JsonRenderPlugin(media_type=MediaType.JSON)],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_refuse_not_found),
    )


async def _refuse_not_found(response: Response[Any]) -> Response[Any]:
    """Litestar answers unknown addresses below /schema with a page of its own; ours are problem documents."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return response
