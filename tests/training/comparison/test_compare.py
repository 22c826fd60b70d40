import threading

import msgspec
import numpy as np
import pytest

from models.bundle import load_bundle
from models.calibration import Calibration, Cutoffs, conformal_table
from models.errors import BundleError, DataError
from models.session import OnnxSession
from tests.training.comparison.color_bundles import good_weights, seal_color_bundle
from training.comparison import compare as compare_module
from training.comparison.answers import answer_plants
from training.comparison.compare import Comparing, compare
from training.dataset.manifest import Manifest


@pytest.fixture(scope="module")
def manifest(flowers):
    return Manifest(flowers)


@pytest.fixture(scope="module")
def good(flowers, tmp_path_factory):
    return seal_color_bundle(tmp_path_factory.mktemp("good") / "bundle", flowers, version="2")


@pytest.fixture(scope="module")
def bad(flowers, manifest, tmp_path_factory):
    """A bundle that confuses two of the three flowers."""
    weights = good_weights(manifest)[:, [1, 0, 2]]
    return seal_color_bundle(tmp_path_factory.mktemp("bad") / "bundle", flowers, version="1", weights=weights)


@pytest.fixture
def comparing(manifest):
    return Comparing(manifest=manifest, num_speed_pairs=2, few_shot_limit=1000)


def test_better_bundle_may_be_promoted(bad, good, comparing):
    found = compare(bad, good, comparing)
    num_pictures = len(comparing.manifest.rows_of("test"))
    assert (found.num_pictures, found.num_taxa, found.num_left_out) == (num_pictures, 3, 0)
    top1 = found.accuracy.micro_top1
    assert (top1.old, top1.new) == (pytest.approx(1 / 3, abs=0.05), pytest.approx(1))
    assert found.accuracy.macro_top1.old == pytest.approx(1 / 3)
    assert found.refusals == ()
    assert found.genera[0].new_top1 == 1.0
    assert found.few_shot.num_taxa == 3
    assert found.speed.num_pairs == 2
    assert found.rejection is None
    assert {found.old.held_out.state, found.new.held_out.state} == {"verified"}
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found


def test_worse_bundle_is_refused_with_both_losses(bad, good, comparing):
    found = compare(good, bad, comparing)
    assert len(found.refusals) == 2
    assert "micro" in found.refusals[0]
    assert "macro" in found.refusals[1]


def test_equal_bundle_is_refused_if_the_pictures_are_too_few(good, comparing):
    found = compare(good, good, comparing)
    assert found.accuracy.micro_top1.loss == 0
    assert len(found.refusals) == 2


def test_bundle_that_was_trained_on_the_pictures_is_refused(bad, good, comparing):
    found = compare(bad, good, msgspec.structs.replace(comparing, split="train"))
    assert [reason.partition(" bundle")[0] for reason in found.refusals] == ["The old", "The new"]
    assert all("trained, chosen or calibrated on 2" in reason for reason in found.refusals)
    assert not found.may_be_accepted


def test_bundle_of_unknown_training_data_is_refused_with_the_remedy(bad, flowers, comparing, tmp_path):
    unknown = seal_color_bundle(tmp_path / "bundle", flowers, version="3", trained_on="")
    found = compare(bad, unknown, comparing)
    (reason,) = found.refusals
    assert found.may_be_accepted
    assert "The new bundle" in reason
    assert "--trained-on" in reason
    stated = msgspec.structs.replace(comparing, trained_on=(comparing.manifest,))
    assert compare(bad, unknown, stated).refusals == ()


