"""Start and reloads: a wrong network is refused, one reload runs and one waits, a replaced network is freed at once."""

import asyncio
import gc
import threading
import weakref
from contextlib import asynccontextmanager, nullcontext

import pytest
from msgspec.structs import replace

from models.bundle import Golden, load_bundle
from models.errors import BundleError
from serving.engine.loaded_bundle import LiveBundle, LoadedBundle, open_bundle
from serving.engine.scheduler import cpu_policy
from serving.metrics import Metrics
from serving.species import read_taxa_lists
from tests.serving.tiny import FakeNetwork, InProcessDecoder, in_event_loop, jpeg, tables
from tests.waiting import until


class Opener:
    """Opens the tiny bundle with a new fake network each time, and keeps weak references to the networks."""

    def __init__(self, settings):
        self.settings, self.metrics = settings, Metrics()
        self.networks, self.error, self.hold, self.fails = [], None, False, False
        self.opens = threading.Event()
        self.opens.set()

    def __call__(self):
        assert self.opens.wait(100)
        if self.error is not None:
            raise self.error
        network = FakeNetwork()
        network.fails = self.fails
        if self.hold:
            network.hold()
        self.networks.append(weakref.ref(network))
        return open_bundle(self.settings, self.metrics, network)

    async def until_next_runs(self):
        await until(lambda: len(self.networks) == 2 and self.next.entered.is_set())

    @property
    def next(self):
        return self.networks[1]()

    @property
    def num_alive(self):
        return sum(network() is not None for network in self.networks)


@pytest.fixture
def opener(settings):
    return Opener(settings)


@asynccontextmanager
async def warm(opener):
    live = LiveBundle(opener(), opener, InProcessDecoder(), opener.metrics)
    try:
        await live.warm_up()
        yield live
    finally:
        await live.close()


@in_event_loop
async def test_reloads_that_are_requested_during_one_become_one(opener):
    async with warm(opener) as live:
        opener.hold = True
        first = live.request_reload()
        await opener.until_next_runs()
        others = [asyncio.create_task(live.reload()) for _ in range(60)]
        await asyncio.sleep(0)
        opener.hold = False
        opener.next.free.set()
        last = await asyncio.gather(*others)
        assert len(opener.networks) == 3
        assert set(last) == {live.current}
        assert (await first) is not live.current


@in_event_loop
async def test_client_that_leaves_does_not_end_the_reload_of_the_others(opener):
    async with warm(opener) as live:
        opener.hold = True
        leaving, staying = [asyncio.create_task(live.reload()) for _ in range(2)]
        await opener.until_next_runs()
        leaving.cancel()
        opener.next.free.set()
        assert (await staying) is live.current


@in_event_loop
async def test_refused_reload_is_told_to_each_that_waits_and_the_next_one_succeeds(opener):
    async with warm(opener) as live:
        before, opener.error = live.current, BundleError("the bundle is damaged")
        found = await asyncio.gather(live.reload(), live.reload(), return_exceptions=True)
        assert [str(error) for error in found] == ["the bundle is damaged."] * 2
        assert live.current is before
        opener.error = None
        assert (await live.reload()) is live.current is not before


@in_event_loop
async def test_close_ends_a_reload_in_progress_and_the_one_that_waits(opener):
    async with warm(opener) as live:
        opener.hold = True
        running = live.request_reload()
        await opener.until_next_runs()
        waiting = live.request_reload()
        await live.close()
        assert running.cancelled()
        assert waiting.cancelled()
        opener.next.free.set()


@pytest.mark.parametrize("hangs_in", ["opening", "run"])
@in_event_loop
async def test_a_network_that_never_ends_is_refused_and_the_next_reload_succeeds(opener, hangs_in, monkeypatch):
    async with warm(opener) as live:
        before = live.current
        opener.hold = hangs_in == "run"
        if hangs_in == "opening":
            opener.opens.clear()
        with monkeypatch.context() as patch:
            patch.setattr("serving.engine.loaded_bundle._WARM_UP_S", 0.2)
            with pytest.raises(BundleError, match="in time"):
                await live.reload()
        assert live.current is before
        opener.opens.set()
        opener.hold = False
        assert (await live.reload()) is not before


