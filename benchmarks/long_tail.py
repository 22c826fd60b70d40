"""Generated answers over 5,337 taxa with a long tail, as iNaturalist has one, for measurements of candidate sets."""

from typing import Final

import numpy as np
import numpy.typing as npt

NUM_TAXA: Final = 5337
_NUM_RIVALS: Final = 7


class LongTail:
    """Plants whose taxa have shares that fall as 1 / rank; each right taxon has seven rivals with raised logits."""

    def __init__(self) -> None:
        share_T = 1 / np.arange(1, NUM_TAXA + 1)
        self.share_T: npt.NDArray[np.float64] = np.random.default_rng(0).permutation(share_T / share_T.sum())

    def draw(self, num_plants: int, seed: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.intp]]:
        """Draws plants.

        Returns:
            Probabilities of all taxa, shape (num_plants, 5337), and the position of each right taxon.
        """
        generator = np.random.default_rng(seed)
        labels_N, rows = generator.choice(NUM_TAXA, num_plants, p=self.share_T), np.arange(num_plants)
        logits_NT = generator.normal(0, 1, (num_plants, NUM_TAXA)).astype(np.float32)
        logits_NT[rows, labels_N] += generator.gamma(3, 1.2, num_plants) + 1.5
        for rival in range(1, _NUM_RIVALS + 1):
            logits_NT[rows, (labels_N + rival) % NUM_TAXA] += 0.8 * generator.gamma(2, 1.2, num_plants)
        logits_NT += np.log(self.share_T)
        logits_NT -= logits_NT.max(axis=1, keepdims=True)
        exponentials_NT = np.exp(logits_NT)
        return exponentials_NT / exponentials_NT.sum(axis=1, keepdims=True), labels_N
