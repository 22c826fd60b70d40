import numpy as np
from msgspec.structs import replace

from models.ranking import Promises, Thresholds, decide, rank
from models.taxonomy import Output, Taxon, Taxonomy
from training.evaluation.rank_scores import NO_NAME, rank_scores

TAXA = (
    Taxon(taxon_id="alba", rank="species", scientific_name="Rosa alba", genus="Rosa", family="Rosaceae"),
    Taxon(taxon_id="rubra", rank="species", scientific_name="Rosa rubra", genus="Rosa", family="Rosaceae"),
    Taxon(taxon_id="malus", rank="genus", scientific_name="Malus", genus="Malus", family="Rosaceae"),
    Taxon(taxon_id="iris", rank="species", scientific_name="Iris lutea", genus="Iris"),
)
TAXONOMY = Taxonomy(
    taxonomy_version="test",
    taxa=TAXA,
    outputs=tuple(Output(key=f"a:{taxon.taxon_id}", source="a", taxon_id=taxon.taxon_id) for taxon in TAXA),
)


def scores_of(probabilities, label):
    found = rank_scores(np.array([probabilities]), np.array([label]), TAXONOMY)
    return {name: (round(float(each.score_N[0]), 6), bool(each.right_N[0])) for name, each in found.items()}


def test_a_genus_sums_its_species_and_may_be_right_where_the_species_is_wrong():
    assert scores_of([0.4, 0.3, 0.2, 0.1], label=1) == {
        "species": (0.4, False),
        "genus": (0.7, True),
        "family": (0.9, True),
    }


def test_a_taxon_of_rank_genus_is_no_species():
    assert scores_of([0.1, 0.1, 0.7, 0.1], label=2) == {
        "species": (NO_NAME, True),
        "genus": (0.7, True),
        "family": (0.9, True),
    }


def test_an_unknown_family_is_never_named_and_never_right():
    assert scores_of([0.1, 0.1, 0.1, 0.7], label=3)["family"] == (0.3, False)


def test_taxa_without_a_genus_share_none_and_are_never_right():
    taxa = tuple(replace(taxon, genus="") if taxon.rank == "species" else taxon for taxon in TAXA)
    found = rank_scores(np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([0]), replace(TAXONOMY, taxa=taxa))
    assert (found["genus"].score_N[0], found["genus"].right_N[0]) == (0.2, False)
    assert (found["species"].score_N[0], found["species"].right_N[0]) == (0.4, True)


def test_the_scores_are_those_that_a_verdict_compares_with_its_thresholds():
    random = np.random.default_rng(0)
    taxa = random.dirichlet(np.ones(4), size=50)
    found = rank_scores(taxa, np.zeros(50, dtype=np.intp), TAXONOMY)
    nothing = {"species": 1.0, "genus": 1.0, "family": 1.0}
    for name, scores in found.items():
        verdicts = [decide(rank(each, TAXONOMY), Thresholds(**nothing | {name: 0.5}), Promises()) for each in taxa]
        assert [verdict.rank == name for verdict in verdicts] == (scores.score_N >= 0.5).tolist()
        named = [verdict.score for verdict in verdicts if verdict.rank == name]
        np.testing.assert_allclose(named, scores.score_N[scores.score_N >= 0.5], rtol=1e-12)
