"""Drawn plants in three published layouts, with the faults that real data sets have: for readers, audit and rehearsal.

ROOT/inat2021/         iNaturalist 2021: train.json, val.json, {train,val}/<category>/<name>.jpg
ROOT/plantnet300k/     Pl@ntNet-300K: two JSON files, images/{train,val,test}/<species id>/<name>.jpg
ROOT/house_plants/     <Common (Scientific)>/<number>.{jpg,jpeg,png,webp}
ROOT/taxon.tsv         a synonym and the accepted names
ROOT/collection.toml   the collection, for training/prepare.py sources
"""

import io
import json
import shutil
import tarfile
import zipfile
from dataclasses import dataclass

from PIL import Image

from training.drawn import draw_plant, species_name

SIZE_PX = 48
PICTURES = 4  # of each class
# Species by number. iNaturalist and Pl@ntNet share SHARED and RENAMED; Pl@ntNet has the latter under a synonym.
# The last house plant is in iNaturalist too.
INATURALIST = range(6)
SHARED, RENAMED, DOUBLE, ONLY_PLANTNET = 4, 5, 6, 7
GENUS_MEMBER = 0
HOUSE = (20, 24, INATURALIST[0])
ANIMAL, FUNGUS, SYNONYM = 40, 44, 48
NUM_OUTPUTS = 6 + 5 + 3
NUM_TAXA = NUM_OUTPUTS - 3
FORMATS = {"jpg": "JPEG", "jpeg": "JPEG", "png": "PNG", "webp": "WEBP"}
NOT_PLANTS = {ANIMAL: "Animalia", FUNGUS: "Fungi"}
COLLECTION = """\
name = "published"
merge = "within_sources"
synonyms = "taxon.tsv"
expect_outputs = {num_outputs}

[sources.inat2021]
layout = "inaturalist"
root = "inat2021"

[sources.plantnet300k]
layout = "plantnet"
root = "plantnet300k"

[sources.house_plants]
layout = "image_folder"
root = "house_plants"
license = "cc-by-nc-sa"

[sources.house_plants.names]
"{common}" = "{scientific}"
"""


@dataclass(frozen=True)
class Fault:
    """`picture` and `original`: source, colon, path below its root; of a class its folder or id."""

    kind: str
    picture: str
    original: str = ""


def write_published_layouts(root):
    """Writes the three data sets, their faults, and a collection of them; returns the faults."""
    faults = [*write_inaturalist(root), *write_plantnet(root), *write_house_plants(root)]
    faults += add_copies(root)
    write_taxon_file(root / "taxon.tsv")
    mapped = species_name(HOUSE[1])
    text = COLLECTION.format(num_outputs=NUM_OUTPUTS, common=mapped.common_name, scientific=mapped.name)
    (root / "collection.toml").write_text(text)
    return faults


def draw(file, species, picture):
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = draw_plant(species, picture, SIZE_PX)
    drawn.save(file, format=FORMATS[file.suffix[1:]])


def write_inaturalist(root):
    categories = [category(number, species) for number, species in enumerate((*INATURALIST, *NOT_PLANTS))]
    for part, pictures in {"val": range(1), "train": range(1, PICTURES)}.items():
        images, annotations = [], []
        for entry, species in zip(categories, (*INATURALIST, *NOT_PLANTS), strict=True):
            for picture in pictures:
                number = PICTURES * entry["id"] + picture
                file = f"{part}/{entry['image_dir_name']}/{number:08}.jpg"
                draw(root / "inat2021" / file, species, picture)
                images.append(image(number, file))
                annotations.append({"id": number, "image_id": number, "category_id": entry["id"]})
        licenses = [{"id": 0, "name": "Attribution", "url": "http://creativecommons.org/licenses/by/4.0/"}]
        document = {"images": images, "categories": categories, "annotations": annotations, "licenses": licenses}
        (root / "inat2021" / f"{part}.json").write_text(json.dumps({"info": {"version": "2021"}} | document))
    kinds = dict(zip(("animal", "fungus"), categories[-2:], strict=True))
    return [Fault(kind, f"inat2021:{entry['image_dir_name']}") for kind, entry in kinds.items()]


def category(number, species):
    """An entry of iNaturalist's list of species."""
    name = species_name(species)
    genus, epithet = name.name.split()
    kingdom = NOT_PLANTS.get(species, "Plantae")
    ranks = {"kingdom": kingdom, "family": name.family, "genus": genus, "specific_epithet": epithet}
    return ranks | {
        "id": number,
        "name": name.name,
        "common_name": name.common_name,
        "image_dir_name": "_".join((f"{number:05}", *ranks.values())),
    }


def image(number, file):
    """An entry of iNaturalist's list of pictures."""
    return {
        "id": number,
        "file_name": file,
        "license": 0,
        "rights_holder": f"Observer {number}",
        "date": f"2020-05-{1 + number % 28:02} 10:00:00+00:00",
        "latitude": 40.0 + number,
        "longitude": 8.0,
    }


