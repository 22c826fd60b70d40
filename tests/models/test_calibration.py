"""The tables of a bundle: as written and read, the scores of rejection, and candidate sets."""

import io
import zipfile
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.calibration import (
    Calibration,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    FittedOn,
    LogisticHead,
    candidate_set,
    conformal_table_of,
    read_calibration,
    unit_length,
    write_calibration,
)
from models.errors import BundleError
from tests.models.long_tail import NUM_TAXA, LongTail, set_figures
from tests.models.tiny import conformal_table

FITTED = FittedOn("drawn, calibration split", "2026-11-22", num_plants=3, num_pictures=4)


def full_calibration():
    features = FeatureTable(np.zeros(2), np.eye(2), np.ones(2), np.eye(2), np.ones((3, 2)))
    taxa_NT = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    return Calibration(
        conformal=conformal_table(taxa_NT, np.array([0, 1]), np.array([0.5, 0.3, 0.2])),
        features=features,
        familiarity=FamiliarityTable(np.array([0.1, 0.2]), np.array([0.3, 0.4])),
        plant_head=LogisticHead(np.ones(2, "f4"), 0.1, -0.2, 0.3),
        cutoffs=Cutoffs(plant=0.4, familiar=0.05),
        fitted_on=FITTED,
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calibration.npz"


def test_tables_are_read_as_they_were_written(path):
    write_calibration(path, {"fp32": full_calibration(), "fp16": Calibration(fitted_on=FITTED)})
    found = read_calibration(path)
    assert found.keys() == {"fp32", "fp16"}
    assert found["fp16"] == Calibration(fitted_on=FITTED)
    for table in ("conformal", "features", "familiarity", "plant_head"):
        written, read = (getattr(each, table) for each in (full_calibration(), found["fp32"]))
        for field in written.__struct_fields__:
            np.testing.assert_array_equal(getattr(read, field), getattr(written, field))
    assert (found["fp32"].cutoffs, found["fp32"].fitted_on) == (Cutoffs(plant=0.4, familiar=0.05), FITTED)


def test_the_same_tables_give_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_calibration(tmp_path / name, {"fp32": full_calibration()})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_tables_and_fields_of_later_versions_are_ignored(path):
    np.savez(path, **{"fp32/later/field": np.ones(2), "fp32/cutoffs/plant": 0.5, "fp32/cutoffs/later": 1.0})
    assert read_calibration(path) == {"fp32": Calibration(cutoffs=Cutoffs(plant=0.5))}


def text_member(path, file_size=None):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fp32/cutoffs/plant.npy", "half")
        archive.infolist()[0].file_size = file_size or 4


def array_of_800_petabytes(path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**17,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fp32/conformal/prior_T.npy", header.getvalue())


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.write_bytes(b""), ""),
        (lambda path: path.write_bytes(b"no archive"), ""),
        (lambda path: path.write_bytes(b"PK\x03\x04 half"), ""),
        (text_member, "not every"),
        (array_of_800_petabytes, "allocate"),
        (lambda path: text_member(path, file_size=10**9), "allowed"),
        (lambda path: np.savez(path, **{"fp32/plant_head/bias": 0.5}), ""),
        (lambda path: np.savez(path, **{"fp32/conformal/prior_T": np.array([{"a": 1}], dtype=object)}), ""),
    ],
    ids=["empty", "no archive", "half", "text", "800 petabytes", "a gigabyte", "a field is missing", "pickled"],
)
def test_a_file_that_cannot_be_read_gives_one_clear_error(path, write, reason):
    write(path)
    with pytest.raises(BundleError, match=rf"calibration\.npz cannot be read.*{reason}"):
        read_calibration(path)


def with_changed(path, field, change):
    """Writes full tables in which one field is changed."""
    write_calibration(path, {"fp32": full_calibration()})
    arrays = dict(np.load(path))
    np.savez(path, **arrays | {f"fp32/{field}": np.asarray(change(arrays[f"fp32/{field}"]))})
    return path


