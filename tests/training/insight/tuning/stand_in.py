"""Simulated machines for the searches."""

from pathlib import Path

from training.engine.losses import TrainingClasses
from training.insight.tuning.setting import Trial, TrialSetting
from training.recipe import read_recipe

TINY = read_recipe(Path(__file__).parents[2] / "tiny.toml")
THREE = TrainingClasses((0, 1, 2), 3, (10.0, 10.0, 10.0))


def setting(batch_size=16, amp="off", channels_last=True, compiled=False):
    return TrialSetting(batch_size=batch_size, amp=amp, channels_last=channels_last, compile=compiled)


class Machine:
    """Speed rises with the batch size toward 1,000 pictures/s, with half of it at `half`; memory rises linearly.

    `outcomes` holds failures by batch size. `noise` is a random generator that varies the speed.
    """

    def __init__(self, *, half=20.0, gb_each=0.1, gb_base=1.0, card_gb=1e9, outcomes=None, noise=None, gains=None):
        self.half, self.gb_each, self.gb_base, self.card_gb = half, gb_each, gb_base, card_gb
        self.outcomes, self.noise, self.gains, self.asked = outcomes or {}, noise, gains or {}, []

    def speed(self, size):
        return 1000 * size / (size + self.half)

    def memory_share(self, size):
        return (self.gb_base + size * self.gb_each) / self.card_gb

    def __call__(self, wanted):
        wanted = setting(wanted) if isinstance(wanted, int) else wanted
        self.asked.append(wanted)
        size = wanted.batch_size
        outcome = self.outcomes.get(size, "ran" if self.memory_share(size) <= 1 else "does_not_fit")
        if outcome != "ran":
            return Trial(setting=wanted, outcome=outcome, note="planted")
        speed = self.speed(size) * (1 + 0.02 * self.noise.standard_normal() if self.noise else 1)
        for knob, gain in self.gains.items():
            speed *= gain if getattr(wanted, knob) else 1
        share = self.memory_share(size)
        return Trial(setting=wanted, pictures_per_s=speed, memory_gb=share * self.card_gb, memory_share=share)
