"""How far answers can be believed, as Markdown tables."""

from models.metrics import Share
from models.ranking import Promise, Promises, Rank
from training.bundling.served import ServedAnswers
from training.evaluation.split_metrics import SplitMetrics
from training.insight.studies.report import table


def answer_tables(metrics: SplitMetrics, served: ServedAnswers, promises: Promises) -> str:
    """Returns one table of accuracy, verdicts and rejection, and one of candidate sets."""
    rows = [
        ("top-1", percent(metrics.top1_taxon)),
        ("calibration error (ECE, 15 bins)", f"{metrics.ece.value:.4f}"),
        *(
            (f"right names of rank {rank}", f"{percent(names.right)}; promised: {_promise(promises, rank)}")
            for rank, names in served.verdicts.by_rank.items()
            if names.right
        ),
        *((f"top-1 of {each.num_pictures} pictures", percent(each.top1)) for each in served.several_pictures),
    ]
    for name, strangers in (("other things", served.things), ("unknown plants", served.unknown)):
        if strangers:
            rows.append((f"{name}: AUROC of the {strangers.score}", f"{strangers.auroc:.3f}"))
            rows.append((f"{name} accepted where 95 % of known plants are", percent(strangers.fpr95)))
            rows.append((f"{name} named at any rank", percent(strangers.named)))
            rows.append((f"{name} named a species", percent(strangers.named_species)))
    sets = [
        (
            each.kind,
            f"{each.coverage:.2f}",
            percent(each.covered),
            f"{each.macro_covered:.3f}",
            f"{each.mean_size:.2f}",
        )
        for each in served.candidates
    ]
    columns = ("candidate sets", "asked", "plants covered", "mean of the taxa", "mean size")
    return f"{table(('figure', 'measured'), rows)}\n\n{table(columns, sets)}"


def percent(measured: Share) -> str:
    """Returns a share with its number: "61.2 % of 25,200"."""
    return f"{measured.value:.1%} of {measured.num_pictures:,}".replace("%", " %")


def _promise(promises: Promises, rank: Rank) -> str:
    promise: Promise | None = getattr(promises, rank)
    if promise is None:
        return "nothing"
    return f"at least {1 - promise.max_risk:.0%} with {promise.confidence:.0%} confidence".replace("%", " %")
