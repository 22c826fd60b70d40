"""The errors that one request can cause: `RequestError` for no answer, `Unavailable` if a later try may get one.

They extend the tree in `models.errors` and are independent of HTTP: `serving.api.problems` maps each code to a status.
"""

import math
from collections.abc import Mapping
from typing import Any, Self

from models.errors import BotanifyError, InputError, PictureError, UnreadableImage, UnsupportedFormat


class RequestError(InputError):
    """The request gets no answer; `code` and the message say why, with `value`, `limit` and `remedy` of `InputError`.

    `index` is the position of the picture at fault, from 0; None if the error is not about one picture.
    """

    code = "bad_request"

    def __init__(self, problem: str, *, index: int | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.index = index


class Unauthorized(RequestError):
    """No API key, or one without access."""

    code = "unauthorized"


class NoImage(RequestError):
    """No picture was sent, or an empty one."""

    code = "no_image"


class MalformedBody(RequestError):
    """The body does not match its content type."""

    code = "malformed_body"


class EncodedBody(RequestError):
    """The body has a content coding."""

    code = UnsupportedFormat.code


class SlowBody(RequestError):
    """The body did not arrive in time, or not fast enough."""

    code = "slow_body"


class TooLarge(RequestError):
    """More bytes than allowed."""

    code = "too_large"


class TooManyImages(RequestError):
    """More pictures than allowed."""

    code = "too_many_images"


class BadParameter(RequestError):
    """A parameter is out of range."""

    code = "bad_parameter"

    @classmethod
    def of(cls, name: str, text: str, fault: str, limit: str, remedy: str = "correct it, or leave it out") -> Self:
        """Creates the error of the parameter `name`, which has the value `text`."""
        return cls(f"the parameter `{name}` {fault}", value=repr(text[:40]), limit=limit, remedy=remedy)


class UnknownTaxon(RequestError):
    """No taxon of the model has this id."""

    code = "unknown_taxon"


class UnknownAnswer(RequestError):
    """The service does not know the answer that is corrected, or the correction."""

    code = "unknown_answer"


class StoreFull(RequestError):
    """There is no room for more pictures of corrections."""

    code = "store_full"


class BadPicture(RequestError):
    """One picture of the request is refused.

    Args:
        reason: The error of the picture; the client gets its code.
        index: Position of the picture, from 0.
    """

    code = PictureError.code

    def __init__(self, reason: PictureError, index: int) -> None:
        super().__init__(reason.problem, value=reason.value, limit=reason.limit, remedy=reason.remedy, index=index)
        self.reason = reason


class ReloadRefused(RequestError):
    """The bundle on disk cannot be used; the current one stays."""

    code = "reload_refused"


class RunFailed(RequestError):
    """The network fails on these pictures and works for others."""

    code = UnreadableImage.code


class Unavailable(RequestError):
    """Nothing is wrong with the request; the client may try again after `retry_after_s` seconds."""

    code = "unavailable"

    def __init__(self, problem: str, *, retry_after_s: int | None = None, **details: Any) -> None:
        super().__init__(problem, **details)
        self.retry_after_s = retry_after_s

    @classmethod
    def with_retry(cls, problem: str, wait_s: float) -> Self:
        """Creates an error whose remedy is to try again after `wait_s`, rounded up to whole seconds, at least 1."""
        retry_after_s = max(1, math.ceil(wait_s))
        plural = "" if retry_after_s == 1 else "s"
        return cls(problem, retry_after_s=retry_after_s, remedy=f"try again in {retry_after_s} second{plural}")


class RateLimited(Unavailable):
    """The client sends more requests than allowed."""

    code = "rate_limited"
    quota: Mapping[str, str] = {}
    """Headers that say what the client may send, as `serving.access.control` makes them."""


class Overloaded(Unavailable):
    """More work is waiting than can be done in time."""

    code = "overloaded"


class StoreUnavailable(Unavailable):
    """The store of corrections cannot be written now."""

    code = "store_unavailable"


class NotReady(Unavailable):
    """The service is warming up, shutting down or unhealthy."""

    code = "not_ready"


class TimedOut(Unavailable):
    """The deadline passed before the answer was ready."""

    code = "timed_out"


class ClientLeft(BotanifyError):
    """The client disconnected, so no answer is sent."""

    code = "client_left"
