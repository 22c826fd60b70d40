"""The loaded bundle that answers requests, and how a reload replaces it without failing a request."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final

import numpy as np
import structlog
from PIL import Image

from models.answer import PlantAnswer, Question, answer_plant
from models.bundle import Bundle, check_golden, load_bundle
from models.bundle_record import Precision
from models.cores import cores
from models.errors import BundleError, InputError, one_line, some_of
from models.examples import Example
from models.openvino_session import OpenVinoSession
from models.session import NetworkOutput, NetworkSession, OnnxSession
from models.taxonomy import Taxon, TaxonNames
from serving.engine.decoding.pool import DecoderPool
from serving.engine.machine import return_freed_memory
from serving.engine.networks import choose_precision, open_networks
from serving.engine.scheduler import RunMode, Scheduler, SchedulingPolicy, choose_policy
from serving.engine.threads import run_in_daemon_thread
from serving.errors import NotReady, RunFailed
from serving.metrics import Metrics
from serving.schemas import Parameters
from serving.settings import ModelOptions, find_bundle
from serving.species import ALL_TAXA, TaxaLists, TaxaSelector, read_taxa_lists

_GRADIENT_PX: Final = 96
_MOST_UNKNOWN: Final = 20  # names of a list that the log tells
_WARM_UP_COVERAGE: Final = 0.9
# To open a network and run every batch size in every mode and worker, seconds; a GPU also loads its kernels.
_WARM_UP_S: Final = 300.0

_log = structlog.get_logger(__name__)


class LoadedBundle:
    """A verified bundle with one of its networks open, in a session for each mode of the policy."""

    def __init__(
        self,
        bundle: Bundle,
        precision: Precision,
        networks: Mapping[RunMode, NetworkSession],
        policy: SchedulingPolicy,
        metrics: Metrics,
        *,
        taxa_lists: TaxaLists,
    ) -> None:
        self.bundle = bundle
        self.precision = precision
        self.policy = policy
        self.spec = bundle.record.input
        self.taxonomy = bundle.taxonomy
        self.names = TaxonNames(bundle.taxonomy)
        self.selector = TaxaSelector(self.names, taxa_lists)
        self.scheduler = Scheduler(networks, policy, metrics)
        first = networks["throughput"]
        self.providers = first.providers if isinstance(first, OnnxSession | OpenVinoSession) else ()
        self.answer_model = bundle.answer_model(precision)
        self.calibration = self.answer_model.calibration
        self.examples = bundle.examples()
        self._golden = bundle.golden()
        self._num_users = 0
        self._retired = False

    def examples_of(self, taxon_id: str) -> list[Example]:
        """Returns the reference pictures of a taxon."""
        return [] if self.examples is None else self.examples.of(taxon_id)

    def num_calibration_plants(self, taxon: Taxon) -> int | None:
        """Returns how many plants of a taxon calibrated the candidate sets, or None without a table."""
        table = self.calibration.conformal
        return None if table is None else int(table.num_plants_T[self.taxonomy.position_of[taxon.taxon_id]])

    def question(self, asked: Parameters) -> tuple[Question, tuple[str, ...]]:
        """Translates what a client asks for into a question about this bundle.

        Returns:
            The question, and a sentence for each part that is ignored.

        Raises:
            BadParameter: The bundle knows none of the names in `taxa`, or a list does not exist.
        """
        allowed_T, warnings = self.selector.select(asked.taxa)
        if asked.coverage is not None and self.calibration.conformal is None:
            warnings.append("The parameter 'coverage' was ignored: this model has no table for candidate sets.")
        where = None if asked.cultivated or self.answer_model.place is None else asked.where
        if where is not None and asked.use_exif:
            warnings.append("The parameter 'use_exif' was ignored: the request names a place.")
        question = Question(asked.k, asked.coverage, asked.coverage_kind, allowed_T, where)
        return question, tuple(warnings)

    def answer(self, output: NetworkOutput, question: Question) -> PlantAnswer:
        """Answers a question about the plant that all pictures show; `output` has a row for each.

        Raises:
            RunFailed: A value is not finite, for example because half precision overflowed on one picture.
        """
        if not all(bool(np.isfinite(values).all()) for values in output):
            raise RunFailed("the network fails on the picture", remedy="send another picture of the plant")
        return answer_plant(output.logits, output.features, self.answer_model, question)

    async def warm_up(self, decoder: DecoderPool) -> None:
        """Sends a picture through decoding, network and answer, and checks the logits.

        Raises:
            BundleError: Logits, features or scores are not finite, the logits differ from those that were sealed with
                the bundle, or the calibration tables are for other features.
        """
        golden = self._golden
        picture = await decoder.decode(golden.picture if golden else _gradient_picture(), self.spec)
        runs = await self.scheduler.warm_up(picture.pixels)
        _require_finite(runs)
        if golden is not None:
            for logits in runs.logits:
                check_golden(golden, self.precision, logits, self.answer_model.temperature)
        # In a thread: the first answer computes what later ones reuse, which would hold up the event loop.
        await run_in_daemon_thread(partial(self._check_tables, NetworkOutput(runs.logits[:1], runs.features[:1])))

    def _check_tables(self, output: NetworkOutput) -> None:
        """Uses every table of the bundle once."""
        try:
            with np.errstate(all="ignore"):
                answer = self.answer(output, Question(coverage=_WARM_UP_COVERAGE))
        except (ValueError, IndexError) as error:  # from NumPy, if the network has other features
            raise BundleError(
                "the calibration tables do not fit the network", value=error, remedy="export the bundle again"
            ) from error
        scores = [answer.plant_score or 0.0, *(ranked.score for ranked in answer.taxa)]
        if not np.isfinite(scores).all():
            raise BundleError(
                "the calibration tables give scores that are not finite", remedy="export the bundle again"
            )

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
    """Holds the loaded bundle that answers requests, replaces it on reload, and says whether requests may come.

    Args:
        first: The bundle to start with.
        open_next: Opens the bundle for a reload; runs in a thread.
        decoder: Decodes the pictures of the warm-up.
        metrics: Counts reloads and reports which model answers.
        read_keys: Reads the API keys again; runs in a thread.
    """

    def __init__(
        self,
        first: LoadedBundle,
        open_next: Callable[[], LoadedBundle],
        decoder: DecoderPool,
        metrics: Metrics,
        *,
        read_keys: Callable[[], None] = lambda: None,
    ) -> None:
        self.current = first
        self._open_next = open_next
        self._decoder = decoder
        self._metrics = metrics
        self._read_keys = read_keys
        self._keys_lock = asyncio.Lock()  # of each reading of the keys
        self._pending_keys: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()  # of the warm-up and of each reload
        self._running: asyncio.Task[LoadedBundle] | None = None
        self._pending: asyncio.Task[LoadedBundle] | None = None
        self.is_warm = False
        self.is_draining = False
        """Whether the shutdown has begun; requests are still answered for a while."""

    def require_warm(self) -> None:
        """Checks that requests can be answered, also during the shutdown.

        Raises:
            NotReady: The warm-up has not finished.
        """
        if not self.is_warm:
            raise NotReady.with_retry("the network is not warmed up", 1)

    def require_ready(self) -> None:
        """Checks that a load balancer should send requests to this instance.

        Raises:
            NotReady: The service is warming up or shutting down, or its network or decoders have failed.
        """
        self.require_warm()
        if self.is_draining:
            raise NotReady("the service is shutting down", retry_after_s=5, remedy="send requests to another instance")
        if self._decoder.num_alive == 0 or not self.current.scheduler.is_healthy:
            raise NotReady("the network or the decoders do not respond", retry_after_s=5, remedy="try again later")

    @property
    def is_ready(self) -> bool:
        """Whether `require_ready` raises nothing."""
        try:
            self.require_ready()
        except NotReady:
            return False
        return True

    def drain(self) -> None:
        """Begins the shutdown."""
        self.is_draining = True

    async def warm_up(self) -> None:
        """Starts the decoder and warms up the first bundle; from then on requests are accepted."""
        async with self._lock:
            async with _ends_in_time():
                await self._decoder.start()
                await self.current.warm_up(self._decoder)
            await run_in_daemon_thread(return_freed_memory)
            self._publish()
            self.is_warm = True

    async def reload(self) -> LoadedBundle:
        """Reads the API keys; verifies, opens and warms up the bundle on disk, and replaces the current one with it.

        One reload runs at a time, and at most one waits: all that are requested during a reload are one. Requests in
        progress finish with the bundle that they started with, which closes after the last of them.

        Raises:
            InputError: The keys or the bundle on disk cannot be used; the current ones stay.
        """
        return await asyncio.shield(self.request_reload())  # the others wait for it even if this caller leaves

    def request_reload(self) -> "asyncio.Task[LoadedBundle]":
        """Returns the task of the next reload, see `reload`; nobody has to await it, as its error is logged."""
        self._request_keys()  # at once: a withdrawn key must not live on while another reload takes its time
        if self._pending is None:
            self._pending = asyncio.create_task(self._reload_next())
            self._pending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._pending

    def _request_keys(self) -> "asyncio.Task[None]":
        """Returns the task of the next reading of the keys; all that are requested during one are one."""
        if self._pending_keys is None:
            self._pending_keys = asyncio.create_task(self._keys_next())
            # An error is told by the reload, which reads them again.
            self._pending_keys.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._pending_keys

    async def _keys_next(self) -> None:
        async with self._keys_lock:
            self._pending_keys = None
            await run_in_daemon_thread(self._read_keys)

    async def close(self) -> None:
        """Ends the reloads and stops the workers; no further pictures are accepted."""
        self.is_warm = False
        reloads = [task for task in (self._running, self._pending) if task is not None]
        for task in reloads:
            task.cancel()
        await asyncio.gather(*reloads, return_exceptions=True)
        self.current.scheduler.close()

    async def _reload_next(self) -> LoadedBundle:
        async with self._lock:
            # From now on a request needs another reload, because the files may change after this one has read them.
            self._running = self._pending
            self._pending = None
            try:
                return await self._reload()
            except Exception as error:
                self._metrics.reloads.labels("refused").inc()
                _log.error("reload_refused", error=one_line(error, 500))
                raise
            finally:
                self._running = None

    async def _reload(self) -> LoadedBundle:
        await asyncio.shield(self._request_keys())  # first: a key is withdrawn even if the bundle is refused
        new: LoadedBundle | None = None
        try:
            async with _ends_in_time():
                new = await run_in_daemon_thread(self._open_next)
                await new.warm_up(self._decoder)
        except BaseException as error:
            if new is not None:
                new.scheduler.close()
            if isinstance(error, Exception) and not isinstance(error, InputError):
                reason = one_line(error) or type(error).__name__
                raise BundleError(  # instead of one of ONNX Runtime
                    "the network does not run", value=reason, remedy="export the bundle again"
                ) from error
            raise
        old = self.current
        self.current = new
        old.retire()
        self._metrics.reloads.labels("swapped").inc()
        self._publish()
        _log.info("reloaded", version=new.bundle.record.version, before=old.bundle.record.version)
        return new

    def _publish(self) -> None:
        record = self.current.bundle.record
        facts = {
            "name": record.name,
            "version": record.version,
            "label_hash": record.label_hash,
            "precision": self.current.precision,
            "provider": next(iter(self.current.providers), ""),
            "scheduling": self.current.policy.describe(),
        }
        self._metrics.model.info(facts)


def open_bundle(options: ModelOptions, metrics: Metrics, session: NetworkSession | None = None) -> LoadedBundle:
    """Verifies and opens the bundle that the options name, without warming it up; tests give a `session`.

    Raises:
        InputError: The bundle, the precision, the provider or the lists of taxa cannot be used.
    """
    cuda = options.provider == "cuda"
    taxa_lists = read_taxa_lists(options.taxa_lists)
    if options.plantnet_api and ALL_TAXA in taxa_lists:
        raise InputError(
            "a list of taxa has the name that stands for all taxa in Pl@ntNet's interface",
            value=f"{ALL_TAXA}.txt",
            remedy="rename it",
        )
    bundle = load_bundle(find_bundle(options.bundle))
    for warning in bundle.warnings:
        _log.warning("bundle_warning", warning=warning)
    precision = choose_precision(bundle.record, options.precision, options.provider)
    policy = choose_policy(cuda=cuda, num_cores=cores(), num_threads=options.num_threads, num_runs=options.num_runs)
    networks = (
        open_networks(bundle, precision, policy, options.provider)
        if session is None
        else dict.fromkeys(policy.num_threads_by_mode, session)
    )
    loaded = LoadedBundle(bundle, precision, networks, policy, metrics, taxa_lists=taxa_lists)
    for name, choice in loaded.selector.lists.items():
        num_taxa = int(choice.chosen_T.sum())
        unknown = [f"line {taxa_lists[name][each]}: {each}" for each in choice.unknown]
        shown = {"unknown_names": some_of(unknown, _MOST_UNKNOWN, "; ")} if unknown else {}
        _log.info("taxa_list", list=name, num_taxa=num_taxa, num_unknown_names=len(unknown), **shown)
    return loaded


@asynccontextmanager
async def _ends_in_time() -> AsyncIterator[None]:
    """Refuses a network that never ends, such as a loop; its thread goes on, because nothing can end it."""
    try:
        async with asyncio.timeout(_WARM_UP_S):
            yield
    except TimeoutError as error:
        raise BundleError(
            "the network does not open and run a picture in time",
            limit=f"{_WARM_UP_S:g} s",
            remedy="export the bundle again, and restart the service, where the network may still run",
        ) from error


def _require_finite(output: NetworkOutput) -> None:
    for name, values in zip(("logits", "features"), output, strict=True):
        if not np.isfinite(values).all():
            raise BundleError(
                f"the network's {name} are not finite",
                value=f"{np.count_nonzero(~np.isfinite(values))} of {values.size} NaN or infinite",
                remedy="export the bundle again, or choose another precision",
            )


def _gradient_picture() -> bytes:
    """Two color gradients, for a bundle without a golden picture."""
    ramp = np.linspace(0, 255, _GRADIENT_PX, dtype=np.uint8)
    across, down = np.meshgrid(ramp, ramp)
    stream = io.BytesIO()
    Image.fromarray(np.stack([across, down, 255 - across], axis=-1)).save(stream, "PNG")
    return stream.getvalue()
