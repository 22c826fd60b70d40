"""Compares two priors of place and season on generated plants or on real records, and judges the rule that uses them.

python benchmarks/place.py OUT.json [--records FILE.csv]

Generated: 5,337 taxa with ranges and seasons, recorded around 300 towns of very different sizes; a vision model that is
right in 83 % confuses each plant with five others, about half of which grow elsewhere. Of the records 3 % are out of
range, and the plants that are judged are asked about a second time at a place out of their range.
FILE has the columns taxon, latitude, longitude and month (0 if unknown).

Arms: the grid of `models/place.py`, and a small network on the sine and cosine of latitude, longitude and month (SINR,
Cole et al. 2023, arXiv 2306.02564: full assume-negative loss), which is made here alone.
"""

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import tyro
from torch import nn

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.result import command_line
from models.metrics import calibration_error
from models.place import PlacePrior, PlaceRule, Where, write_place
from training.bundling.place import Records, choose_rule, fit_prior
from training.machine import this_machine

NUM_TAXA: Final = 5_337
NUM_TOWNS: Final = 300
NUM_ALIKE: Final = 5
ACCURACY: Final = 0.83
OUT_OF_RANGE: Final = 0.03
_EARTH_KM: Final = 6371.0
Floats = npt.NDArray[np.float64]
LogRatios = Callable[[Records], npt.NDArray[np.float32]]
"""Log ratios of all taxa for each record, shape (N, T)."""


class Compare(msgspec.Struct, frozen=True, kw_only=True):
    """Compares two priors."""

    out: tyro.conf.Positional[Path]
    """JSON file to write."""
    records: Path | None = None
    """Real records, instead of generated ones."""
    num_records: int = 400_000
    """Generated records."""
    epochs: int = 4
    """Of the network."""
    seed: Annotated[int, tyro.conf.arg(help="Of everything that is drawn")] = 0


class Flora(msgspec.Struct, frozen=True):
    """Records, and how likely each taxon is in each town."""

    records: Records
    elsewhere: Records
    """The same plants out of their range: planted, or carried there. Real records are exchanged instead, so that many
    plants stand in their range."""
    num_taxa: int
    region: npt.NDArray[np.int64]
    """A number for each taxon; taxa of one region grow in the same places."""


def generated(num_records: int, random: np.random.Generator) -> Flora:
    """Draws towns, ranges, seasons and records."""
    towns = np.degrees(np.arcsin(random.uniform(-0.6, 0.9, NUM_TOWNS))), random.uniform(-180, 180, NUM_TOWNS)
    size = random.pareto(1.2, NUM_TOWNS) + 0.05
    home = random.integers(NUM_TOWNS, size=NUM_TAXA)
    radius_km = np.exp(random.normal(np.log(700), 0.8, NUM_TAXA))
    distance = _distance_km(towns[0][home][:, None], towns[1][home][:, None], *towns)
    density = np.exp(-0.5 * (distance / radius_km[:, None]) ** 2) * (random.pareto(1.0, NUM_TAXA) + 0.05)[:, None]
    is_here = distance < 2.5 * radius_km[:, None]
    weight = density * is_here * (size / density.sum(axis=0))
    pair = random.choice(weight.size, num_records, p=(weight / weight.sum()).ravel())
    taxon, town = np.divmod(pair, NUM_TOWNS)
    strays = random.random(num_records) < OUT_OF_RANGE
    town[strays] = random.choice(NUM_TOWNS, strays.sum(), p=size / size.sum())
    peak, spread = random.uniform(0, 12, NUM_TAXA), random.uniform(0.7, 4.0, NUM_TAXA)
    month = np.floor(peak[taxon] + 6 * (towns[0][town] < 0) + random.normal(0, 1, num_records) * spread[taxon]) % 12 + 1
    other = random.choice(NUM_TOWNS, num_records, p=size / size.sum())
    for _ in range(50):  # a few taxa grow everywhere
        wrong = is_here[taxon, other]
        other[wrong] = random.integers(NUM_TOWNS, size=wrong.sum())

    def at(chosen: npt.NDArray[np.int64]) -> Records:
        latitude = np.clip(towns[0][chosen] + random.normal(0, 0.5, num_records), -90, 90)
        longitude = (towns[1][chosen] + random.normal(0, 0.7, num_records) + 180) % 360 - 180
        return Records(taxon, latitude, longitude, month.astype(np.int64))

    return Flora(at(town), at(other), NUM_TAXA, home)


