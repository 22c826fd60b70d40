"""The names that a person should check, in the words of the report."""

from typing import Final

from training.dataset.classes import Classes, MergedName, MergeKind, WrittenName
from training.dataset.report.schema import NameFinding, NameFindings

_MERGED: Final[dict[MergeKind, str]] = {
    "within_source": "one source writes it in several ways: one output",
    "across_sources": "several sources have it: one taxon, whose outputs are summed",
    "synonym": "synonyms of the accepted name",
}


def name_findings(classes: Classes) -> NameFindings:
    """Returns the merged, genus-level, common, misspelt, similar and ambiguous names."""
    similar = [
        NameFinding(
            name=f"{entry.first} / {entry.second}",
            members=tuple(_written(name) for name in entry.written),
            explanation="may be one plant: if so, give one of the names under [sources.X.names]",
        )
        for entry in classes.similar
    ]
    misspelt = [
        NameFinding(
            name=written.name,
            members=(_written(written),),
            explanation=f"no listed genus; perhaps {' or '.join(genera)}",
        )
        for written, genera in classes.misspelt
    ]
    ambiguous = [
        NameFinding(
            name=entry.written.name,
            members=(_written(entry.written),),
            explanation=f"a synonym of several names, so it stays as written: {', '.join(entry.candidates)}",
        )
        for entry in classes.ambiguous
    ]
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
        common=tuple(
            NameFinding(
                name=entry.name,
                members=(_written(entry),),
                explanation="no scientific name; name its folder Common (Scientific), or give its genus",
            )
            for entry in classes.common
        ),
        misspelt=tuple(misspelt),
        similar=(*similar, *ambiguous),
    )


def _merged(entry: MergedName) -> NameFinding:
    return NameFinding(
        name=entry.scientific_name,
        members=tuple(_written(name) for name in entry.written),
        explanation=_MERGED[entry.kind],
    )


def _written(name: WrittenName) -> str:
    return f"{name.source}: {name.name}"
