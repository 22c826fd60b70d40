"""Each license has one identifier, and is classified by whether it allows commercial use."""

import json

import msgspec
import pytest

from tests.training.dataset.labeled import picture
from training.dataset.audit.licenses import (
    commercial_use,
    joint_commercial_use,
    license_id,
    license_summaries,
    may_be_shown,
)


@pytest.mark.parametrize(
    ("written", "identifier"),
    [
        ("cc-by-nc-sa", "CC-BY-NC-SA"),
        ("CC-BY-NC-ND 4.0", "CC-BY-NC-ND-4.0"),
        ("CC BY 4.0", "CC-BY-4.0"),
        ("cc_by_sa_3.0", "CC-BY-SA-3.0"),
        ("CC BY-ND 2", "CC-BY-ND-2.0"),
        ("CC-BY-NC-SA (see the page)", "CC-BY-NC-SA"),
        ("(c) Ann Sun, some rights reserved (CC BY-NC)", "CC-BY-NC"),
        ("© Ann Sun, CC BY 4.0", "CC-BY-4.0"),
        ("Attribution-NonCommercial License", "CC-BY-NC"),
        ("Attribution License", "CC-BY"),
        ("Creative Commons Attribution-ShareAlike 4.0 International", "CC-BY-SA-4.0"),
        ("Attribution-NonCommercial-NoDerivs 2.0 Generic", "CC-BY-NC-ND-2.0"),
        ("Attribution-NoDerivatives", "CC-BY-ND"),
        ("http://creativecommons.org/licenses/by-nc/4.0/", "CC-BY-NC-4.0"),
        ("https://creativecommons.org/licenses/by-nd-nc/1.0", "CC-BY-NC-ND-1.0"),
        ("https://creativecommons.org/licenses/by-sa/3.0/de/", "CC-BY-SA-3.0"),
        ("CC0", "CC0-1.0"),
        ("CC0 1.0", "CC0-1.0"),
        ("cc-zero", "CC0-1.0"),
        ("http://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("Public Domain Dedication", "CC0-1.0"),
        ("https://creativecommons.org/publicdomain/mark/1.0/", "CC-PDM-1.0"),
        ("public domain", "CC-PDM-1.0"),
        ("©", "all-rights-reserved"),
        ("C", "all-rights-reserved"),
        ("© Ann Sun", "all-rights-reserved"),
        ("All rights reserved", "all-rights-reserved"),
        ("CC_BY_NC_4_0", "CC-BY-NC-4.0"),
        ("CC-BY-NC, © Ann Sun", "CC-BY-NC"),
        ("CC BY Non Commercial", "CC-BY-NC"),
        ("CC BY: Attribution 4.0, https://creativecommons.org/licenses/by/4.0/", "CC-BY-4.0"),
        ("http://creativecommons.org/licenses/by/4.0/legalcode", "CC-BY-4.0"),
        ("https://creativecommons.org/licenses/by-nc-sa/4.0/legalcode.de", "CC-BY-NC-SA-4.0"),
        ("Namensnennung - Nicht-kommerziell 4.0 International", "CC-BY-NC-4.0"),
        (
            "CC BY-NC-SA 4.0 (Namensnennung - Nicht-kommerziell - Weitergabe unter gleichen Bedingungen)",
            "CC-BY-NC-SA-4.0",
        ),
        ("Creative Commons Namensnennung – keine Bearbeitungen 3.0", "CC-BY-ND-3.0"),
        ("CC BY, keine kommerzielle Nutzung", "CC-BY-NC"),
        ("Attribution - Pas d’Utilisation Commerciale - Partage dans les Mêmes Conditions 4.0", "CC-BY-NC-SA-4.0"),
        ("Licence Creative Commons Attribution - Pas de Modification 3.0 France", "CC-BY-ND-3.0"),
        ("No rights reserved", "CC0-1.0"),
        ("Creative Commons Zero", "CC0-1.0"),
        ("Public Domain Mark 1.0", "CC-PDM-1.0"),
        ("© all rights reserved", "all-rights-reserved"),
        ("Alle Rechte vorbehalten", "all-rights-reserved"),
        ("Tous droits re\u0301serve\u0301s", "all-rights-reserved"),
        ("(c) Ann Sun", "all-rights-reserved"),
        ("In copyright", "all-rights-reserved"),
        ("Urheberrechtlich geschützt", "all-rights-reserved"),
        ("© Ann Sun, some rights reserved", "© Ann Sun, some rights reserved"),
        ("", "unknown"),
        ("  ", "unknown"),
        ("Unknown", "unknown"),
        ("Open Database License", "Open Database License"),
        (" terms of the project ", "terms of the project"),
        ("photo by Nina, NC", "photo by Nina, NC"),
    ],
)
def test_a_license_has_one_name_however_it_is_written(written, identifier):
    assert license_id(written) == identifier
    assert license_id(identifier) == identifier


@pytest.mark.parametrize(
    ("terms", "use"),
    [
        ("CC-BY-4.0", "allowed"),
        ("CC-BY-SA", "allowed"),
        ("CC-BY-ND-4.0", "allowed"),
        ("CC0-1.0", "allowed"),
        ("CC-PDM-1.0", "allowed"),
        ("CC-BY-NC", "not_allowed"),
        ("CC-BY-NC-SA-4.0", "not_allowed"),
        ("cc-by-nc-sa", "not_allowed"),
        ("all-rights-reserved", "not_allowed"),
        ("for non-commercial research only", "not_allowed"),
        ("unknown", "unknown"),
        ("", "unknown"),
        ("terms of the project", "unknown"),
    ],
)
def test_a_license_says_whether_commercial_use_is_allowed(terms, use):
    assert commercial_use(terms) == use


@pytest.mark.parametrize(
    "written",
    [
        "CC BY 4.0, for non-commercial use only",
        "CC BY 4.0 (text); CC BY-NC 4.0 (images)",
        "Creative Commons Attribution 4.0 (no commercial use)",
        "CC BY 4.0, academic use only",
        "CC BY 3.0 or all rights reserved",
        "not for commercial use",
        "CC-BY-4.0, kommerzielle Nutzung untersagt",
        "CC BY 4.0, utilisation commerciale interdite",
        "CC0; nur für nicht kommerzielle Zwecke",
        "CC0 for the text, all rights reserved for the images",
        "CC-BY 4.0 (not commercial)",
        "Attribution-NonCommercial 4.0 International (CC BY)",
    ],
)
def test_a_condition_beside_a_free_license_is_kept(written):
    assert commercial_use(written) == "not_allowed"
    assert commercial_use(license_id(written)) == "not_allowed"


@pytest.mark.parametrize(
    "written",
    [
        "Attribution required",
        "For educational use; attribution to the museum",
        "Creative Commons license of the page; attribution",
        "CC-BY 4.0, see the restrictions of the museum",
        "CC-BY-SA 4.0 unless noted otherwise",
        "CC0 (metadata), CC BY 4.0 (images)",
        "CC0 except for the photographs",
        "CC BY 4.0 (commercial use allowed)",
        "no known copyright restrictions",
        "CC",
    ],
)
def test_a_text_that_is_not_understood_is_never_free(written):
    assert (license_id(written), commercial_use(written), may_be_shown(written)) == (written, "unknown", False)


def test_one_license_that_forbids_commercial_use_decides_for_all():
    assert joint_commercial_use(["CC-BY-4.0", "unknown", "CC-BY-NC-4.0"]) == "not_allowed"
    assert joint_commercial_use(["CC-BY-4.0", "unknown"]) == "unknown"
    assert joint_commercial_use(["CC-BY-4.0", "CC0-1.0"]) == "allowed"
    assert joint_commercial_use([]) == "unknown"


def test_licenses_and_authors_are_counted_by_source():
    pictures = [
        picture("wild:1", license="cc-by-nc", author="Ann"),
        picture("wild:2", license="Attribution-NonCommercial License", author="Ann"),
        picture("wild:3", license="CC0", author="Bo"),
        picture("wild:4"),
        picture("house:1", license="CC BY 4.0", author="Cy"),
    ]
    found = license_summaries(pictures)
    wild, house = found["wild"], found["house"]
    assert wild.licenses == {"CC-BY-NC": 2, "CC0-1.0": 1, "unknown": 1}
    assert (wild.num_authors, wild.commercial_use) == (2, "not_allowed")
    assert wild.sentence == (
        "may not be used commercially: 2 of 4 pictures forbid it, and 1 of 4 pictures have no license that is known"
    )
    assert (house.commercial_use, house.sentence) == (
        "allowed",
        "may be used commercially: the licenses of all 1 pictures allow it",
    )
    assert json.loads(msgspec.json.encode(found))["wild"]["licenses"]["CC-BY-NC"] == 2
