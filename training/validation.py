"""How right the network is on the validation split, judged as it would be served, by all ranks together."""

import msgspec
import torch
from torch.nn.functional import cross_entropy

from training.data import input_spec, judged_loader
from training.distributed import Ranks
from training.engine import Engine
from training.manifest import Manifest
from training.metrics import Share, share, top_k_hits
from training.predict import torch_runner


class Validation(msgspec.Struct, frozen=True):
    """What a validation found."""

    top1: Share
    top5: Share
    loss: float
    """Mean cross entropy, nats."""


def validate(engine: Engine, manifest: Manifest, ranks: Ranks) -> Validation:
    """Judges the weights that would be exported, by outputs or by taxa as the recipe learns them."""
    rows = manifest.rows_of("validation")[ranks.rank :: ranks.num_ranks]
    loader = judged_loader(manifest, rows, input_spec(engine.recipe), engine.recipe.data)
    run = torch_runner(engine.judged_network, engine.device, engine.amp_dtype)
    hits1 = hits5 = loss = 0.0
    for pixels, labels in loader:
        logits = torch.from_numpy(run(pixels)).to(engine.device)
        scores, right = (part.cpu() for part in engine.loss.judged(logits, labels.to(engine.device)))
        hits1 += float(top_k_hits(scores.numpy(), right.numpy(), 1).sum())
        hits5 += float(top_k_hits(scores.numpy(), right.numpy(), 5).sum())
        loss += float(cross_entropy(scores, right, reduction="sum"))
    total, hits1, hits5, loss = ranks.sum([len(rows), hits1, hits5, loss])
    return Validation(share(round(hits1), round(total)), share(round(hits5), round(total)), loss / total)
