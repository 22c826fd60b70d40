"""TensorBoard: the run's events as curves and text. View them with `tensorboard --logdir runs`.

Everything stands at its optimizer step, whatever the event, so that a resumed run can hide what it does again.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_S: Final = 5  # what a kill may lose
_GROUPS: Final = {"losses": "training", "epoch": "epoch", "monitor": "monitor", "note": "run", "diverged": "run"}
_SHORT: Final = {"losses": "loss", "gradient_norms": "gradient_norm", "lr": "learning_rate"}
_POSITION: Final = ("step", "epoch", "pictures")
_BANDS: Final = {
    "validation": {
        name: ["Margin", [f"validation/{name}", f"validation/{name}/low", f"validation/{name}/high"]]
        for name in ("top1", "top5")
    }
}


class TensorBoard:
    """Writes events to TensorBoard's files in a run's folder; nothing is opened before the run starts.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._step = folder, 0
        self._writer: SummaryWriter | None = None
        self._before: list[tuple[str, Mapping[str, Any]]] = []  # heard before it was known at which step the run starts

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Shows an event, at its own step or, where it has none, at that of the event before.

        Raises:
            OSError: The files cannot be written.
        """
        self._step = fields.get("step", self._step)
        if self._writer is None:
            if event != "start":
                self._before.append((event, fields))
                return
            self._writer = self._open(fields.get("recipe", {}))
        for heard in [*self._before, (event, fields)]:
            self._show(self._writer, *heard)
        self._before.clear()

    def close(self) -> None:
        """Brings everything to the disk.

        Raises:
            OSError: The files cannot be written.
        """
        if self._writer is not None:
            self._writer.close()

    def _show(self, writer: "SummaryWriter", event: str, fields: Mapping[str, Any]) -> None:
        for tag, value in shown(event, fields).items():
            if isinstance(value, str):
                writer.add_text(tag, value, self._step)
            else:
                writer.add_scalar(tag, value, self._step)

    def _open(self, recipe: Mapping[str, Any]) -> "SummaryWriter":
        """Opens a new file that hides what older ones show after this step, and all of them in a run that starts over.

        The import costs a third of a second that runs without TensorBoard need not spend.
        """
        from torch.utils.tensorboard import SummaryWriter

        purge = self._step + 1 if self._step else 0
        writer = SummaryWriter(str(self._folder), purge_step=purge, flush_secs=_FLUSH_S)
        writer.add_custom_scalars(_BANDS)
        writer.add_text("recipe", _table(recipe), self._step)
        return writer


def shown(event: str, fields: Mapping[str, Any]) -> dict[str, float | str]:
    """What there is to show of an event: tag -> number or sentence.

    A list of numbers counts by its mean. A measured share has three tags: itself and the ends of its 95 % interval.
    """
    if event not in _GROUPS:
        return {}
    found: dict[str, float | str] = {}
    for name, value in fields.items():
        group = "" if name == "validation" else f"{_GROUPS[event]}/"
        if name not in _POSITION:
            found |= _leaves(f"{group}{_SHORT.get(name, name)}", rates(value) if name == "lr" else value)
    return found


def rates(lr: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    """Names learning rates by what learns at them.

    Args:
        lr: Of the optimizer's parameter groups: backbone and head, each first with weight decay and then without.
    """
    if isinstance(lr, Mapping):
        return dict(lr)
    if len(lr) == 4:
        return {"backbone": lr[0], "head": lr[2]}
    return {f"group_{number}": rate for number, rate in enumerate(lr, start=1)}


def _leaves(tag: str, value: Any) -> Iterator[tuple[str, float | str]]:
    match value:
        case bool() | None:
            return
        case int() | float() | str():
            yield tag, value
        case {"value": float() | int() as share, "interval_95": (low, high)}:
            yield from ((tag, share), (f"{tag}/low", low), (f"{tag}/high", high))
        case Mapping():
            for name, part in value.items():
                yield from _leaves(f"{tag}/{name}", part)
        case Sequence():
            numbers = [number for number in value if isinstance(number, int | float)]
            if numbers:
                yield tag, sum(numbers) / len(numbers)


def _table(recipe: Mapping[str, Any]) -> str:
    """The resolved recipe in Markdown, a row a knob."""
    rows = ["| section | knob | value |", "|---|---|---|"]
    for section, knobs in recipe.items():
        for knob, value in knobs.items() if isinstance(knobs, Mapping) else [("", knobs)]:
            rows.append(f"| {section} | {knob} | {value} |")
    return "\n".join(rows)
