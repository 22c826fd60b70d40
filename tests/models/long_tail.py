"""Generated answers over 5,337 taxa with a long tail, as iNaturalist has one, for measurements of candidate sets."""

import numpy as np

from models.metrics import macro_mean

NUM_TAXA = 5337
_NUM_RIVALS = 7


class LongTail:
    """Plants whose taxa have shares that fall as 1 / rank; each right taxon has seven rivals with raised logits."""

    def __init__(self):
        share_T = 1 / np.arange(1, NUM_TAXA + 1)
        self.share_T = np.random.default_rng(0).permutation(share_T / share_T.sum())

    def draw(self, num_plants, seed):
        """The probabilities of all taxa for some plants, shape (num_plants, 5337), and their right taxa."""
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


def set_figures(conformal, taxa_NT, labels_N, kind, coverage):
    """The share of fresh plants whose set holds the right taxon, the same as the mean over the taxa, the mean size."""
    hits_N, sizes_N = np.empty(len(labels_N), bool), np.empty(len(labels_N), int)
    for row, label in enumerate(labels_N):
        held_T = conformal.p_values(taxa_NT[row : row + 1], kind) > 1 - coverage
        hits_N[row], sizes_N[row] = held_T[label], held_T.sum()
    return float(hits_N.mean()), macro_mean(hits_N, labels_N), float(sizes_N.mean())
