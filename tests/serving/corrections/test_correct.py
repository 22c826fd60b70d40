"""Corrections over HTTP: kept with their answer and the pictures that were given, replaced, taken back, refused."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from models.errors import InputError
from serving.access.keys import make_key
from serving.corrections.store import Store
from tests.make import cases
from tests.serving.corrections.kept import DAISY, ROSE, ask, correct, correction, database, files, kept, running
from tests.serving.tiny import TAXA, TAXONOMY, assert_problem
from tests.waiting import wait_until


def test_a_correction_is_kept_with_its_answer_and_the_pictures_that_were_given(client, folder):
    answer = ask(client, ROSE, DAISY)
    body = correct(client, DAISY, of=answer, taxon="Rosa rugosa Thunb.", certain="true").json()
    told = [body[name] for name in ("taxon_id", "name", "num_pictures", "days")]
    assert told == ["rosa-rugosa", "Rosa rugosa", 1, 365]
    (found,) = kept(folder)
    assert (found.correction_id, found.taxon_id, found.certain) == (body["correction_id"], "rosa-rugosa", True)
    assert (found.model, found.person) == ("tiny 0.0.1", "")
    assert found.predicted in found.predictions
    assert 0 < found.score < 1
    with Store(folder) as store:
        assert [store.path(sha256).read_bytes() for sha256 in found.pictures] == [DAISY]


@pytest.mark.parametrize("sent", ["plant-42", "garden/42", "..", "5%", "a?b#c", "x" * 128])
def test_an_answer_is_corrected_whatever_id_its_client_has_chosen(client, sent):
    answer = ask(client, headers={"X-Request-ID": sent})
    assert correct(client, of=quote(answer, safe=""), taxon="crocus").status_code == 200


def test_without_pictures_none_is_kept_and_a_plant_may_be_one_that_the_model_does_not_know(client, folder):
    assert correct(client, other="Bellis sp.").json()["taxon_id"] is None  # the model knows one species of the genus
    assert correct(client, other="Quercus suber").json()["taxon_id"] is None
    (found,) = (each for each in kept(folder) if each.name != "Bellis sp.")  # two of one second have no order
    assert (found.name, found.taxon_id, found.certain, found.pictures) == ("Quercus suber", None, False, ())
    assert files(folder) == set()


def test_a_second_correction_replaces_the_first_with_its_pictures(client, folder):
    answer = ask(client, ROSE, DAISY)
    first = correct(client, ROSE, of=answer, taxon="rosa-canina").json()
    second = correct(client, DAISY, of=answer, taxon="Hundsrose").json()
    assert first["correction_id"] == second["correction_id"]
    (found,) = kept(folder)
    assert files(folder) == set(found.pictures)
    assert len(found.pictures) == 1


def test_a_correction_is_taken_back_with_its_pictures_but_those_of_others_stay(client, folder):
    first, second = (correct(client, ROSE, taxon="crocus").json()["correction_id"] for _ in range(2))
    assert client.delete(f"/corrections/{first}").status_code == 204
    assert len(files(folder)) == 1
    assert client.delete(f"/corrections/{second}").status_code == 204
    assert (files(folder), kept(folder)) == (set(), [])
    assert_problem(client.delete(f"/corrections/{second}"), 404, "unknown_answer")


@pytest.mark.parametrize("fields", cases(__file__, "unclear"))
def test_a_correction_that_says_nothing_clear_is_refused(client, folder, fields):
    assert_problem(correct(client, **fields), 422, "bad_parameter")
    assert kept(folder) == []


@pytest.mark.parametrize(("typed", "name"), cases(__file__, "spellings"))
def test_people_name_plants_as_their_language_is_spelled(client, typed, name):
    assert correct(client, other=typed).json()["name"] == name


@pytest.fixture
def bundle_with_long(sealed, monkeypatch):
    """Seals a bundle whose first taxon has a text that is too long."""

    def seal(taxon, outputs=TAXONOMY.outputs):
        taxonomy = replace(TAXONOMY, taxa=(taxon, *TAXA[1:]), outputs=outputs)
        monkeypatch.setattr("tests.serving.tiny.TAXONOMY", taxonomy)
        return sealed()

    return seal


def test_a_name_that_is_too_long_for_postgresql_is_refused_with_sqlite_too(settings, folder, bundle_with_long):
    bundle = bundle_with_long(replace(TAXA[0], scientific_name="Rosa " + "x" * 196))
    with running(settings, folder, bundle=bundle) as client:
        problem = assert_problem(correct(client, taxon="rosa-canina"), 422, "bad_parameter")
        for words in ("201 characters", "at most 200", "`other`"):
            assert words in problem["detail"]
        assert correct(client, other="a wild rose").status_code == 200
    with Store(folder) as store, pytest.raises(InputError, match=r"at most 200\): give a shorter one\.$"):
        store.review([each.correction_id for each in store.all()], "r" * 201, accepted=True)


def test_an_answer_whose_own_texts_are_too_long_can_be_corrected(settings, folder, bundle_with_long):
    taxon, first = (replace(each, taxon_id="r" * 201) for each in (TAXA[0], TAXONOMY.outputs[0]))
    with running(settings, folder, bundle=bundle_with_long(taxon, (first, *TAXONOMY.outputs[1:]))) as client:
        assert correct(client, taxon="crocus").status_code == 200
    (found,) = kept(folder)
    assert found.predicted == "r" * 200
    assert "r" * 201 in found.predictions


def test_only_pictures_that_were_identified_are_kept(client, folder):
    for pictures in ((DAISY,), (ROSE, DAISY)):
        assert_problem(correct(client, *pictures, taxon="crocus"), 422, "bad_parameter")
        assert (files(folder), kept(folder)) == (set(), [])
    answer = client.post(f"/identify/{ask(client)}/correction", content=ROSE, headers={"Content-Type": "image/jpeg"})
    assert_problem(answer, 400, "malformed_body")


def test_an_answer_is_corrected_only_by_the_client_that_got_it(settings, folder):
    (ann, key), (bob, other_key) = (make_key(name) for name in ("ann", "bob"))
    with running(settings, folder, api_keys=f"{key.line},{other_key.line}") as client:
        mine, theirs = ({"Authorization": f"Bearer {secret}"} for secret in (ann, bob))
        answer = ask(client, headers=mine)
        assert_problem(correct(client, of=answer, taxon="crocus"), 401, "unauthorized")
        assert_problem(correct(client, of=answer, taxon="crocus", headers=theirs), 404, "unknown_answer")
        assert correct(client, of=answer, taxon="crocus", headers=mine).status_code == 200
        assert_problem(correct(client, of="nosuch", taxon="crocus", headers=mine), 404, "unknown_answer")
    assert [each.person for each in kept(folder)] == ["ann"]


def test_each_client_corrects_as_itself_and_its_query_wins_over_its_form(settings, folder, monkeypatch):
    (_, key), (secret, other) = (make_key(name) for name in ("ann", "bob"))
    with running(settings, folder, api_keys=f"{key.line},{other.line}") as client:
        admitted, enter = [], client.service.admission.enter
        monkeypatch.setattr(client.service.admission, "enter", lambda name: admitted.append(name) or enter(name))
        headers = {"Authorization": f"Bearer {secret}"}
        address = f"/identify/{ask(client, headers=headers)}/correction"
        form = {"taxon": (None, "crocus"), "certain": (None, "on")}
        answer = client.post(address, files=form, params={"taxon": "Rosa rugosa", "certain": ""}, headers=headers)
        assert answer.json()["taxon_id"] == "rosa-rugosa"
    assert len(admitted) == 2
    assert {*admitted} == {"key bob"}
    assert kept(folder)[0].certain


def test_a_full_store_refuses_pictures_but_neither_answers_nor_words(settings, folder):
    with running(settings, folder, corrections_bytes=len(ROSE) + 1) as client:
        for _ in range(2):  # the same bytes need no room
            assert correct(client, ROSE, taxon="crocus").status_code == 200
        answer = ask(client, DAISY)
        problem = assert_problem(correct(client, DAISY, of=answer, taxon="crocus"), 507, "store_full")
        assert f"got {len(ROSE) + len(DAISY):,} bytes" in problem["detail"]
        assert correct(client, of=answer, taxon="crocus").status_code == 200


def test_the_oldest_answer_is_forgotten_and_not_the_newest_of_an_id_that_is_used_again(client, monkeypatch):
    monkeypatch.setattr("serving.corrections.service._MAX_ANSWERS", 2)
    for sent in "abac":
        ask(client, headers={"X-Request-ID": sent})
    assert [correct(client, of=each, taxon="crocus").status_code for each in "abc"] == [200, 404, 200]


def test_the_id_of_a_correction_is_in_neither_log_nor_metrics(client):
    secret = correct(client, taxon="crocus").json()["correction_id"]
    with capture_logs() as logged:
        assert client.delete(f"/corrections/{secret}").status_code == 204
    [line] = [each for each in logged if each["event"] == "request"]
    assert line["route"] == "/corrections/{correction_id}"
    metrics = client.get("/metrics").text
    assert 'method="DELETE",route="/corrections/{correction_id}"' in metrics
    assert secret not in f"{logged} {metrics}"


def test_what_is_too_old_goes_at_the_next_start(settings, folder):
    with Store(folder) as store:
        for days in (366, 50):
            created = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
            store.put(correction(days, created=created), [b"%d" % days])
    with running(settings, folder):
        wait_until(lambda: len(files(folder)) == 1)
    assert [each.correction_id for each in kept(folder)] == [f"{50:032x}"]


def test_metrics_tell_how_much_is_kept_of_how_much_and_since_when(settings, folder):
    with running(settings, folder, corrections_bytes=1_000_000) as client:
        for _ in range(2):
            correct(client, ROSE, taxon="crocus")  # one picture, which counts once
    created = [(datetime.now(UTC) - timedelta(days=age)).isoformat(timespec="seconds") for age in (20, 10)]
    with database(folder) as other:
        other.executemany("UPDATE corrections SET created = ? WHERE rowid = ?", zip(created, (1, 2), strict=True))

    def told(client):
        text = client.get("/metrics").text
        return {name: float(value) for name, value in re.findall(r"^botanify_(\w+) (\S+)$", text, re.MULTILINE)}

    with running(settings, folder, corrections_bytes=1_000_000, corrections_days=30) as client:
        wait_until(lambda: told(client)["corrections"] == 2)
        found = told(client)
    assert (found["ready"], found["corrections_bytes"], found["corrections_limit_bytes"]) == (1, len(ROSE), 1_000_000)
    assert found["corrections_age_limit_seconds"] == 30 * 86_400
    assert timedelta(days=20) <= timedelta(seconds=found["corrections_age_seconds"] + 1) < timedelta(days=21)
