"""Planted results of the optimizations study with known speeds."""

from tests.training.insight.studies.planted import epoch
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.speedups import Speedups

PICTURES = 1000
ROUNDS = (0.995, 1.0, 1.004)  # factor on all speeds of a round
EVERY_ONE_PAYS = {
    "baseline": 100.0,
    "baseline_again": 100.0,
    "amp": 200.0,
    "workers": 110.0,
    "cudnn": 120.0,
    "amp+cudnn": 240.0,
    "amp+cudnn+workers": 264.0,
    "channels_last": 105.0,
    "compile": 130.0,
    "tf32": 150.0,
    "all": 360.36,  # the product of all but TF32
}


def run(name, seed, speed, *, first_epoch_s=2.0, memory_gb=None):
    """Three epochs; the first takes `first_epoch_s` longer than the others."""
    steady = PICTURES / speed
    seconds = (steady + first_epoch_s, steady, steady)
    epochs = [epoch(n, s, PICTURES / s, memory_gb=memory_gb) for n, s in enumerate(seconds, 1)]
    return ArmResult(Arm(name, (), ""), seed, epochs)


def planted(speeds=EVERY_ONE_PAYS, device="cuda", memory=None, first_epoch_s=None, jitter=None, rounds=ROUNDS):
    """Three rounds of all arms; `jitter` is a factor on the speed of single runs, by (name, seed)."""
    return Speedups(
        [
            run(
                name,
                seed,
                speed * pace * (jitter or {}).get((name, seed), 1.0),
                first_epoch_s=(first_epoch_s or {}).get(name, 2.0),
                memory_gb=(memory or {}).get(name),
            )
            for seed, pace in enumerate(rounds)
            for name, speed in speeds.items()
        ],
        device,
    )
