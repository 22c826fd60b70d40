"""Formats 2 to 5 are read, another format is named, and an unknown field is ignored with a warning."""

import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE, load_bundle
from models.bundle_record import (
    BF16_FORMAT_VERSION,
    FORMAT_VERSION,
    NAMES_FORMAT_VERSION,
    NEWEST_FORMAT_VERSION,
    FailedNetwork,
    NetworkFile,
)
from models.calibration import CALIBRATION_FILE, Calibration, LogisticHead, write_calibration
from models.errors import BundleError
from models.ranking import MistakenTaxa, Thresholds
from models.scoring import JointRule
from tests.make import from_table
from tests.models.test_bundle import edit
from tests.models.tiny import TAXONOMY, bundle_record, seal_tiny

# ---- format 2


def test_sealing_again_gives_the_same_bytes(tmp_path, network_file):
    first = seal_tiny(tmp_path / "first", network_file)
    again = seal_tiny(tmp_path / "again", network_file, record=load_bundle(first.folder).record)
    for path in first.folder.iterdir():
        assert path.read_bytes() == (again.folder / path.name).read_bytes()


def test_look_alikes_leave_the_format_and_an_older_bundle_has_none(tmp_path, network_file):
    given = bundle_record(look_alikes={"crocus": ("rosa-canina",)})
    bundle = seal_tiny(tmp_path / "tiny", network_file, record=given)
    assert bundle.record.format_version == FORMAT_VERSION
    edit(bundle.folder / BUNDLE_FILE, lambda record: record.pop("look_alikes"))
    older = load_bundle(bundle.folder)
    assert (older.record.look_alikes, older.answer_model("fp32").look_alikes, older.warnings) == ({}, {}, ())


# ---- format 3


def test_only_a_bundle_that_names_bf16_has_format_3_which_older_readers_refuse(tmp_path, network_file):
    single = bundle_record().networks["fp32"]
    half = NetworkFile(single.file, temperature=0.8)  # one file for two networks
    both = seal_tiny(tmp_path / "both", network_file, record=bundle_record(networks={"fp32": single, "bf16": half}))
    assert (both.record.format_version, both.warnings) == (BF16_FORMAT_VERSION, ())
    assert both.network_path("bf16") == both.network_path("fp32")
    assert (both.network("bf16").temperature, both.network("fp32").temperature) == (0.8, 0.9)
    failed = bundle_record(left_out={"bf16": FailedNetwork(single.checks)})
    assert seal_tiny(tmp_path / "failed", network_file, record=failed).record.format_version == BF16_FORMAT_VERSION
    assert seal_tiny(tmp_path / "single", network_file).record.format_version == FORMAT_VERSION


def test_only_a_bundle_with_names_by_language_or_powo_ids_has_format_4(tmp_path, network_file):
    for number, more in enumerate(({"names": {"de": ("Rose",)}}, {"powo_id": "732025-1"})):
        taxa = tuple(replace(taxon, **more) for taxon in TAXONOMY.taxa)
        found = seal_tiny(tmp_path / str(number), network_file, taxonomy=replace(TAXONOMY, taxa=taxa))
        assert (found.record.format_version, found.taxonomy.taxa) == (NAMES_FORMAT_VERSION, taxa)


# ---- format 5


def test_only_a_bundle_that_saw_strangers_or_has_limits_for_some_taxa_has_format_5(tmp_path, network_file):
    single = bundle_record().networks["fp32"]
    limits = MistakenTaxa((TAXONOMY.taxa[0].taxon_id,), 0.9)
    record = bundle_record(networks={"fp32": replace(single, mistaken=limits)}, other_data=True)
    found = seal_tiny(tmp_path / "limits", network_file, record=record)
    assert (found.record.format_version, found.answer_model("fp32").is_mistaken.tolist()) == (5, [True, False, False])
    assert (found.network("fp32").mistaken, found.answer_model("fp32").is_held_out) == (limits, False)
    head = Calibration(known_head=LogisticHead(np.ones(3, np.float32), 0.1, 0.2, 0.3))
    write_calibration(tmp_path / CALIBRATION_FILE, {"fp32": head})
    more = {CALIBRATION_FILE: tmp_path / CALIBRATION_FILE}
    record = bundle_record(parts={"calibration": CALIBRATION_FILE})
    assert seal_tiny(tmp_path / "head", network_file, record=record, more_files=more).record.format_version == 5


def test_a_bundle_with_rules_for_several_pictures_has_format_6(tmp_path, network_file):
    rules = tuple(JointRule(number, 1 / number, Thresholds(species=0.8), 0.3) for number in (2, 4))
    record = bundle_record(networks={"fp32": replace(bundle_record().networks["fp32"], joint=rules)})
    found = seal_tiny(tmp_path / "bundle", network_file, record=record)
    model = found.answer_model("fp32")
    assert found.record.format_version == NEWEST_FORMAT_VERSION
    temperatures = [model.for_pictures(number).temperature for number in (1, 2, 3, 4, 5)]
    assert temperatures == [model.temperature, 1 / 2, 1 / 2, 1 / 4, 1 / 4]
    of_two = model.for_pictures(2)
    assert (of_two.thresholds, of_two.calibration.cutoffs.familiar) == (rules[0].thresholds, 0.3)


def test_limits_for_a_taxon_that_the_bundle_lacks_are_refused(tmp_path, network_file):
    single = bundle_record().networks["fp32"]
    record = bundle_record(networks={"fp32": replace(single, mistaken=MistakenTaxa(("unheard-of",), 0.9))})
    with pytest.raises(BundleError, match="unheard-of"):
        seal_tiny(tmp_path / "bundle", network_file, record=record)


# ---- other formats


@from_table
def test_other_format_is_named_before_anything_in_it_is_read(sealed, version, remedy):
    def change(record):
        record.clear()
        record.update(format_version=version, networks="of the future")

    edit(sealed / BUNDLE_FILE, change)
    (sealed / "taxa.json").write_text("of the future")
    with pytest.raises(BundleError, match="has another bundle format") as caught:
        load_bundle(sealed)
    message = str(caught.value)
    assert "expected format 2 to 6" in message
    assert message.rpartition(": ")[2].startswith(remedy)
    assert "damage" not in message


# ---- fields of a later version that this one can ignore


@pytest.mark.parametrize(
    "place", ["", "networks.fp32.", "networks.fp32.checks[].", "architecture.", "metrics[].", "sources[]."]
)
@pytest.mark.parametrize("value", [1, None, {"metrics": [{"name": 2}]}])
def test_unknown_field_is_ignored_with_one_warning(sealed, place, value):
    before = load_bundle(sealed)

    def change(record):
        for name in place.split(".")[:-1]:
            record = record[name.removesuffix("[]")]
            record = record[0] if name.endswith("[]") else record
        record.update(colour=value)

    edit(sealed / BUNDLE_FILE, change)
    bundle = load_bundle(sealed)
    assert bundle.warnings == (f"This version does not know the field {place}colour of bundle.json and ignores it.",)
    assert bundle.record == before.record
