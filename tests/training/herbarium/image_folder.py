"""Drawn plants as a folder of class folders, for tests that need a user's own pictures."""

from training.herbarium import draw_plant, species_name


def write_image_folder(root, *, num_species, pictures_per_species, size_px):
    """Writes JPEG files into one folder for each species, named `Common (Scientific)`."""
    for species in range(num_species):
        name = species_name(species)
        folder = root / f"{name.common_name} ({name.scientific_name})"
        folder.mkdir(parents=True)
        for picture in range(pictures_per_species):
            draw_plant(species, picture, size_px=size_px).save(folder / f"{picture:05d}.jpg", quality=92)