def real(path: Path) -> Flora:
    """Reads records; a region is the cell of ten degrees in which most of a taxon's records lie."""
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    names = sorted({row["taxon"] for row in rows})
    position = {name: index for index, name in enumerate(names)}
    records = Records(
        np.array([position[row["taxon"]] for row in rows]),
        np.array([float(row["latitude"]) for row in rows]),
        np.array([float(row["longitude"]) for row in rows]),
        np.array([int(row["month"]) for row in rows]),
    )
    cell = (records.latitude_N // 10 * 100 + records.longitude_N // 10).astype(np.int64)
    region = np.array([_most_frequent(cell[records.taxon_N == taxon]) for taxon in range(len(names))])
    exchanged = np.random.default_rng(0).permutation(len(records))
    elsewhere = msgspec.structs.replace(records.subset(exchanged), taxon_N=records.taxon_N)
    return Flora(records, elsewhere, len(names), region)


def _most_frequent(values: npt.NDArray[np.int64]) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[counts.argmax()])


def _distance_km(latitude: Floats, longitude: Floats, other_latitude: Floats, other_longitude: Floats) -> Floats:
    phi, psi = np.radians(latitude), np.radians(other_latitude)
    cosine = np.sin(phi) * np.sin(psi) + np.cos(phi) * np.cos(psi) * np.cos(np.radians(longitude - other_longitude))
    return np.asarray(_EARTH_KM * np.arccos(np.clip(cosine, -1, 1)))


class Vision(msgspec.Struct, frozen=True):
    """What a vision model says of some records: log probabilities of a few taxa, the right one first."""

    taxa: npt.NDArray[np.int64]
    log_p: Floats


