import msgspec
import pytest

from models.bundle import load_bundle
from models.errors import BundleError, DataError
from tests.training.comparison.color_bundles import good_weights, prepare_flowers, seal_color_bundle
from training.comparison.compare import Comparing
from training.comparison.schema import Comparison
from training.dataset.manifest import Manifest
from training.registry.folder import CURRENT, REPORTS, Registry
from training.registry.history import read_history
from training.registry.promotion import promote


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return prepare_flowers(tmp_path_factory.mktemp("flowers"))


@pytest.fixture(scope="module")
def versions(flowers, tmp_path_factory):
    """A bundle that confuses two flowers, a good one, and the good one with another version."""
    folder, good = tmp_path_factory.mktemp("versions"), good_weights(Manifest(flowers))
    weights = {"1": good[:, [1, 0, 2]], "2": good, "3": good}
    return [
        seal_color_bundle(folder / version, flowers, version=version, weights=each) for version, each in weights.items()
    ]


@pytest.fixture
def comparing(flowers):
    return Comparing(manifest=Manifest(flowers), num_speed_pairs=0, few_shot_limit=20)


@pytest.fixture
def registry(tmp_path, versions):
    """A registry whose current bundle confuses two flowers."""
    registry = Registry(tmp_path / "registry")
    assert promote(versions[0], registry, None).before is None
    return registry


def served_version(registry):
    return load_bundle(registry.folder / CURRENT).record.version


def test_better_bundle_is_promoted_and_its_report_is_kept(registry, versions, comparing):
    before = registry.current
    done = promote(versions[1], registry, comparing)
    assert (done.before, done.entry, served_version(registry)) == (before, registry.current, "2")
    assert (registry.folder / done.report).is_file()
    change = read_history(registry.folder)[-1]
    assert (change.before, change.after, change.report) == (before, done.entry, done.report)
    facts = (registry.folder / done.report).with_suffix(".json").read_bytes()
    assert msgspec.json.decode(facts, type=Comparison) == done.comparison


def test_bundle_that_is_not_surely_as_good_is_refused_with_its_report(registry, versions, comparing):
    promote(versions[1], registry, comparing)
    with pytest.raises(BundleError, match="not promoted") as refused:
        promote(versions[2], registry, comparing)
    assert "micro top-1" in str(refused.value)
    assert "macro top-1" in str(refused.value)
    assert served_version(registry) == "2"
    assert len(registry.entries()) == 2
    assert len(list(registry.folder.glob(f"{REPORTS}/*/comparison.html"))) == 2


def test_person_decides_where_a_loss_is_neither_proved_nor_excluded(registry, versions, comparing):
    promote(versions[1], registry, comparing)
    with pytest.raises(BundleError, match="--accept-uncertain"):
        promote(versions[2], registry, comparing, accept_uncertain=" ")
    shown = []
    done = promote(versions[2], registry, comparing, accept_uncertain="top-5 rose", show=shown.append)
    assert (served_version(registry), shown) == ("3", [done.comparison])
    assert [change.accepted for change in read_history(registry.folder)] == ["", "", "top-5 rose"]


def test_proved_loss_stays_refused_whatever_the_person_says(registry, versions, comparing):
    promote(versions[1], registry, comparing, accept_uncertain="not needed")
    shown = []
    with pytest.raises(BundleError) as refused:
        promote(versions[0], registry, comparing, accept_uncertain="I like it", show=shown.append)
    assert "--accept-uncertain" not in str(refused.value)
    assert len(shown) == 1
    assert served_version(registry) == "2"
    assert {change.accepted for change in read_history(registry.folder)} == {""}


def test_comparison_needs_data(registry, versions):
    with pytest.raises(DataError, match="--data"):
        promote(versions[1], registry, None)
    assert served_version(registry) == "1"


def test_current_bundle_is_refused_before_it_is_compared(registry, versions):
    with pytest.raises(DataError, match="already names"):
        promote(versions[0], registry, None)


def test_set_that_a_bundle_was_trained_on_is_refused(registry, versions, comparing):
    with pytest.raises(BundleError, match="trained, chosen or calibrated"):
        promote(versions[1], registry, msgspec.structs.replace(comparing, split="train"), accept_uncertain="I like it")
    assert served_version(registry) == "1"


def test_rollback_after_a_promotion_answers_with_the_old_bundle(registry, versions, comparing):
    promote(versions[1], registry, comparing)
    registry.roll_back()
    assert served_version(registry) == "1"
    assert [change.action for change in read_history(registry.folder)] == ["promote", "promote", "rollback"]