def last_replaced(array, value):
    changed = np.array(array)
    changed.flat[-1] = value
    return changed


FIELDS = [
    f"{table}/{field}"
    for table in ("conformal", "features", "familiarity", "plant_head", "cutoffs")
    for field in getattr(full_calibration(), table).__struct_fields__
]


@pytest.mark.parametrize("field", [field for field in FIELDS if field != "conformal/num_plants_T"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused(path, field, value):
    path = with_changed(path, field, lambda array: last_replaced(array, value))
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(path)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "change", [lambda array: array.astype("U"), lambda array: array.astype(complex), lambda array: array[None]]
)
def test_a_field_of_another_type_or_shape_is_refused(path, field, change):
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(with_changed(path, field, change))


@pytest.mark.parametrize("field", [field for field in FIELDS if field.rpartition("_")[2].isupper()])
def test_arrays_that_are_empty_or_differ_in_length_are_refused(path, field):
    with pytest.raises(BundleError, match="does not fit its table"):
        read_calibration(with_changed(path, field, lambda array: array[:0]))
    if field not in {"features/mean_TD", "plant_head/weight_F"}:  # no other array of the table has their first length
        with pytest.raises(BundleError, match="does not fit its table"):
            read_calibration(with_changed(path, field, lambda array: np.concatenate([array, array])))


@pytest.mark.parametrize("field", ["cutoffs/plant", "cutoffs/familiar"])
@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_a_cutoff_that_no_score_can_have_is_refused(path, field, value):
    with pytest.raises(BundleError, match=field.partition("/")[2]):
        read_calibration(with_changed(path, field, lambda _: value))


EYE = np.eye(3, dtype=np.float32)
TABLE = FeatureTable(
    center_F=np.zeros(3, np.float32),
    basis_FD=EYE,
    whole_D=np.ones(3, np.float32),
    within_DD=2 * EYE,
    mean_TD=np.array([[2, 0, 0], [0, 2, 0]], np.float32),
)


def test_distance_is_to_the_nearest_taxon_less_that_to_the_whole():
    # After `within_DD` the picture lies at (1.2, 1.6, 0); the second taxon is nearer: 1.2² + 0.4². To the whole: 1.
    assert TABLE.distances(np.array([[0.6, 0.8, 0.0]])) == pytest.approx([1.6 - 1.0], abs=1e-6)


@given(seed=st.integers(0, 2**32 - 1), factor=st.floats(0.01, 100))
def test_the_length_of_features_does_not_matter(seed, factor):
    features = np.random.default_rng(seed).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(TABLE.distances(features * factor), TABLE.distances(features), rtol=1e-3, atol=1e-4)


def test_features_of_length_0_have_finite_scores():
    assert np.isfinite(unit_length(np.zeros((1, 3)))).all()
    assert np.isfinite(TABLE.distances(np.zeros((1, 3)))).all()


@given(confidence=st.floats(0, 1), distance=st.floats(-1e6, 1e6), bias=st.floats(-1e3, 1e3))
def test_plant_scores_are_probabilities(confidence, distance, bias):
    head = LogisticHead(np.ones(3, np.float32), weight_confidence=0.5, weight_distance=-0.1, bias=bias)
    (score,) = head.scores(np.ones((1, 3)), np.array([confidence]), np.array([distance]))
    assert 0 <= score <= 1


def test_the_plant_head_is_a_logistic_regression():
    head = LogisticHead(np.array([1, 0, 0], np.float32), weight_confidence=2.0, weight_distance=-3.0, bias=0.25)
    (score,) = head.scores(np.array([[3.0, 4.0, 0.0]]), np.array([0.5]), np.array([0.1]))
    assert score == pytest.approx(1 / (1 + np.exp(-(0.6 + 2.0 * 0 - 0.3 + 0.25))))


def test_familiarity_is_the_mean_of_two_ranks():
    table = FamiliarityTable(np.array([0.2, 0.4, 0.6, 0.8]), np.array([-3.0, -2.0, -1.0, 0.0]))
    scores = table.scores(np.array([0.9, 0.5, 0.1]), np.array([-4.0, -2.5, 1.0]))
    assert scores == pytest.approx([1.0, (2 + 3) / 8, 0.0])


def test_calibration_pictures_that_are_as_sure_and_as_near_count_as_less_familiar():
    table = FamiliarityTable(np.array([0.2, 0.5, 0.5, 0.8]), np.array([-2.0, -1.0, -1.0, 0.0]))
    assert table.scores(np.array([0.5, 0.2]), np.array([-1.0, 0.0])) == pytest.approx([(3 + 3) / 8, (1 + 1) / 8])


KINDS = st.sampled_from(["marginal", "macro"])


def some_table(generator):
    taxa_NT = generator.dirichlet(np.full(12, 0.3), 40)
    prior_T = generator.dirichlet(np.ones(12)) + 1e-6
    return conformal_table(taxa_NT, generator.integers(0, 12, 40), prior_T / prior_T.sum())


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), num_pictures=st.integers(1, 5), kind=KINDS)
def test_sets_of_higher_coverage_contain_sets_of_lower_coverage(seed, num_pictures, kind):
    generator = np.random.default_rng(seed)
    table, taxa_BT = some_table(generator), generator.dirichlet(np.full(12, 0.3), num_pictures)
    sets = [set(candidate_set(table, taxa_BT, coverage, kind).tolist()) for coverage in np.linspace(0.01, 0.99, 25)]
    assert all(sets)
    assert all(smaller <= larger for smaller, larger in pairwise(sets))