def look_at(flora: Flora, taxon_N: npt.NDArray[np.int64], random: np.random.Generator) -> Vision:
    """Draws answers that are right in 83 %; half of the look-alikes of a taxon are of its region, if there are any."""
    alike = random.integers(flora.num_taxa, size=(flora.num_taxa, NUM_ALIKE))
    for taxon in range(flora.num_taxa):
        neighbors = np.flatnonzero(flora.region == flora.region[taxon])
        alike[taxon, : NUM_ALIKE // 2] = random.choice(neighbors, NUM_ALIKE // 2)
    taxa = np.column_stack((taxon_N, alike[taxon_N]))
    noise = random.normal(0, 1, taxa.shape)
    low, high, margin = 0.0, 8.0, 4.0
    for _ in range(40):  # bisection of the margin at which so many are right
        margin = (low + high) / 2
        right = (noise[:, 0] + margin > noise[:, 1:].max(axis=1)).mean()
        low, high = (margin, high) if right < ACCURACY else (low, margin)
    # Of Gaussian evidence with a shift of `margin`, margin * evidence is the log likelihood ratio: it is calibrated.
    logits = margin * (noise + margin * (np.arange(taxa.shape[1]) == 0))
    logits[:, 1:][taxa[:, 1:] == taxa[:, :1]] = -30.0
    return Vision(taxa, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def placed(
    vision: Vision, ratio_NK: npt.NDArray[np.floating], rule: PlaceRule | None, temperature: float = 1.0
) -> Floats:
    """Probabilities with place, shape (N, K); without it for no rule."""
    score = vision.log_p
    if rule is not None:
        limit = -np.log(rule.floor)
        score = score + rule.weight * np.clip(ratio_NK, -limit, limit)
    score = np.exp((score - score.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(score / score.sum(axis=1, keepdims=True))


def train_network(records: Records, num_taxa: int, epochs: int, seed: int) -> tuple[nn.Module, float]:
    """Trains the network of SINR; returns it and the seconds."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), *(_Residual() for _ in range(4)), nn.Linear(256, num_taxa))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    inputs, labels, batch = encode(records), torch.from_numpy(records.taxon_N), 2048
    started, random = time.perf_counter(), np.random.default_rng(seed)
    for _ in range(epochs):
        for rows in np.array_split(random.permutation(len(records)), max(len(records) // batch, 1)):
            latitude = np.degrees(np.arcsin(random.uniform(-1, 1, len(rows))))
            anywhere = Records(
                records.taxon_N[rows], latitude, random.uniform(-180, 180, len(rows)), records.month_N[rows]
            )
            here, there = network(inputs[rows]), network(encode(anywhere))
            own = here.gather(1, labels[rows, None])
            loss = nn.functional.softplus(here).sum() - nn.functional.softplus(own).sum()
            loss = loss + nn.functional.softplus(there).sum() + 2048 * nn.functional.softplus(-own).sum()
            optimizer.zero_grad()
            (loss / len(rows) / num_taxa).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return network.eval(), time.perf_counter() - started


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what the layers compute."""
        return torch.relu(x + self.layers(x))


def encode(records: Records) -> torch.Tensor:
    """Sine and cosine of each coordinate; zeros for an unknown month."""
    angles = np.stack(
        (records.latitude_N / 90, records.longitude_N / 180, np.where(records.month_N, (records.month_N - 0.5) / 6, 0))
    ).T
    found = np.concatenate((np.sin(np.pi * angles), np.cos(np.pi * angles)), axis=1)
    found[records.month_N == 0, 2::3] = 0
    return torch.from_numpy(found.astype(np.float32))


def judge(ratios: LogRatios, vision: Vision, here: Records, elsewhere: Records) -> dict[str, object]:
    """Fits the rule on one half of the plants, and judges on the other: where they grow, and out of their range."""
    here_NK, elsewhere_NK = (
        np.take_along_axis(ratios(places), vision.taxa, axis=1).astype(np.float64) for places in (here, elsewhere)
    )
    half = len(vision.taxa) // 2
    fit, test = (Vision(vision.taxa[part], vision.log_p[part]) for part in (slice(half), slice(half, None)))
    exchanged = np.take_along_axis(ratios(here.subset(np.random.default_rng(0).permutation(half))), fit.taxa, axis=1)

    def measure(rule: PlaceRule | None) -> tuple[Floats, float]:
        right = placed(fit, here_NK[:half], rule)[:, 0]
        return -np.log(right + 1e-12), (placed(fit, exchanged, rule).argmax(axis=1) == 0).mean()

    rule = choose_rule(measure)

    def loss_at(temperature: float) -> float:
        return -float(np.log(placed(fit, here_NK[:half], rule, temperature)[:, 0] + 1e-12).mean())

    temperature = min(np.geomspace(0.5, 2, 41).tolist(), key=loss_at)
    result: dict[str, object] = {"num_tested": len(test.taxa)}
    result |= {"weight": 0} if rule is None else {"weight": rule.weight, "floor": rule.floor}
    result["temperature"] = round(temperature, 3)
    for name, chosen, divisor in (("without", None, 1.0), ("with", rule, temperature)):
        scores, strays = (placed(test, each[half:], chosen, divisor) for each in (here_NK, elsewhere_NK))
        right = scores.argmax(axis=1) == 0
        error = calibration_error(scores.max(axis=1), right, np.arange(len(right)))
        result[name] = {
            "top1": round(float(right.mean()), 4),
            "ece": round(error.value, 4),
            "top1_out_of_range": round(float((strays.argmax(axis=1) == 0).mean()), 4),
        }
    return result


def grid_ratios(prior: PlacePrior) -> LogRatios:
    """The log ratios of the grid."""
    return lambda records: np.array([prior.log_ratios(where) for where in records.places()], np.float32)


def network_ratios(network: nn.Module, known: Records) -> LogRatios:
    """Log of a taxon's probability over its mean at the records."""
    with torch.inference_mode():
        mean = torch.sigmoid(network(encode(known))).mean(dim=0)

        def ratios(records: Records) -> npt.NDArray[np.float32]:
            with torch.inference_mode():
                return np.asarray((nn.functional.logsigmoid(network(encode(records))) - mean.log()).numpy())

    return ratios


def time_ms(answer: Callable[[Where], object], places: list[Where]) -> float:
    """Median time of an answer, ms."""
    times = []
    for where in places:
        started = time.perf_counter()
        answer(where)
        times.append(1e3 * (time.perf_counter() - started))
    return round(float(np.median(times)), 3)


def main() -> None:
    """Runs the comparison and writes the file."""
    command = tyro.cli(Compare)
    torch.set_num_threads(2)
    random = np.random.default_rng(command.seed)
    flora = generated(command.num_records, random) if command.records is None else real(command.records)
    order = random.permutation(len(flora.records))
    num_tested = min(8_000, len(order) // 5)
    tested, known = order[:num_tested], flora.records.subset(order[num_tested:])
    here, elsewhere = flora.records.subset(tested), flora.elsewhere.subset(tested)
    vision = look_at(flora, here.taxon_N, random)
    prior = fit_prior(known, flora.num_taxa)
    network, seconds = train_network(known, flora.num_taxa, command.epochs, command.seed)
    file = command.out.with_suffix(".npz")
    write_place(file, prior)
    places = list(here.places())[:300]
    prior.log_ratios(places[0])  # the first makes the tables of seasons
    one = nn.Sequential(network)
    torch.set_num_threads(1)
    grid = {"megabytes": round(file.stat().st_size / 1e6, 2), "ms_an_answer": time_ms(prior.log_ratios, places)}
    stored = io.BytesIO()
    torch.save(network.state_dict(), stored)

    def ask(where: Where) -> object:
        with torch.inference_mode():
            return one(encode(Records(*(np.array([x]) for x in (0, where.latitude, where.longitude, 6)))))

    small = {"megabytes": round(len(stored.getvalue()) / 1e6, 2), "ms_an_answer": time_ms(ask, places)}
    file.unlink()
    result = {
        "command": command_line(),
        "machine": msgspec.to_builtins(this_machine()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": "generated" if command.records is None else command.records.name,
        "num_records": len(known),
        "num_taxa": flora.num_taxa,
        "trust": prior.trust,
        "grid": grid | judge(grid_ratios(prior), vision, here, elsewhere),
        "network": small
        | {"training_s": round(seconds), "epochs": command.epochs}
        | judge(network_ratios(network, known), vision, here, elsewhere),
    }
    command.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
