"""Calibration tables, thresholds and the plant head of an exported bundle."""

from itertools import product
from typing import get_args

import pytest
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.calibration import CoverageKind
from models.errors import DataError
from models.figures import COVERAGES
from models.preprocess import picture_to_input
from models.ranking import Promises
from training.engine.checkpoint import read_checkpoint
from training.export import _picture_sets, export
from training.loading.negatives import list_negatives


def test_the_card_says_what_calibrated_the_network_and_draws_its_reliability(bundle):
    card = (bundle.folder / "MODEL_CARD.md").read_text()
    assert "fitted on 3 pictures of 3 plants (data, validation split" in card
    assert "These are few" in card
    assert "Reliability, all test pictures" in card
    assert "species: named from a score of 0.900, without a promise" in card
    assert "The threshold of species is 0.9 and not fitted, since the calibration plants" in card
    assert "Area under the risk-coverage curve" in card
    command = "python training/export.py --checkpoint last.pt --data data --out tiny --name data --model-version 1.0.0"
    assert f"{command} --note Drawn. --examples shown.csv\n" in card


def test_thresholds_and_description_are_made_and_can_be_given(bundle, other_bundle):
    assert bundle.network("fp32").promises == Promises()  # 3 calibration pictures prove nothing
    assert bundle.record.description.startswith("Names 3 plants")
    assert other_bundle.record.description == "Three drawn flowers."
    fitted, found = (each.network("fp32").thresholds for each in (bundle, other_bundle))
    assert (found.species, found.genus) == (fitted.species, 0.875)


def test_plants_that_are_not_known_teach_familiarity_and_judge_it(rejecting):
    tables, metrics = rejecting.calibration("fp32"), {metric.name: metric for metric in rejecting.record.metrics}
    assert (rejecting.record.format_version, tables.familiarity) == (5, None)
    assert tables.known_head.weight_F.shape == (256,)
    judging = metrics["strangers_named_species"].num_pictures
    assert (tables.fitted_on.num_strangers + judging, judging > 0) == (40, True)
    assert "of genera that no fit has seen" in metrics["strangers_named_species"].data
    assert "left_out_named_species" not in metrics
    assert "where one plant in four is a stranger" in (rejecting.folder / "MODEL_CARD.md").read_text()


def test_unknown_plants_of_few_genera_are_refused_before_the_network_runs(exporting, strangers, tmp_path):
    few = tmp_path / "few.csv"
    lines = [f"{strangers / f'{number}.png'},Genusa alba" for number in range(40)]
    few.write_text("\n".join(["path,scientific_name", *lines]))
    with pytest.raises(DataError, match=r"too few genera .*got [01] for the fit"):
        export(replace(exporting, unknown=(few,)))


def test_every_bundle_has_tables_and_says_what_they_were_fitted_on(bundle):
    tables = bundle.calibration("fp32")
    assert (tables.fitted_on.num_plants, tables.fitted_on.num_pictures, tables.fitted_on.num_negatives) == (3, 3, 0)
    assert tables.fitted_on.data == "data, validation split"
    assert tables.plant_head is None
    assert len(tables.conformal.conformity_N) == 3
    assert tables.features.mean_TD.shape == (3, 2)  # 3 taxa, one dimension less


def test_bundle_carries_the_look_alikes_of_its_fp32_network(bundle, other_bundle):
    assert bundle.record.look_alikes == {}  # of 3 plants
    one, other = (taxon.taxon_id for taxon in bundle.taxonomy.taxa[:2])
    assert other_bundle.record.look_alikes == {one: (other,)}


def test_bundle_carries_the_coverage_of_its_candidate_sets_on_test_pictures(bundle):
    network = bundle.network("fp32")
    assert {(each.kind, each.coverage) for each in network.coverages} == set(product(get_args(CoverageKind), COVERAGES))
    for each in network.coverages:
        assert (each.num_pictures, each.data) == (3, "data, test split")
        assert (each.interval_95 is not None) == (each.kind == "marginal")
    told = f"* candidate sets, macro coverage, 0.95 asked: {network.measured('macro', 0.95).covered:.3f} ("
    assert told in (bundle.folder / "MODEL_CARD.md").read_text()


def test_pictures_of_other_things_give_a_plant_head_and_its_figures(rejecting):
    tables = rejecting.calibration("fp32")
    assert tables.plant_head.weight_F.shape == (256,)
    assert tables.fitted_on.num_negatives == 24  # the broken one is left out
    metrics = {metric.name: metric for metric in rejecting.record.metrics}
    assert metrics["things_accepted"].num_pictures == 24
    assert 0 <= metrics["things_named"].value <= metrics["things_accepted"].value <= 1
    assert "on 24 pictures without a plant; its cutoff" in (rejecting.folder / "MODEL_CARD.md").read_text()


def test_the_sealed_tables_answer_as_a_verdict(rejecting, manifest, things):
    model, session = rejecting.answer_model("fp32"), rejecting.open_session("fp32")
    for path in (manifest.path(0), things / "0.png"):
        pixels, _ = picture_to_input(path.read_bytes(), rejecting.record.input)
        found = session.run(pixels[None])
        answer = answer_plant(found.logits, found.features, model, Question(coverage=0.9))
        assert 0 <= answer.plant_score <= 1
        assert answer.candidates.taxa


@pytest.mark.parametrize("trained_on", ["none", "the same", "others"])
def test_pictures_that_the_network_was_trained_on_are_named(trained_on, things, exporting):
    hashes = {"the same": list_negatives((things,)).sha256, "others": "ab" * 32}
    plant_output = {"negatives_sha256": hashes[trained_on]} if trained_on in hashes else None
    checkpoint = replace(read_checkpoint(exporting.checkpoint), plant_output=plant_output)
    expected = {
        "none": "pictures without a plant",
        "the same": "pictures without a plant that the network was trained on",
        "others": "pictures without a plant that the network may have been trained on",
    }
    found = _picture_sets(replace(exporting, negatives=(things,)), checkpoint).negatives
    assert (found.name, len(found.paths)) == (expected[trained_on], 24)


def test_too_few_pictures_of_other_things_are_refused(exporting, things, tmp_path):
    few = tmp_path / "few"
    few.mkdir()
    for number in range(3):
        (few / f"{number}.png").write_bytes((things / f"{number}.png").read_bytes())
    with pytest.raises(DataError, match=r"too few pictures.*3 of 3.*at least 20"):
        export(replace(exporting, negatives=(few,)))