def test_an_empty_set_is_filled_with_the_taxon_that_conforms_best():
    table = conformal_table(np.array([[0.6, 0.3, 0.1]] * 4), np.array([0, 0, 1, 2]), np.array([0.8, 0.1, 0.1]))
    taxa_BT = np.array([[0.9, 0.06, 0.04]])  # conformities 1.125, 0.6 and 0.4, against 0.75, 0.75, 1 and 3
    assert table.p_values(taxa_BT, "marginal") == pytest.approx([0.8, 0.2, 0.2])
    assert candidate_set(table, taxa_BT, 0.9).tolist() == [0, 1, 2]
    assert candidate_set(table, taxa_BT, 0.1).tolist() == [0]


def test_a_taxon_whose_p_value_equals_the_risk_is_left_out():
    table = conformal_table(np.array([[0.4, 0.6], [0.4, 0.6], [0.8, 0.2]]), np.zeros(3, np.intp), np.array([0.5, 0.5]))
    taxa_BT = np.array([[0.9, 0.4]])  # p-values 1 and 3/4
    assert table.p_values(taxa_BT, "marginal").tolist() == [1, 0.75]
    assert candidate_set(table, taxa_BT, 0.25).tolist() == [0]
    assert candidate_set(table, taxa_BT, 0.26).tolist() == [0, 1]


def test_a_single_picture_counts_itself_among_the_plants():
    # Conformities 0.2, 0.4, 0.6 and 0.8: of five plants, the picture's own included, at most one is below 0.2.
    taxa_NT = np.array([[0.2, 0.8], [0.4, 0.6], [0.6, 0.4], [0.8, 0.2]]) / 2
    table = conformal_table(taxa_NT, np.zeros(4, dtype=np.intp), np.array([0.5, 0.5]))
    np.testing.assert_allclose(table.p_values(np.array([[0.25, 0.05]]), "marginal"), [3 / 5, 1 / 5])


