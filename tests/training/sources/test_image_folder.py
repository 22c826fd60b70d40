import pytest

from models.errors import DataError
from training.sources.image_folder import read_image_folder, split_class_name


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("Sunflower (Helianthus annuus)", ("Helianthus annuus", "Sunflower")),
        ("Lily (garden) (Lilium bulbiferum)", ("Lilium bulbiferum", "Lily (garden)")),
        ("Helianthus annuus", ("Helianthus annuus", "")),
        ("Helianthus_annuus", ("Helianthus annuus", "")),
        ("Sunflower", ("Sunflower", "")),
        ("(Helianthus annuus)", ("(Helianthus annuus)", "")),
    ],
)
def test_a_folder_name_is_taken_apart(folder, names):
    assert split_class_name(folder) == names


def test_pictures_come_sorted_from_any_depth_without_hidden_files(tmp_path):
    for name in (
        "B b/2.jpg",
        "B b/deep/1.jpg",
        "A a/9.PNG",
        "A a/.hidden.jpg",
        ".git/x.jpg",
        "A a/readme.txt",
        "top.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [record.path.relative_to(tmp_path).as_posix() for record in read_image_folder(tmp_path)]
    assert found == ["A a/9.PNG", "B b/2.jpg", "B b/deep/1.jpg"]


def test_pictures_without_class_folders_are_told(tmp_path):
    (tmp_path / "a.jpg").touch()
    with pytest.raises(DataError, match="folder above the class folders"):
        list(read_image_folder(tmp_path))
