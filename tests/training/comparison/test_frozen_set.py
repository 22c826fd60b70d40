import msgspec
import pytest

from models.errors import DataError
from tests.models.tiny import species, taxonomy_of
from training.comparison.frozen_set import frozen_set
from training.dataset.manifest import Manifest


@pytest.fixture(scope="module")
def manifest(flowers):
    return Manifest(flowers)


def test_pictures_of_taxa_that_a_bundle_does_not_know_are_left_out(manifest):
    known = msgspec.structs.replace(manifest.taxonomy, outputs=manifest.taxonomy.outputs[:2])
    known = msgspec.structs.replace(
        known, taxa=tuple(t for t in known.taxa if t.taxon_id in {output.taxon_id for output in known.outputs})
    )
    found = frozen_set(manifest, "test", manifest.taxonomy, known)
    assert set(found.taxon_ids) == {taxon.taxon_id for taxon in known.taxa}
    assert found.num_left_out + len(found.rows_N) == len(manifest.rows_of("test"))
    assert found.num_left_out == 10
    assert len(set(found.taxon_numbers.tolist())) == 2


def test_bundles_without_a_common_taxon_are_refused(manifest):
    with pytest.raises(DataError, match="both bundles know"):
        frozen_set(manifest, "test", manifest.taxonomy, taxonomy_of(species("Carex alba")))