def test_p_values_of_two_pictures_are_twice_their_mean():
    table = conformal_table_of(np.array([0.2, 0.4, 0.6, 0.8]), np.zeros(4, dtype=np.intp), np.ones(1))
    taxa_BT = np.array([[0.3, 0.1, 0.9], [0.1, 0.1, 0.5]])  # alone 2/5, 1/5 and 1; 1/5, 1/5 and 3/5
    np.testing.assert_allclose(table.p_values(taxa_BT, "marginal"), [3 / 5, 2 / 5, 1])
    np.testing.assert_allclose(table.p_values(taxa_BT, "macro"), [3 / 4, 2 / 4, 1])  # alone 2/4, 1/4 and 5/4


def test_two_pictures_are_covered_even_if_one_is_good_where_the_other_is_bad():
    generator = np.random.default_rng(0)
    table = conformal_table_of(generator.random(999), np.zeros(999, dtype=np.intp), np.ones(1))
    first_T = generator.random(10_000)
    second_T = np.where(first_T < 0.19, 0.19 - first_T, first_T)  # as often as the first below any value
    assert (table.p_values(np.stack([first_T, second_T]), "marginal") > 0.1).mean() >= 0.9


def test_macro_weights_of_every_taxon_sum_to_the_same_and_are_in_the_order_of_conformity():
    table = conformal_table_of(np.array([0.4, 0.1, 0.3, 0.2, 0.05]), np.array([0, 1, 0, 0, 3]), np.ones(4))
    assert table.macro_weight_N == pytest.approx([1 / 3, 1 / 3, 1 / 9, 1 / 9, 1 / 9])


@pytest.mark.parametrize("num_plants", [(1, 1, 1), (1, 2, 6), (5, 1, 1)])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_macro_coverage_holds_with_few_plants_of_each_taxon(num_plants, spread):
    """The taxa lie apart by `spread`, so the mean over plants and the mean over taxa differ."""
    generator, labels, num_draws = np.random.default_rng(0), np.repeat(np.arange(3), num_plants), 1000
    p_values = np.empty((num_draws, 3))
    for draw in range(num_draws):
        table = conformal_table(
            np.tile((generator.random(len(labels)) + spread * labels)[:, None], 3), labels, np.ones(3)
        )
        p_values[draw] = table.p_values((generator.random(3) + spread * np.arange(3))[None], "macro")
    for coverage in (0.5, 0.6, 0.8):
        covered = (p_values > 1 - coverage).mean()
        assert covered >= coverage - 4 * np.sqrt(coverage * (1 - coverage) / (3 * num_draws))


@pytest.fixture(scope="module")
def figures():
    """The figures of the candidate sets of fresh plants, each measured once."""
    tail = LongTail()
    calibration, fresh = (tail.draw(4000, seed) for seed in (1, 2))

    @cache
    def measured(kind, coverage, *, has_prior=True):
        prior_T = tail.share_T if has_prior else np.full(NUM_TAXA, 1 / NUM_TAXA)
        return set_figures(conformal_table(*calibration, prior_T), *fresh, kind, coverage)

    return measured


@pytest.mark.parametrize(
    "coverage", [pytest.param(0.80, marks=pytest.mark.slow), 0.90, pytest.param(0.95, marks=pytest.mark.slow)]
)
def test_coverage_is_within_a_point_or_its_sampling_error(figures, coverage):
    marginal, _, _ = figures("marginal", coverage)
    deviation = np.sqrt(2 * coverage * (1 - coverage) / 4000)  # both splits are samples
    assert abs(marginal - coverage) <= max(0.01, 3 * deviation)


def test_macro_coverage_holds_for_the_mean_taxon(figures):
    _, macro, _ = figures("macro", 0.9)
    assert macro == pytest.approx(0.9, abs=0.03)


def test_the_prior_covers_rare_taxa_at_hardly_larger_sets(figures):
    _, plain, plain_size = figures("marginal", 0.9, has_prior=False)
    _, macro, size = figures("marginal", 0.9)
    assert macro >= plain + 0.10
    assert size <= 1.7 * plain_size
