"""train.py with a data set that sleeps, so that the run waits for pictures most of the time."""

import time
from unittest.mock import patch

from training.loading.data import PictureDataset

SLEEP_S = 0.3


class SlowPictures(PictureDataset):
    """Training pictures of which each batch takes its time."""

    def __getitems__(self, indexes):
        time.sleep(SLEEP_S)
        return super().__getitems__(indexes)


def main():
    from training.train import main as train  # not in the loader processes, which import this file

    with patch("training.loading.data.PictureDataset", SlowPictures):
        train()


if __name__ == "__main__":
    main()
