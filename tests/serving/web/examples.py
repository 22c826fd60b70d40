"""Answers of `POST /identify` and a description of a model, as the page reads them."""

PROMISE = {"max_risk": 0.05, "confidence": 0.95, "num_named": 812, "num_wrong": 21}

OF_TEST = {"data": "flowers17, test split", "num_pictures": 272}

MEASURED = {"kind": "marginal", "coverage": 0.9, "covered": 0.93, "interval_95": [0.89, 0.95], **OF_TEST}

ECE = {"name": "ece", "value": 0.034, "interval_95": [0.021, 0.06], **OF_TEST}

MODEL = {
    "name": "flowers17",
    "version": "2.0.0",
    "label_hash": "77e4" * 16,
    "description": "Names 17 flowers.",
    "num_taxa": 17,
    "num_species": 16,
    "num_genera": 1,
    "example": "/web/sunflower.jpg",
    "metrics": [{"name": "top1_taxon", "value": 0.8125, "interval_95": [0.76, 0.86], **OF_TEST}, ECE],
    "other_data": False,
    "calibration": {"data": "flowers17, calibration split", "fitted": "2026-11-22", "num_plants": 150,
                    "num_pictures": 153, "num_negatives": 297, "num_uncalibrated_taxa": 0, "uncalibrated_taxa": [],
                    "ece": ECE, "coverages": [MEASURED]},
    "promises": {"species": PROMISE, "genus": None, "family": None},
    "limits": {"num_pictures": 5, "picture_bytes": 20_000_000, "request_bytes": 60_000_000},
    "sources": [{"name": "flowers17", "num_pictures": 1088, "licenses": {"unknown": 1088}, "note": ""}],
}  # fmt: skip

NAMES = (
    ("Helianthus annuus", "Asteraceae", "common sunflower"),
    ("Bellis perennis", "Asteraceae", "common daisy"),
    ("Primula veris", "Primulaceae", "cowslip"),
    ("Crocus vernus", "Iridaceae", "spring crocus"),
    ("Tigridia pavonia", "Iridaceae", ""),
)


def prediction(position, score):
    """Gives the prediction at a position from 1; positions beyond the known names give drawn names."""
    known = NAMES[position - 1 : position]
    name, family, common = known[0] if known else (f"Planta numero{position}", "Familiaceae", "")
    return {
        "position": position,
        "rank": "species",
        "taxon_id": name.lower().replace(" ", "-"),
        "scientific_name": name,
        "common_names": [common] if common else [],
        "genus": name.split()[0],
        "family": family,
        "gbif_id": 3118771 if position == 1 else None,
        "powo_id": "119003-2" if position == 1 else None,
        "vision_score": None,
        "prior": None,
        "num_images": 0,
        "score": score,
    }


def predictions(*scores):
    return [prediction(position, score) for position, score in enumerate(scores, start=1)]


def picture(index, weight, plant_score=None, best=1, size=(519, 500)):
    """Gives what an answer says about one picture; `best` is the position of its best prediction."""
    return {
        "index": index, "width": size[0], "height": size[1], "plant_score": plant_score, "weight": weight,
        "predictions": [prediction(best, 0.8), prediction(best + 1, 0.1)], "preview": None,
    }  # fmt: skip


def candidates(num_taxa, guarantee="marginal", num_uncalibrated_taxa=0):
    return {
        "coverage": 0.9, "kind": guarantee or "marginal", "guarantee": guarantee, "score": 0.93,
        "num_taxa": num_taxa, "taxa": predictions(*(0.93 / num_taxa for _ in range(num_taxa))),
        "num_uncalibrated_taxa": num_uncalibrated_taxa, "measured": MEASURED if guarantee == "marginal" else None,
    }  # fmt: skip


