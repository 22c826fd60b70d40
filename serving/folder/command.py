"""The flags of `python -m serving.identify_folder`."""

import os
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
import tyro

from models.bundle_record import Precision
from models.calibration import CoverageKind
from models.errors import InputError
from serving.folder.bucket import is_bucket
from serving.folder.photographs import printable
from serving.folder.sorting import SortRank
from serving.folder.truth import FOLDER_TRUTH
from serving.schemas import MAX_COVERAGE, MAX_K, MIN_COVERAGE
from serving.settings import Bytes, Count, Share


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
    recursive: bool = True
    """Whether folders in the folder are searched too."""
    bundle: Path | None = None
    """Folder of the bundle; by default the only one in models/releases/."""
    precision: Precision | None = None
    """Precision of the network; by default the fastest one in the bundle for the device."""
    provider: Literal["cpu", "cuda"] = "cpu"
    """Where the network runs."""
    group_by: str | None = None
    """Photographs of one plant, which get one row: folder, column:NAME (of the list) or regex:PATTERN (of the path)."""
    k: Annotated[int, msgspec.Meta(ge=1, le=MAX_K)] = 5
    """Number of likely taxa per row, at most 50."""
    taxa: tuple[str, ...] = ()
    """Names of the genera, families or species that can be the answer, or list:NAME."""
    taxa_lists: Path | None = None
    """Folder of the lists that --taxa names: one file NAME.txt per list, one name per line."""
    coverage: Annotated[float, msgspec.Meta(ge=MIN_COVERAGE, le=MAX_COVERAGE)] | None = None
    """Adds the column `candidates`: the taxa among which the right one is so often, such as 0.9."""
    coverage_kind: CoverageKind = "marginal"
    """Whether --coverage holds for the mean plant (marginal) or for the mean taxon (macro)."""
    min_score: Share | None = None
    """Verdicts with a lower score become `uncertain`; without it, the bundle's own thresholds decide alone."""
    max_failure_rate: Share = 1.0
    """The run ends early if more than this share of its rows failed, of at least 100."""
    retry_failed: bool = False
    """Answer again what failed in former runs."""
    restart: bool = False
    """Remove the results of former runs first."""
    by_hash: bool = False
    """Notice changed photographs by the hash of their bytes in place of their size and time; reads all of them."""
    part_rows: Count = 1000
    """Rows per part; a run that is killed loses the part in progress."""
    plan_only: bool = False
    """List the photographs and cut the parts, but answer none: machines with --part then do not list them again."""
    part: str | None = None
    """Answer every n-th part only, i/n with i from 0 to n - 1, so that n machines share the work."""
    ray: str | None = None
    """Share the parts among the machines of a Ray cluster: auto (the one that this machine is in) or its address."""
    truth: str | None = None
    """Column of --list with true names or taxon ids, or `folder`, if the names of the folders are the true ones: writes
    how often the answers are right, in truth.json and truth.html."""
    html: bool = False
    """Write results.html too: a contact sheet of the photographs with their answers, the least certain first."""
    copy_to: Path | None = None
    """Copy the photographs into this folder, into one folder for each name."""
    by: SortRank | None = None
    """Whose names the folders of --copy-to have; by default those of the species."""
    links: bool = False
    """Make links in the folder of --copy-to in place of copies."""
    devices: Count | Literal["all"] = 1
    """GPUs that share the parts, a process each; on a CPU, processes that share the cores."""
    num_runs: Count | None = None
    """Network runs at the same time; by default one per core, or two batches on a GPU."""
    max_picture_bytes: Bytes = 100_000_000
    """Largest photograph, bytes."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            try:
                msgspec.convert(getattr(self, name), kind)  # neither tyro nor a Struct checks the ranges
            except msgspec.ValidationError as error:
                raise InputError(
                    f"--{name.replace('_', '-')} is out of range",
                    value=getattr(self, name),
                    limit=str(error).removeprefix("Expected ").replace("`", ""),
                    remedy="choose a number in this range",
                ) from error
        if self.truth not in (None, FOLDER_TRUTH) and self.list is None:
            raise InputError(
                "--truth needs --list", value=self.truth, limit="a column of the list, or folder", remedy="add --list"
            )
        if self.part is not None and (self.restart or self.retry_failed):
            raise InputError(
                "--part is for one machine of several, but --restart and --retry-failed change the work of all",
                remedy="give these flags with --plan-only first, and then --part to each machine",
            )
        if self.copy_to is None and (self.links or self.by is not None):
            raise InputError("--links and --by need --copy-to", remedy="add --copy-to, or leave them out")
        if self.links and is_bucket(self.photographs):
            raise InputError(
                "--links needs photographs in a folder of this machine",
                value=self.photographs,
                remedy="leave --links out to make copies",
            )
        self.share()

    def share(self) -> tuple[int, int]:
        """Returns i and n of --part.

        Raises:
            InputError: It has another form.
        """
        index, _, count = (self.part or "0/1").partition("/")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return int(index), int(count)
        raise InputError("--part is not understood", value=self.part, limit="i/n with i < n", remedy="correct --part")

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
        """Returns the options that change rows, as they are compared when a run is continued."""
        names = ("precision", "k", "coverage", "coverage_kind", "min_score")
        return {name: getattr(self, name) for name in names} | {
            "photographs": printable(self.photographs),
            "group_by": self.group_by and printable(self.group_by),
            "taxa": [printable(name) for name in self.taxa],
        }
