"""The loaded bundle that answers requests, and how a reload replaces it without failing a request."""

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import structlog
from PIL import Image

from models.answer import PlantAnswer, Question, answer_plant
from models.bundle import Bundle, Precision, load_bundle
from models.errors import BundleError, InputError
from models.golden import check_golden
from models.preprocess import InputSpec
from models.session import NetworkSession, OnnxSession
from models.taxon_names import TaxonNames
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
_GRADIENT_PX: Final = 96

_log = structlog.get_logger(__name__)


class PictureDecoder(Protocol):
    """Turns picture bytes into network input."""

    @property
    def num_alive(self) -> int:
        """How many pictures can be decoded at the same time now."""
        ...

    async def start(self) -> None:
        """Starts the decoder."""
        ...

    async def decode(self, data: bytes, spec: InputSpec) -> Decoded:
        """Decodes one picture."""
        ...

    async def close(self) -> None:
        """Stops the decoder."""
        ...


class LoadedBundle:
    """A verified bundle with one of its networks open.

    Args:
        bundle: The verified bundle.
        precision: Which of its networks is open.
        networks: An open session of that network for each mode of the policy.
        policy: Schedules the network runs.
        metrics: Records the time of each run.
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
        self.names = TaxonNames(bundle.taxonomy)
        self.scheduler = Scheduler(networks, policy, metrics)
        first = networks["throughput"]
        self.providers = first.providers if isinstance(first, OnnxSession) else ()
        self._network = bundle.network(precision)
        self._answer_model = bundle.answer_model(precision)
        self._num_users = 0
        self._retired = False

    @property
    def spec(self) -> InputSpec:
        """How a picture becomes the network's input."""
        return self.bundle.record.input

    @property
    def taxonomy(self) -> Taxonomy:
        """The taxa that the network can name."""
        return self.bundle.taxonomy

    def rank(self, logits: Logits, top_k: int) -> PlantAnswer:
        """Ranks the taxa by the logits of all pictures of one plant, shape (num_pictures, num_outputs).

        Raises:
            RunFailed: A logit is not finite, for example because half precision overflowed on one picture.
        """
        if not np.isfinite(logits).all():
            raise RunFailed("the network fails on the picture", remedy="send another picture of the plant")
        without_features = np.zeros((len(logits), 0), dtype=np.float32)
        return answer_plant(logits, without_features, self._answer_model, Question(top_k))

    async def warm_up(self, decoder: PictureDecoder) -> None:
        """Sends a picture through decoding, network and ranking, and checks the logits.

        Raises:
            BundleError: The logits are not finite, or differ from those that were sealed with the bundle.
        """
        golden = self.bundle.golden()
        picture = await decoder.decode(golden.picture if golden else _gradient_picture(), self.spec)
        runs = await self.scheduler.warm_up(picture.pixels)
        for logits in runs:
            _require_finite(logits)
            if golden is not None:
                check_golden(golden, self.precision, logits, self._network.temperature)
        self.rank(runs[:1], top_k=1)

    @contextmanager
    def in_use(self) -> Iterator["LoadedBundle"]:
        """Keeps the network open until the context ends, even if a reload replaces it."""
        self._num_users += 1
        try:
            yield self
        finally:
            self._num_users -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """Closes the network once the last request that uses it has ended."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and self._num_users == 0:
            self.scheduler.close()


class LiveBundle:
    """Holds the loaded bundle that answers requests, and replaces it on reload.

    Args:
        first: The bundle to start with.
        open_next: Opens the bundle for a reload; runs in a thread.
        decoder: Decodes the pictures of the warm-up.
        metrics: Counts reloads and reports which model answers.
    """

    def __init__(
        self, first: LoadedBundle, open_next: Callable[[], LoadedBundle], decoder: PictureDecoder, metrics: Metrics
    ) -> None:
        self.current = first
        self._open_next, self._decoder, self._metrics = open_next, decoder, metrics
        self._reload_lock = asyncio.Lock()
        self.is_warm = False

    async def warm_up(self) -> None:
        """Warms up the first bundle; from then on requests are accepted."""
        await self.current.warm_up(self._decoder)
        self._publish()
        self.is_warm = True

    async def reload(self) -> LoadedBundle:
        """Verifies, opens and warms up the bundle on disk, then replaces the current one with it.

        Requests in progress finish with the bundle that they started with, which closes after the last of them.

        Raises:
            InputError: The bundle on disk cannot be used; the current one stays.
        """
        async with self._reload_lock:
            try:
                new = await self._load_next()
            except Exception as error:
                self._metrics.reload("refused")
                _log.error("reload_refused", error=" ".join(str(error).split())[:500])
                raise
            old, self.current = self.current, new
            old.retire()
            self._metrics.reload("swapped")
            self._publish()
            _log.info("reloaded", version=new.bundle.record.version, before=old.bundle.record.version)
            return new

    def close(self) -> None:
        """Stops the workers; no further pictures are accepted."""
        self.is_warm = False
        self.current.scheduler.close()

    async def _load_next(self) -> LoadedBundle:
        new: LoadedBundle = await run_in_daemon_thread(self._open_next)
        try:
            await new.warm_up(self._decoder)
        except BaseException as error:
            new.scheduler.close()
            if isinstance(error, Exception) and not isinstance(error, InputError):
                raise _not_running(error) from error  # ONNX Runtime raises errors of many types
            raise
        return new

    def _publish(self) -> None:
        record = self.current.bundle.record
        self._metrics.model(
            name=record.name,
            version=record.version,
            label_hash=record.label_hash,
            precision=self.current.precision,
            provider=next(iter(self.current.providers), ""),
            scheduling=self.current.policy.describe(),
        )


def open_bundle(settings: Settings, metrics: Metrics, session: NetworkSession | None = None) -> LoadedBundle:
    """Verifies and opens the bundle that the settings name, without warming it up.

    Args:
        settings: Give the bundle, the precision, the device, and how network runs share the device.
        metrics: Records the time of each run.
        session: Replaces the bundle's network; for tests.

    Raises:
        InputError: The bundle, the precision or the provider cannot be used.
    """
    cuda = settings.provider == "cuda"
    bundle = load_bundle(find_bundle(settings))
    for warning in bundle.warnings:
        _log.warning("bundle_warning", warning=warning)
    precision = choose_precision(bundle, settings.precision, cuda=cuda)
    policy = choose_policy(
        cuda=cuda, num_cores=available_cores(), num_threads=settings.num_threads, num_runs=settings.num_runs
    )
    networks = (
        open_networks(bundle, precision, policy)
        if session is None
        else dict.fromkeys(policy.num_threads_by_mode, session)
    )
    return LoadedBundle(bundle, precision, networks, policy, metrics)


def _not_running(error: Exception) -> BundleError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return BundleError("the network does not run", value=reason, remedy="export the bundle again")


def _require_finite(logits: Logits) -> None:
    if not np.isfinite(logits).all():
        raise BundleError(
            "the network's logits are not finite",
            value=f"{np.count_nonzero(~np.isfinite(logits))} of {logits.size} NaN or infinite",
            remedy="export the bundle again, or choose another precision",
        )


def _gradient_picture() -> bytes:
    """Two color gradients, for a bundle without a golden picture."""
    ramp = np.linspace(0, 255, _GRADIENT_PX, dtype=np.uint8)
    across, down = np.meshgrid(ramp, ramp)
    stream = io.BytesIO()
    Image.fromarray(np.stack([across, down, 255 - across], axis=-1)).save(stream, "PNG")
    return stream.getvalue()
