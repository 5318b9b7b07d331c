"""Models from the Hugging Face Hub: every file from one commit, and only files that hold data."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from quire.checkpoint.pooling import MODULES_FILE, files_of_modules
from quire.checkpoint.safetensors_index import INDEX_FILE, SINGLE_FILE, shard_names
from quire.errors import DownloadError, ModelNotFoundError, in_words

SMALL_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)
"""All that is fetched besides config.json, safetensors and how an encoder pools. Code and pickles are never asked for."""

_REPOSITORY = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w][\w./-]*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Repository:
    """`org/name[@revision]`; the revision is a branch, a tag or a commit."""

    id: str
    revision: str

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}"


def parse_repository(reference: str) -> Repository | None:
    """The repository a reference names; None if it does not look like one."""
    match = _REPOSITORY.fullmatch(reference)
    return None if match is None else Repository(match["id"], match["revision"] or "main")


def fetch_repository(repository: Repository, *, with_weights: bool) -> Path:
    """Fetch what is not cached yet (in huggingface-hub's own cache) and return the local directory.

    The revision is resolved to a commit once, with config.json; all else comes from that commit, so a branch that
    moves meanwhile changes nothing. Raises ModelNotFoundError or DownloadError. HF_ENDPOINT chooses the hub.
    """
    config = _fetch(repository, "config.json")
    if config is None:
        raise ModelNotFoundError(f"{repository} on the hub has no config.json; it is not a model quire can read.")
    directory = config.parent
    pinned = Repository(repository.id, directory.name)
    for name in SMALL_FILES:
        _fetch(pinned, name, optional=True)
    modules = _fetch(pinned, MODULES_FILE, optional=True)
    for name in [] if modules is None else files_of_modules(modules):
        _fetch(pinned, name, optional=True)
    if with_weights:
        index = _fetch(pinned, INDEX_FILE, optional=True)
        for name in [SINGLE_FILE] if index is None else shard_names(index):
            if _fetch(pinned, name) is None:
                raise ModelNotFoundError(
                    f"{pinned} on the hub has no {name}; quire reads safetensors only"
                    " (pickled .bin weights can run code): choose a revision or a conversion that has them."
                )
    return directory


def _fetch(repository: Repository, name: str, *, optional: bool = False) -> Path | None:
    """The local path of one file; None if the repository has no such file.

    In offline mode an `optional` one that is not in the cache counts as one that the repository lacks: other programs
    fill the cache too, and leave no word of what there is none of.
    """
    is_commit = re.fullmatch(r"[0-9a-f]{40}", repository.revision) is not None
    try:
        cached = try_to_load_from_cache(repository.id, name, revision=repository.revision) if is_commit else None
        if cached is not None:
            return Path(cached) if isinstance(cached, str) else None
        return Path(
            hf_hub_download(
                repository.id, name, revision=repository.revision, endpoint=os.environ.get("HF_ENDPOINT") or None
            )
        )
    except LocalEntryNotFoundError as error:
        if optional and constants.HF_HUB_OFFLINE:
            return None
        raise DownloadError(
            f"{name} of {repository} is not in the cache and the hub could not be reached; run"
            f" `hf download {repository.id} --revision {repository.revision} --local-dir DIR` where there is a network"
            " and give DIR as the model; HF_HUB_OFFLINE=1 does without files that a model may lack."
        ) from error
    except EntryNotFoundError:
        return None
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{repository.id} is gated: accept its terms on the hub, then log in with `hf auth login`."
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise ModelNotFoundError(
            f"The hub has no model {repository}, or it is private; check the name and revision, or log in with"
            " `hf auth login`."
        ) from error
    except Exception as error:  # huggingface-hub passes on whatever its HTTP library of the day raises
        raise DownloadError(f"Fetching {name} of {repository} failed: {in_words(error)}; run it again.") from error