def test_bundles_with_other_outputs_are_compared_on_the_shared_taxa(good, flowers, manifest, comparing, tmp_path):
    taxonomy = manifest.taxonomy
    fewer = msgspec.structs.replace(taxonomy, taxa=taxonomy.taxa[:2], outputs=taxonomy.outputs[:2])
    renamed = msgspec.structs.replace(fewer.taxa[0], scientific_name="Rosa nova")
    fewer = msgspec.structs.replace(fewer, taxa=(renamed, *fewer.taxa[1:]))
    kept = [taxonomy.output_keys.index(key) for key in fewer.output_keys]
    small = seal_color_bundle(
        tmp_path / "bundle", flowers, version="3", taxonomy=fewer, weights=good_weights(manifest)[:, kept], side_px=16
    )
    found = compare(good, small, comparing)
    assert found.num_pictures + found.num_left_out == len(manifest.rows_of("test"))
    assert (found.num_left_out, found.num_taxa) == (10, 2)
    assert (found.names.added, len(found.names.removed), len(found.names.renamed)) == ((), 1, 1)
    assert found.accuracy.micro_top1.new == pytest.approx(1)


def test_things_are_named_by_a_bundle_without_a_table(bad, good, comparing, manifest, tmp_path):
    thing = tmp_path / "shoe.jpg"
    thing.write_bytes(manifest.path(0).read_bytes())
    found = compare(bad, good, msgspec.structs.replace(comparing, things=(thing,)))
    assert found.num_things == 1
    assert [each.has_table for each in found.rejection] == [False, False]
    assert found.rejection[1].plants_kept.value == pytest.approx(1)
    thing.write_bytes(b"\xff\xd8\xff broken")
    with pytest.raises(DataError, match=r"shoe\.jpg"):
        compare(bad, good, msgspec.structs.replace(comparing, things=(thing,)))


def test_networks_of_a_precision_that_a_bundle_lacks_cannot_be_compared(bad, good, comparing):
    with pytest.raises(BundleError, match="no network of that precision"):
        compare(bad, good, msgspec.structs.replace(comparing, precision="int8"))


def test_candidate_sets_nest_and_hold_the_right_taxon_of_a_good_network(good, manifest, monkeypatch):
    pictures = compare_module.frozen_set(manifest, "test", good.taxonomy, good.taxonomy)
    right = np.eye(3)[manifest.labels[pictures.rows_N]] * 0.8 + 0.05
    table = conformal_table(
        right, manifest.taxonomy.taxon_of_output[manifest.labels[pictures.rows_N]], np.full(3, 1 / 3)
    )
    monkeypatch.setattr(type(good), "calibration", lambda *_: Calibration(conformal=table, cutoffs=Cutoffs()))
    answers = answer_plants(good, "fp32", pictures.pixels(good.record.input), pictures.taxon_ids)
    assert all(answer.set_sizes == tuple(sorted(answer.set_sizes)) for answer in answers)
    assert all(answer.set_hits == tuple(sorted(answer.set_hits)) for answer in answers)
    assert any(answer.set_hits[-1] for answer in answers)


def test_every_picture_runs_alone_on_one_thread_of_several(good, manifest, monkeypatch):
    pictures = compare_module.frozen_set(manifest, "test", good.taxonomy, good.taxonomy)
    run, seen = OnnxSession.run, []

    def record(session, pixels):
        seen.append((len(pixels), threading.current_thread().name))
        return run(session, pixels)

    monkeypatch.setattr(OnnxSession, "run", record)
    answer_plants(good, "fp32", pictures.pixels(good.record.input), pictures.taxon_ids)
    assert [size for size, _ in seen] == [1] * len(pictures.rows_N)
    assert threading.current_thread().name not in {name for _, name in seen}


def test_verdict_is_right_at_the_rank_that_it_names(good, manifest):
    pictures = compare_module.frozen_set(manifest, "test", good.taxonomy, good.taxonomy)
    answers = answer_plants(load_bundle(good.folder), "fp32", pictures.pixels(good.record.input), pictures.taxon_ids)
    species = [answer for answer in answers if answer.verdict.rank == "species"]
    assert species
    assert all(answer.verdict_right == answer.top1 for answer in species)
    assert not any(answer.verdict_right for answer in answers if not answer.named)
