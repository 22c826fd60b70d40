"""What the steps of a preparation found out, in the words of its report."""

from training.dataset.audit import Ledger, NearGroups
from training.dataset.classes import Classes, MergedName, WrittenName
from training.dataset.report.schema import LicenseSummary, NameFinding, NameFindings

_MERGED = {
    "within_source": "one source writes it in several ways: one output",
    "across_sources": "several sources show it: one taxon, whose outputs are summed",
    "synonym": "synonyms of the accepted name",
}


def name_findings(classes: Classes) -> NameFindings:
    """What came of the names, for a person to check."""
    return NameFindings(
        merged=tuple(_merged(entry) for entry in classes.merged),
        genus_level=tuple(
            NameFinding(
                name=entry.name,
                members=(_written(entry),),
                explanation="names no species, so it counts for its genus; a [sources.X.names] entry can correct it",
            )
            for entry in classes.genus_level
        ),
        similar=tuple(
            NameFinding(
                name=f"{entry.first} / {entry.second}",
                members=tuple(_written(name) for name in entry.written),
                explanation="may be one plant: if so, give one of the names under [sources.X.names]",
            )
            for entry in classes.similar
        )
        + tuple(
            NameFinding(
                name=entry.written.name,
                members=(_written(entry.written),),
                explanation=f"a synonym of several names, so it stays as written: {', '.join(entry.candidates)}",
            )
            for entry in classes.ambiguous
        ),
    )


def near_copy_notes(found: NearGroups) -> tuple[str, ...]:
    """What the groups of near copies do not cover."""
    if not found.num_chained:
        return ()
    return (
        f"Near copies: {found.num_chained:,} chains were cut where their ends are too different; "
        f"{int(found.chained.sum()):,} pictures in them may have a near copy in another group.",
    )


def license_summaries(ledger: Ledger) -> dict[str, LicenseSummary]:
    """What may be done with the pictures of each source."""
    return {
        name: LicenseSummary(
            commercial_use=found.commercial_use,
            sentence=found.sentence,
            licenses=found.licenses,
            num_authors=found.num_authors,
        )
        for name, found in ledger.sources.items()
    }


def _merged(entry: MergedName) -> NameFinding:
    return NameFinding(
        name=entry.scientific_name,
        members=tuple(_written(name) for name in entry.written),
        explanation=_MERGED[entry.kind],
    )


def _written(name: WrittenName) -> str:
    return f"{name.source}: {name.name}"