def answer(rank="species", name="Helianthus annuus", score=0.98, reason="species 0.98 reaches 0.70.", **changes):
    """Gives a whole answer; `promise` and `unknown_plant` belong to the verdict, other changes to the answer."""
    verdict = {"promise": changes.pop("promise", None), "unknown_plant": changes.pop("unknown_plant", False)}
    whole = {
        "request_id": "request-1",
        "model": {"name": MODEL["name"], "version": MODEL["version"], "label_hash": MODEL["label_hash"]},
        "verdict": {"rank": rank, "name": name, "score": score, "reason": reason, **verdict},
        "plant_score": 0.97,
        "predictions": predictions(score, 0.01, 0.005, 0.004, 0.001),
        "genera": [{"name": "Helianthus", "score": score}, {"name": "Bellis", "score": 0.01}],
        "families": [{"name": "Asteraceae", "score": score}],
        "candidates": candidates(1),
        "discarded_mass": None,
        "uses_place": False,
        "place": None,
        "look_alikes": [],
        "harmful": [],
        "images": [picture(0, 1.0, 0.97)],
        "warnings": [],
    }
    return {**whole, **changes}


SPECIES = answer(promise=PROMISE)
GENUS = answer("genus", "Helianthus", 0.93, "species 0.41 is below 0.70; genus Helianthus 0.93 reaches 0.85.",
               predictions=predictions(0.41, 0.38, 0.1, 0.03, 0.01), candidates=candidates(4))  # fmt: skip
UNCERTAIN = answer("uncertain", None, 0.31, "species 0.31 is below 0.70; family Asteraceae 0.50 is below 0.90.",
                   predictions=predictions(0.31, 0.25, 0.2, 0.1, 0.1), candidates=candidates(57))  # fmt: skip
UNKNOWN_PLANT = answer("uncertain", None, 0.55,
                       "unlike the plants that this model knows: familiarity 0.12 is below 0.30.", unknown_plant=True,
                       predictions=predictions(0.55, 0.2, 0.1, 0.1, 0.01), candidates=candidates(3))  # fmt: skip
NOT_A_PLANT = answer("not_a_plant", None, 0.03, "plant score 0.03 is below 0.41.", plant_score=0.03,
                     predictions=predictions(0.75, 0.1, 0.05, 0.02, 0.01), images=[picture(0, 1.0, 0.03)])  # fmt: skip
THREE_PICTURES = answer(
    promise=PROMISE, images=[picture(0, 0.52, 0.97), picture(1, 0.0, 0.02, best=3), picture(2, 0.48, 0.9)]
)
CHOICE = answer(discarded_mass=0.31, candidates=candidates(2, guarantee=None))
LOOK_ALIKES = answer(reason="species 0.98 reaches 0.70. It is often taken for Bellis perennis or Primula veris.",
                     look_alikes=predictions(0, 0.01, 0.005)[1:])  # fmt: skip
IVY = prediction(5, 0.03) | {
    "taxon_id": "toxicodendron-radicans", "scientific_name": "Toxicodendron radicans", "genus": "Toxicodendron",
    "family": "Anacardiaceae", "common_names": ["poison ivy"],
}  # fmt: skip
HARM = {
    "genus": "Toxicodendron",
    "harm": "touch",
    "effect": "causes contact dermatitis",
    "score": 0.03,
    "prediction": IVY,
}
HARMFUL = answer(promise=PROMISE, harmful=[HARM])
TWO_PLANTS = answer("uncertain", None, 0.5, predictions=predictions(0.5, 0.01, 0.48),
                    images=[picture(0, 0.5, 0.9), picture(1, 0.5, 0.9, best=3)])  # fmt: skip
# Every new field is null, as a bundle without tables leaves them.
NO_TABLES = answer("uncertain", None, 0.31, "No species, genus or family reaches its threshold.", plant_score=None,
                   candidates=None, images=[picture(0, 0.5), picture(1, 0.5)],
                   predictions=predictions(0.31, 0.25, 0.2, 0.1, 0.1))  # fmt: skip
STATES = {
    "species": SPECIES, "genus": GENUS, "uncertain": UNCERTAIN, "unknown_plant": UNKNOWN_PLANT,
    "not_a_plant": NOT_A_PLANT, "three_pictures": THREE_PICTURES, "choice": CHOICE, "no_tables": NO_TABLES,
    "look_alikes": LOOK_ALIKES, "harmful": HARMFUL, "two_plants": TWO_PLANTS,
}  # fmt: skip
