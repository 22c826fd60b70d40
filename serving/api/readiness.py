"""Whether the service is ready for requests."""

from collections.abc import Callable

from serving.errors import NotReady


class Readiness:
    """Whether the service is ready for requests: warmed up, healthy and not shutting down."""

    def __init__(self, *, is_warm: Callable[[], bool], is_healthy: Callable[[], bool]) -> None:
        self._is_warm = is_warm
        self._is_healthy = is_healthy
        self.is_draining = False
        """Set at the start of the shutdown; requests are still answered for a while."""

    def require_warm(self) -> None:
        """Checks that requests can be answered, also during the shutdown.

        Raises:
            NotReady: The warm-up has not finished.
        """
        if not self._is_warm():
            raise NotReady.with_retry("the network is not warmed up", 1)

    def require_ready(self) -> None:
        """Checks that a load balancer should send requests to this instance.

        Raises:
            NotReady: The service is warming up or shutting down, or its network or decoders have failed.
        """
        self.require_warm()
        if self.is_draining:
            raise NotReady("the service is shutting down", retry_after_s=5, remedy="send requests to another instance")
        if not self._is_healthy():
            raise NotReady("the network or the decoders do not respond", retry_after_s=5, remedy="try again later")

    @property
    def is_ready(self) -> bool:
        """Whether `require_ready` raises nothing."""
        try:
            self.require_ready()
        except NotReady:
            return False
        return True
