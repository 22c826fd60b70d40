"""What a command asks of its bundle: compared when a run is continued, and checked before one starts."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from models.bundle import BUNDLE_FILE, load_bundle
from models.bundle_record import BundleRecord, Precision, read_record
from models.taxonomy import TaxonNames
from serving.folder.command import IdentifyFolder
from serving.scheduling.networks import choose_precision
from serving.settings import Settings, find_bundle
from serving.species import LIST_PREFIX, TaxaSelector, read_taxa_lists


def options_of(command: IdentifyFolder) -> Mapping[str, Any]:
    """Returns the options that change answers, with what they stand for on this machine.

    Raises:
        InputError: The bundle or the lists of taxa cannot be read.
    """
    record, _ = read_record(find_bundle(Settings(bundle=command.bundle)) / BUNDLE_FILE)
    return command.answer_options() | {"precision": _precision(command, record), "taxa_lists": _hashes(command)}


def require_question(command: IdentifyFolder) -> None:
    """Checks that the bundle can answer what is asked.

    Raises:
        InputError: It is damaged, has no network of this precision, or knows none of the taxa.
    """
    bundle = load_bundle(find_bundle(Settings(bundle=command.bundle)))
    bundle.network(_precision(command, bundle.record))
    TaxaSelector(TaxonNames(bundle.taxonomy), read_taxa_lists(command.taxa_lists)).select(command.taxa)


def _precision(command: IdentifyFolder, record: BundleRecord) -> Precision:
    return choose_precision(record, command.precision, command.provider)


def _hashes(command: IdentifyFolder) -> Mapping[str, str]:
    """Returns a hash of the names in each list that can be the answer."""
    lists = read_taxa_lists(command.taxa_lists)
    chosen = sorted({value.removeprefix(LIST_PREFIX) for value in command.taxa if value.startswith(LIST_PREFIX)})
    encoded = {name: msgspec.json.encode(sorted(set(lists[name]))) for name in chosen if name in lists}
    return {name: hashlib.sha256(content).hexdigest() for name, content in encoded.items()}
