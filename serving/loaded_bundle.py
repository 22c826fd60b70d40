"""The bundle that answers, and how another takes its place without a request noticing."""

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import structlog
from PIL import Image

from models.bundle import Bundle, Precision, load_bundle
from models.errors import BundleError, InputError
from models.golden import check_golden
from models.preprocess import InputSpec
from models.ranking import Ranking, combine_pictures, rank
from models.session import NetworkSession, OnnxSession
from models.taxonomy import Taxonomy
from serving.cores import available_cores
from serving.decoding.pool import Decoded
from serving.errors import RunFailed
from serving.metrics import Metrics
from serving.scheduling.networks import choose_policy, choose_precision, open_networks
from serving.scheduling.policies import RunMode, SchedulingPolicy
from serving.scheduling.scheduler import Scheduler
from serving.scheduling.workers import run_in_daemon_thread
from serving.settings import Settings, find_bundle

Logits = npt.NDArray[np.float32]
_DRAWN_PX: Final = 96

_log = structlog.get_logger(__name__)


class PictureDecoder(Protocol):
    """What turns picture bytes into network input."""

    async def decode(self, data: bytes, spec: InputSpec) -> Decoded:
        """Decodes one picture."""
        ...


class Release:
    """A bundle at work: one of its networks, opened, with what the bundle knows about it.

    Args:
        bundle: Verified.
        precision: Which of its networks.
        networks: That network, opened for every mode of the policy.
        policy: Schedules its runs.
        metrics: Times its runs.
    """

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        networks: Mapping[RunMode, NetworkSession],
        policy: SchedulingPolicy,
        metrics: Metrics,
    ) -> None:
        self.bundle, self.precision, self.policy = bundle, precision, policy
        self.scheduler = Scheduler(networks, policy, metrics)
        first = networks["throughput"]
        self.providers = first.providers if isinstance(first, OnnxSession) else ()
        self._network = bundle.network(precision)
        self._num_users = 0
        self._retired = False

    @property
    def spec(self) -> InputSpec:
        """How a picture becomes the network's input."""
        return self.bundle.record.input

    @property
    def taxonomy(self) -> Taxonomy:
        """What it can name."""
        return self.bundle.taxonomy

    def rank(self, logits: Logits, top_k: int) -> Ranking:
        """Turns the logits of the pictures of one plant, shape (num_pictures, num_outputs), into an answer.

        Raises:
            RunFailed: Some of them are no numbers, as when half precision overflows on one picture.
        """
        if not np.isfinite(logits).all():
            raise RunFailed("the network gives no answer for the picture")
        known = self._network
        return rank(combine_pictures(logits), self.taxonomy, known.temperature, known.thresholds, top_k)

    async def warm_up(self, decoder: PictureDecoder) -> None:
        """Runs a picture through everything that a request goes through, and looks at what comes out.

        Raises:
            BundleError: The network does not answer as it did when the bundle was sealed, or gives no numbers.
        """
        golden = self.bundle.golden()
        picture = await decoder.decode(golden.picture if golden else _drawn_picture(), self.spec)
        runs = await self.scheduler.warm_up(picture.pixels)
        for logits in runs:
            _require_numbers(logits)
            if golden is not None:
                check_golden(golden, self.precision, logits, self._network.temperature)
        self.rank(runs[:1], top_k=1)

    @contextmanager
    def in_use(self) -> Iterator["Release"]:
        """Keeps it open until the context ends, even if another takes its place meanwhile."""
        self._num_users += 1
        try:
            yield self
        finally:
            self._num_users -= 1
            self._close_if_left()

    def retire(self) -> None:
        """Closes it as soon as nobody uses it."""
        self._retired = True
        self._close_if_left()

    def _close_if_left(self) -> None:
        if self._retired and self._num_users == 0:
            self.scheduler.close()


class Releases:
    """The release that answers now.

    Args:
        first: Answers first.
        reopen: Opens what shall answer next; runs in a thread.
        decoder: Decodes the pictures of the warm-up.
        metrics: Counts reloads and names the model.
    """

    def __init__(
        self, first: Release, reopen: Callable[[], Release], decoder: PictureDecoder, metrics: Metrics
    ) -> None:
        self.current = first
        self._reopen, self._decoder, self._metrics = reopen, decoder, metrics
        self._reloading = asyncio.Lock()
        self.is_warm = False

    async def warm_up(self) -> None:
        """Warms the first release up; requests are taken then."""
        await self.current.warm_up(self._decoder)
        self._tell()
        self.is_warm = True

    async def reload(self) -> Release:
        """Verifies, opens, warms up and checks the bundle that stands on disk now, then lets it answer.

        Requests under way are answered by the release that they began with, which closes after the last of them.

        Raises:
            BundleError: The new one is not fit; the old one goes on answering.
        """
        async with self._reloading:
            try:
                new = await self._open_next()
            except Exception as error:
                self._metrics.reload("refused")
                _log.error("reload_refused", error=" ".join(str(error).split())[:500])
                raise
            old, self.current = self.current, new
            old.retire()
            self._metrics.reload("swapped")
            self._tell()
            _log.info("reloaded", version=new.bundle.record.version, before=old.bundle.record.version)
            return new

    def close(self) -> None:
        """Takes no further pictures."""
        self.is_warm = False
        self.current.scheduler.close()

    async def _open_next(self) -> Release:
        new: Release = await run_in_daemon_thread(self._reopen)
        try:
            await new.warm_up(self._decoder)
        except InputError:
            new.scheduler.close()
            raise
        except Exception as error:  # whatever the network raises
            new.scheduler.close()
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise BundleError("the network does not run", value=reason, remedy="export the bundle again") from error
        except BaseException:
            new.scheduler.close()
            raise
        return new

    def _tell(self) -> None:
        record = self.current.bundle.record
        self._metrics.model(
            name=record.name,
            version=record.version,
            label_hash=record.label_hash,
            precision=self.current.precision,
            provider=next(iter(self.current.providers), ""),
            scheduling=self.current.policy.describe(),
        )


def open_release(settings: Settings, metrics: Metrics, session: NetworkSession | None = None) -> Release:
    """Verifies and opens the bundle that the settings name; it is not warm yet.

    Args:
        settings: Name the bundle, the precision, the device and how its runs share it.
        metrics: Times the runs.
        session: Runs in place of the bundle's own network; for tests.

    Raises:
        InputError: The bundle, the precision or the provider cannot be used.
    """
    cuda = settings.provider == "cuda"
    bundle = load_bundle(find_bundle(settings))
    precision = choose_precision(bundle, settings.precision, cuda=cuda)
    policy = choose_policy(
        cuda=cuda, num_cores=available_cores(), num_threads=settings.num_threads, num_runs=settings.num_runs
    )
    networks = (
        open_networks(bundle, precision, policy)
        if session is None
        else dict.fromkeys(policy.num_threads_by_mode, session)
    )
    return Release(bundle, precision, networks, policy, metrics)


def _require_numbers(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise BundleError(
            "the network does not answer in numbers",
            value=f"{np.count_nonzero(~np.isfinite(logits))} of {logits.size} logits are not finite",
            remedy="export the bundle again, or choose another precision",
        )


def _drawn_picture() -> bytes:
    """Two color gradients, for a bundle without a golden picture."""
    ramp = np.linspace(0, 255, _DRAWN_PX, dtype=np.uint8)
    across, down = np.meshgrid(ramp, ramp)
    stream = io.BytesIO()
    Image.fromarray(np.stack([across, down, 255 - across], axis=-1)).save(stream, "PNG")
    return stream.getvalue()
