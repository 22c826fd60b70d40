"""`benchmarks/precisions.py`: makes the other precisions of a bundle without its checkpoint."""

import msgspec
import pytest

from benchmarks.precisions import Precisions, Result, markdown, measure
from models.errors import DataError
from training.prepare import Folder, prepare

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def command(bundle, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("results") / "a-cpu" / "precisions.json"
    return Precisions(bundle=bundle.folder, data=data, calibration_pictures=8, workers=0, out=out)


@pytest.fixture(scope="module")
def result(command):
    return measure(command)


def test_every_precision_is_evaluated_on_the_test_split(result, bundle):
    assert [made.precision for made in result.networks] == ["fp32", "fp16", "int8"]
    single, half, small = result.networks
    assert single.passed
    assert not small.passed  # three pictures cannot show that the loss is small
    assert half.passed
    assert single.entry.temperature == pytest.approx(bundle.network("fp32").temperature)
    for made in result.networks:
        (top1,) = (metric for metric in made.entry.metrics if metric.name == "top1_taxon")
        assert top1.num_pictures == 3


def test_figures_of_fp32_are_those_that_were_sealed(result, bundle):
    assert set(result.networks[0].entry.metrics) == set(bundle.record.metrics)


def test_a_result_can_be_read_back_and_names_the_failed_check(result, command):
    kept = msgspec.json.decode(command.out.read_bytes(), type=Result)
    assert kept == result
    last = markdown(kept).split("\n\n")[1].splitlines()[-1]
    assert last.startswith("| int8 |")
    assert "no: loss" in last


def test_data_with_other_outputs_is_refused_too(bundle, command, pictures, tmp_path):
    fewer = tmp_path / "pictures"
    fewer.mkdir()
    for folder in sorted(pictures.iterdir())[:2]:
        (fewer / folder.name).symlink_to(folder)
    prepare(Folder(pictures=fewer, out=tmp_path / "data", workers=1))
    with pytest.raises(DataError, match="different outputs"):
        measure(msgspec.structs.replace(command, data=tmp_path / "data"))
