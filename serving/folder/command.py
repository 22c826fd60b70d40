"""The flags of `python -m serving.identify_folder`, and what they ask of the bundle."""

import hashlib
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tyro

from models.bundle import BUNDLE_FILE, load_bundle
from models.bundle_record import Precision, read_record
from models.errors import InputError, without_password
from models.program import read_part
from models.ranking import Promises
from models.taxonomy import TaxonNames
from serving.engine.networks import choose_precision
from serving.folder.photographs import is_bucket, printable
from serving.folder.truth import FOLDER_TRUTH
from serving.schemas import ChosenTaxa, Coverage, TopK
from serving.settings import Share, find_bundle
from serving.species import LIST_PREFIX, TaxaSelector, read_taxa_lists


class IdentifyFolder(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies the plants on all photographs of a folder, and writes a table.

    The same command continues an interrupted run, and answers what was added since. Exit codes: 0 complete, 3 complete
    but some photographs failed, 4 too many failed, 75 interrupted, 1 wrong input.
    """

    photographs: Annotated[str, tyro.conf.Positional] = "."
    """Folder of photographs, or the address of a bucket such as s3://garden/2026; the paths of --list start here."""
    out: str
    """Folder for the results, or the address of a bucket."""
    list: Path | None = None
    """CSV file with a column `path`, or a text file with one path per line: identify these instead of all files."""
    bundle: Path | None = None
    """Folder of the bundle; by default the only one in models/releases/."""
    precision: Precision | None = None
    """Precision of the network; by default the fastest one in the bundle for the device."""
    provider: Literal["cpu", "cuda"] = "cpu"
    """Where the network runs."""
    group_by: str | None = None
    """Photographs of one plant, which get one row: folder, column:NAME (of the list) or regex:PATTERN (of the path)."""
    k: TopK = 5
    taxa: ChosenTaxa = ()
    taxa_lists: Path | None = None
    """Folder of the lists that --taxa names: one file NAME.txt per list, one name per line."""
    coverage: Coverage = None
    place: Literal["exif"] | None = None
    """exif: place and day of a photograph count, if the bundle knows places."""
    min_score: Share | None = None
    """Verdicts with a lower score become `uncertain`; without it, the bundle's own thresholds decide alone."""
    max_failure_rate: Share = 1.0
    """The run ends early if more than this share of its rows failed, of at least 100."""
    retry_failed: bool = False
    """Answer again what failed in former runs."""
    part: str | None = None
    """Answer one of n shares only, i/n with i from 0 to n - 1, so that n machines share the work."""
    truth: str | None = None
    """Column of --list with true names or taxon ids, or `folder`, if the names of the folders are the true ones: tells
    how often the answers are right, and writes truth.json."""

    def __post_init__(self) -> None:
        if not self.out:
            raise InputError("--out is empty", limit="a folder or the address of a bucket", remedy="correct --out")
        if self.truth not in (None, FOLDER_TRUTH) and self.list is None:
            raise InputError(
                "--truth needs --list", value=self.truth, limit="a column of the list, or folder", remedy="add --list"
            )
        if self.part is not None and self.retry_failed:
            raise InputError(
                "--part is for one machine of several, but --retry-failed changes the work of all",
                remedy="run the command with --retry-failed once without --part",
            )
        self.share()

    def share(self) -> tuple[int, int]:
        """Returns i and n of --part."""
        return read_part(self.part or "0/1")

    def with_absolute_paths(self) -> "IdentifyFolder":
        """Returns the command as it is understood in every folder, with one form for the root of the photographs."""
        # Links stay, because they may lead elsewhere on another machine.
        folder = os.path.abspath(self.photographs)  # noqa: PTH100
        return msgspec.structs.replace(
            self,
            photographs=self.photographs if is_bucket(self.photographs) else folder,
            bundle=self.bundle and self.bundle.absolute(),
            taxa_lists=self.taxa_lists and self.taxa_lists.absolute(),
        )

    def answer_options(self) -> dict[str, Any]:
        """Returns the options that change rows, with what they stand for on this machine; compared when a run goes on.

        Raises:
            InputError: The bundle or the lists of taxa cannot be read.
        """
        record, _ = read_record(find_bundle(self.bundle) / BUNDLE_FILE)
        lists = read_taxa_lists(self.taxa_lists)
        chosen = {value.removeprefix(LIST_PREFIX) for value in self.taxa if value.startswith(LIST_PREFIX)}
        contents = {name: msgspec.json.encode(sorted(set(lists[name]))) for name in sorted(chosen & lists.keys())}
        return {
            "photographs": without_password(printable(self.photographs)),
            "precision": choose_precision(record, self.precision, self.provider),
            "k": self.k,
            "coverage": self.coverage,
            "min_score": self.min_score,
            "place": self.place,
            "group_by": self.group_by and printable(self.group_by),
            "taxa": [printable(name) for name in self.taxa],
            "taxa_lists": {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        }

    def proves_names(self) -> bool:
        """Returns whether calibration plants prove anything about the names that the bundle gives."""
        record, _ = read_record(find_bundle(self.bundle) / BUNDLE_FILE)
        return record.networks[choose_precision(record, self.precision, self.provider)].promises != Promises()

    def require_answerable(self) -> None:
        """Checks that the bundle can answer what is asked.

        Raises:
            InputError: It is damaged, has no network of this precision, or knows none of the taxa.
        """
        bundle = load_bundle(find_bundle(self.bundle))
        bundle.network(choose_precision(bundle.record, self.precision, self.provider))
        TaxaSelector(TaxonNames(bundle.taxonomy), read_taxa_lists(self.taxa_lists)).select(self.taxa)