def write_plantnet(root):
    """One species stands there twice, one under a synonym, one class names a genus, one observation straddles."""
    double = species_name(DOUBLE).name
    names = {
        "1355868": (SHARED, f"{species_name(SHARED).name} L."),
        "1355870": (RENAMED, f"{species_name(SYNONYM).name} Mill."),
        "1355880": (DOUBLE, f"{double} (L.) Mill."),
        "1355890": (DOUBLE, f"{double} Kuntze"),
        "1355900": (ONLY_PLANTNET, f"{species_name(ONLY_PLANTNET).name} DC."),
        "1355910": (GENUS_MEMBER, f"{species_name(GENUS_MEMBER).genus} spp."),
    }
    metadata = {}
    for place, (species_id, (species, _)) in enumerate(names.items()):
        for number, split in enumerate(("train", "train", "val", "test")):
            picture_id = plantnet_id(place, number)
            metadata[picture_id] = {
                "species_id": species_id,
                "obs_id": str(1_000_000_000 + PICTURES * place + number),
                "organ": "flower",
                "author": "Ada",
                "license": "cc-by-sa",
                "split": split,
            }
            file = root / "plantnet300k" / "images" / split / species_id / f"{picture_id}.jpg"
            draw(file, species, 100 + PICTURES * place + number)
    learned, tested = (plantnet_id(4, number) for number in (1, 3))
    metadata[learned]["obs_id"] = metadata[tested]["obs_id"]
    folder = root / "plantnet300k"
    (folder / "plantnet300K_metadata.json").write_text(json.dumps(metadata))
    only_names = {species_id: name for species_id, (_, name) in names.items()}
    (folder / "plantnet300K_species_id_2_name.json").write_text(json.dumps(only_names))
    return [
        Fault("double_species", "plantnet300k:1355890", "plantnet300k:1355880"),
        Fault("genus_level", "plantnet300k:1355910"),
        Fault("observation_split", f"plantnet300k:images/train/1355900/{learned}.jpg"),
    ]


def plantnet_id(place, number):
    """The id of a picture of the class at a place of the list."""
    return f"{place:020}{number:020}"


def write_house_plants(root):
    """A folder has both names, or a common name that the collection maps; files of the first one are damaged."""
    names = [species_name(species) for species in HOUSE]
    folders = [names[0].class_id, names[1].common_name, names[2].class_id]
    for folder, species in zip(folders, HOUSE, strict=True):
        for number, suffix in enumerate(FORMATS):
            draw(root / "house_plants" / folder / f"{number}.{suffix}", species, number)
    whole = (root / "house_plants" / folders[0] / "0.jpg").read_bytes()
    added = {
        "truncated": ("truncated.jpg", whole[: int(0.6 * len(whole))]),
        "html_page": ("actually_html.jpg", b"<!DOCTYPE html><html><body>Not found</body></html>\n"),
        "text_file": ("notes.txt", b"not an image\n"),
        "copy": ("copy of 0.jpg", whole),
    }
    for name, content in added.values():
        (root / "house_plants" / folders[0] / name).write_bytes(content)
    return [Fault(kind, f"house_plants:{folders[0]}/{name}") for kind, (name, _) in added.items()]


def add_copies(root):
    """Encodes two pictures of iNaturalist again: one among the house plants, a test picture for training."""
    house = f"house_plants/{species_name(HOUSE[-1]).class_id}/leak.jpg"
    learned = next((root / "inat2021" / "train").glob("00000_*/*.jpg"))
    repeated = f"plantnet300k/images/train/1355868/{plantnet_id(0, 0)}.jpg"
    tested = next((root / "inat2021" / "val").glob(f"{SHARED:05}_*/*.jpg"))
    faults = []
    for copy, original in ((house, learned), (repeated, tested)):
        again = io.BytesIO()
        with Image.open(original) as picture:
            picture.save(again, format="JPEG", quality=95)
        (root / copy).write_bytes(again.getvalue())
        source = original.relative_to(root).as_posix()
        faults.append(Fault("near_copy", copy.replace("/", ":", 1), source.replace("/", ":", 1)))
    return faults


def write_taxon_file(file):
    """Names as a Darwin Core Taxon file, the format of the GBIF backbone."""
    columns = (
        "taxonID scientificName scientificNameAuthorship taxonomicStatus acceptedNameUsageID taxonRank kingdom family "
        "genus canonicalName"
    )
    accepted = (*INATURALIST, DOUBLE, ONLY_PLANTNET, *HOUSE[:2])
    rows = [columns.split(), *(taxon_row(species, species) for species in accepted), taxon_row(SYNONYM, RENAMED)]
    file.write_text("".join("\t".join(row) + "\n" for row in rows))


def taxon_row(species, accepted):
    name = species_name(species)
    status, accepted_id = ("accepted", "") if species == accepted else ("synonym", str(accepted))
    scientific = f"{name.name} L."
    family = species_name(accepted).family
    place = ("species", "Plantae", family, name.genus, name.name)
    return [str(species), scientific, "L.", status, accepted_id, *place]


def write_archives(unpacked, root):
    """Packs the layouts as their publishers do: iNaturalist by split, each list apart; the others as one file each."""
    for name in ("inat2021", "plantnet300k", "house_plants"):
        shutil.copytree(unpacked / name, root / name)
    for name in ("train", "val", "train.json", "val.json"):
        archive(root / "inat2021" / name, "tar.gz")
    (root / "plantnet300k").rename(root / "plantnet_300K")
    (root / "plantnet300k").mkdir()
    archive(root / "plantnet_300K", "zip")
    (root / "plantnet_300K.zip").rename(root / "plantnet300k" / "plantnet_300K.zip")
    archive(root / "house_plants", "tar", above="archive/")
    shutil.copy(unpacked / "taxon.tsv", root)
    text = (unpacked / "collection.toml").read_text().replace('root = "house_plants"', 'root = "house_plants.tar"')
    (root / "collection.toml").write_text(text)
    return root


def archive(folder, kind, *, above=""):
    """Replaces a folder, or a file, by an archive of it."""
    if kind == "zip":
        with zipfile.ZipFile(f"{folder}.zip", "w") as packed:
            for path in sorted(folder.rglob("*")):
                packed.write(path, f"{above}{path.relative_to(folder.parent)}")
    else:
        with tarfile.open(f"{folder}.{kind}", f"w:{kind.partition('.')[2]}") as packed:
            packed.add(folder, f"{above}{folder.name}")
    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
