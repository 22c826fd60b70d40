"""Errors of one request, below the tree of `models.errors`.

    InputError
    └── RequestError             the request cannot be answered as it was sent
        ├── Unauthorized         no API key, or one that does not count here
        ├── NoImage              no picture, or an empty one
        ├── MalformedBody        the body does not follow its own content type
        ├── SlowBody             the body did not arrive in time, or not fast enough
        ├── TooLarge             more bytes than allowed
        ├── TooManyImages        more pictures than allowed
        ├── BadParameter         a parameter out of its range
        ├── BadPicture           one picture is refused; names which
        ├── ReloadRefused        the bundle on disk is not fit; the old one goes on answering
        ├── RunFailed            the network gives no answer for these pictures, and does for others
        └── Unavailable          nothing is wrong with the request; try again later
            ├── RateLimited      the client asks more often than it may
            ├── Overloaded       more work waits than can be done in time
            ├── NotReady         the network is not loaded and warmed up yet
            └── TimedOut         the answer was not there before the deadline
    BotanifyError
    └── ClientLeft               nobody waits for the answer any more: no error, only an end

None of them knows HTTP: `serving.problems` gives every code its status.
"""

from typing import ClassVar

from models.errors import BotanifyError, InputError, PictureError, UnreadableImage


class RequestError(InputError):
    """The request cannot be answered as it was sent.

    Args:
        problem: As `InputError`, like `value`, `limit` and `remedy`.
        index: Position of the picture at fault, from 0, where one is.
    """

    code: ClassVar[str] = "bad_request"

    def __init__(
        self,
        problem: str,
        *,
        value: object = None,
        limit: str | None = None,
        remedy: str | None = None,
        index: int | None = None,
    ) -> None:
        super().__init__(problem, value=value, limit=limit, remedy=remedy)
        self.index = index


class Unauthorized(RequestError):
    """No API key, or one that does not count here."""

    code = "unauthorized"


class NoImage(RequestError):
    """No picture was sent, or an empty one."""

    code = "no_image"


class MalformedBody(RequestError):
    """The body does not follow its own content type."""

    code = "malformed_body"


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
    """A parameter out of its range."""

    code = "bad_parameter"


class BadPicture(RequestError):
    """One picture of the request is refused; `reason` says why and has the code to show."""

    code = PictureError.code

    def __init__(self, reason: PictureError, index: int) -> None:
        super().__init__(reason.problem, value=reason.value, limit=reason.limit, remedy=reason.remedy, index=index)
        self.reason = reason


class ReloadRefused(RequestError):
    """The bundle on disk is not fit; the old one goes on answering."""

    code = "reload_refused"


class RunFailed(RequestError):
    """The network gives no answer for these pictures, and does for others."""

    code = UnreadableImage.code


class Unavailable(RequestError):
    """Nothing is wrong with the request; `retry_after_s` says when to try again."""

    code = "unavailable"

    def __init__(
        self,
        problem: str,
        *,
        retry_after_s: int | None = None,
        value: object = None,
        limit: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem, value=value, limit=limit, remedy=remedy)
        self.retry_after_s = retry_after_s


class RateLimited(Unavailable):
    """The client asks more often than it may."""

    code = "rate_limited"


class Overloaded(Unavailable):
    """More work waits than can be done in time."""

    code = "overloaded"


class NotReady(Unavailable):
    """The network is not loaded and warmed up yet."""

    code = "not_ready"


class TimedOut(Unavailable):
    """The answer was not there before the deadline."""

    code = "timed_out"


class ClientLeft(BotanifyError):
    """The client closed the connection: nobody waits for the answer any more."""

    code = "client_left"
