"""Which names come, go and change from one bundle to the next."""

from models.taxonomy import Taxonomy
from training.comparison.schema import NameChanges, Rename


def name_changes(old: Taxonomy, new: Taxonomy) -> NameChanges:
    """Compares the taxa of two bundles by taxon id, which stays the same when a name is corrected."""
    before = {taxon.taxon_id: taxon.scientific_name for taxon in old.taxa}
    after = {taxon.taxon_id: taxon.scientific_name for taxon in new.taxa}
    return NameChanges(
        added=tuple(sorted(after[taxon_id] for taxon_id in after.keys() - before.keys())),
        removed=tuple(sorted(before[taxon_id] for taxon_id in before.keys() - after.keys())),
        renamed=tuple(
            Rename(taxon_id=taxon_id, old=before[taxon_id], new=after[taxon_id])
            for taxon_id in sorted(before.keys() & after.keys())
            if before[taxon_id] != after[taxon_id]
        ),
    )
