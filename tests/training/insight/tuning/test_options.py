import msgspec
import torch

from tests.training.insight.tuning.stand_in import TINY, Machine, setting
from training.insight.tuning.options import available_options, try_options

OPTIONS = [("channels_last", (True, False)), ("amp", ("fp16", "bf16")), ("compile", (False, True))]


def tried(machine, options=OPTIONS, num_pictures=10**9, **knobs):
    start = machine(setting(amp="fp16", **knobs))
    best = try_options(machine, start, options, num_pictures)
    assert all(setting.batch_size == start.setting.batch_size for setting in machine.asked)
    assert best.setting in machine.asked
    return best.setting, machine.asked[1:]


def test_a_faster_option_is_kept_and_the_next_is_tried_on_top_of_it():
    best, trials = tried(Machine(gains={"compile": 1.5, "channels_last": 1.2}), channels_last=False)
    assert best == setting(amp="fp16", channels_last=True, compiled=True)
    assert trials[1].channels_last


def test_a_gain_below_three_percent_changes_nothing():
    assert tried(Machine(gains={"compile": 1.02}))[0] == setting(amp="fp16")


def test_compiling_must_be_worth_its_time():
    class Compiling(Machine):
        def __call__(self, wanted):
            return msgspec.structs.replace(super().__call__(wanted), warmup_s=100.0 if wanted.compile else 1.0)

    machine = Compiling(half=0.0, gains={"compile": 2.0})  # 1,000 pictures a second, or 2,000
    assert not tried(machine, num_pictures=190_000)[0].compile
    assert tried(machine, num_pictures=220_000)[0].compile


def test_compiling_is_not_tried_in_a_short_run():
    _, trials = tried(Machine(half=0.0), num_pictures=50_000)
    assert not any(trial.compile for trial in trials)


def test_each_option_is_tried_once():
    _, trials = tried(Machine())
    assert [trial.channels_last for trial in trials].count(False) == 1
    assert [trial.amp for trial in trials].count("bf16") == 1
    assert [trial.compile for trial in trials].count(True) == 1


def test_an_option_that_crashes_or_does_not_fit_is_not_kept():
    class Fragile(Machine):
        def __call__(self, wanted):
            trial = super().__call__(wanted)
            if wanted.compile:
                return msgspec.structs.replace(trial, outcome="crashed")
            return trial if wanted.channels_last else msgspec.structs.replace(trial, memory_share=0.95)

        def speed(self, size):
            return 1000.0 * (1 + len(self.asked))

    assert tried(Fragile(), options=[OPTIONS[0], OPTIONS[2]])[0] == setting(amp="fp16")


def test_a_cpu_keeps_its_precision():
    knobs = [knob for knob, _ in available_options(TINY, torch.device("cpu"))]
    assert knobs == ["channels_last", "compile"]


def test_full_precision_is_kept():
    assert "amp" not in dict(available_options(TINY, torch.device("cuda")))