@in_event_loop
async def test_a_bundle_that_takes_all_memory_is_refused_as_unusable(opener):
    async with warm(opener) as live:
        opener.error = MemoryError()
        with pytest.raises(BundleError, match="MemoryError"):
            await live.reload()


@in_event_loop
async def test_keys_are_read_in_a_thread_once_for_all_signals_that_wait(opener):
    is_read, asked = threading.Event(), []

    def read_keys():
        asked.append(threading.current_thread() is threading.main_thread())
        assert is_read.wait(60)

    live = LiveBundle(opener(), opener, InProcessDecoder(), opener.metrics, read_keys=read_keys)
    await live.warm_up()
    for _ in range(1_500):
        reload = live.request_reload()
    await until(lambda: asked)
    for _ in range(1_500):
        live.request_reload()  # the file may have changed since it was opened
    is_read.set()
    await reload
    assert asked == [False] * 2
    await live.close()


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@in_event_loop
async def test_replaced_network_is_freed_without_the_garbage_collector(opener):
    async with warm(opener) as live:
        for _ in range(3):
            await live.reload()
        await until(lambda: opener.num_alive == 1)


@pytest.mark.usefixtures("no_collector")
@in_event_loop
async def test_network_of_a_refused_reload_is_freed_without_the_garbage_collector(opener):
    async with warm(opener) as live:
        opener.fails = True
        before = live.current
        await asyncio.wait([live.request_reload()])  # a caught exception would hold the network in its traceback
        assert live.current is before
        assert len(opener.networks) == 2
        await until(lambda: opener.num_alive == 1)


@in_event_loop
async def test_a_bundle_that_is_refused_stops_its_workers(opener):
    opened = []
    async with warm(opener) as live:
        opener.fails = True
        live._open_next = lambda: opened.append(opener()) or opened[-1]
        with pytest.raises(BundleError):
            await live.reload()
        assert opened[0].scheduler._is_closed


@pytest.mark.usefixtures("no_collector")
@in_event_loop
async def test_replaced_network_is_freed_when_its_last_request_has_ended(opener):
    async with warm(opener) as live:
        with live.current.in_use():
            await live.reload()
            await asyncio.sleep(0.05)
            assert opener.num_alive == 2
        await until(lambda: opener.num_alive == 1)


# ---- the golden picture

ROSE = (5.0, 0.0, 0.0, 0.0, 0.0, 0.0)  # the logits of a fake network are all equal


@pytest.fixture
def golden_of_a_rose(settings, sealed):
    """Settings with a bundle whose network must call the golden picture a rose."""
    golden = Golden(jpeg(), {"fp32": ROSE})
    return replace(settings, bundle=sealed(golden=golden))


@in_event_loop
async def test_network_with_other_features_than_the_tables_does_not_start(settings, sealed):
    network = FakeNetwork()
    network.num_features = 4
    loaded = open_bundle(replace(settings, bundle=sealed(calibration=tables())), Metrics(), network)
    with pytest.raises(BundleError, match="the calibration tables do not fit the network"):
        await loaded.warm_up(InProcessDecoder())
    loaded.scheduler.close()


@pytest.mark.parametrize("wrong", [None, "throughput", "latency"])
@in_event_loop
async def test_every_session_must_give_the_recorded_answer_to_the_golden_picture(golden_of_a_rose, wrong):
    networks = {"throughput": FakeNetwork(), "latency": FakeNetwork()}
    for mode, network in networks.items():
        network.logit = 0.0 if mode == wrong else ROSE
    bundle, policy = load_bundle(golden_of_a_rose.bundle), cpu_policy(2)
    loaded = LoadedBundle(bundle, "fp32", networks, policy, Metrics(), taxa_lists=read_taxa_lists(None))
    refused = pytest.raises(BundleError, match="recorded answer to the golden picture")
    with nullcontext() if wrong is None else refused:
        await loaded.warm_up(InProcessDecoder())
    loaded.scheduler.close()
