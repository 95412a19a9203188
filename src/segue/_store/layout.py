"""Names of files and folders: the only names that are ever written, trusted or removed."""

from __future__ import annotations

import re

RUN_FILE = "run.json"
MODEL_FILE = "model.safetensors"
TRAINING_FILE = "training.safetensors"
STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
COMMIT_FILE = "commit"
TENSOR_FILES = (MODEL_FILE, TRAINING_FILE)
DATA_FILES = (*TENSOR_FILES, STATE_FILE)
FILE_SUFFIX = ".segue"
"""What a path ends in that means one file and not a folder."""
CHECKPOINT_FILES = (*DATA_FILES, MANIFEST_FILE, COMMIT_FILE)

MAX_SEQ = 10**18 - 1

_CHECKPOINT = re.compile(r"ckpt-([0-9]{9}|[1-9][0-9]{9,17})")
_LITTER = re.compile(r"\.(?:tmp|trash)-[a-z0-9.]{1,120}")
# A client of a network filesystem keeps a file that was removed while open under such a name. Nobody reads it.
_SILLY_RENAME = re.compile(r"\.nfs[0-9a-f]+")
_ATTEMPT = re.compile(r"[a-z0-9]{1,32}")


def checkpoint_name(seq: int) -> str:
    """Name the folder of a checkpoint."""
    return f"ckpt-{seq:09d}"


def checkpoint_seq(name: str) -> int | None:
    """Return the number in a checkpoint's folder name, or `None` for any other name: inverse of `checkpoint_name`."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else None


def temporary_name(seq: int, attempt: str) -> str:
    """Name the folder of an attempt in progress; the attempt is unguessable, so a zombie meets only its own."""
    return f".tmp-{seq:09d}.{attempt}"


def temporary_run_name(attempt: str) -> str:
    """Name `run.json` while it is being written."""
    return f".tmp-run.{attempt}"


def trash_name(seq: int, attempt: str) -> str:
    """Name the folder of a checkpoint that is being removed."""
    return f".trash-{seq:09d}.{attempt}"


def temporary_file_name(name: str, attempt: str) -> str:
    """Name a single file while it is being written, beside its place."""
    return f".{name}.tmp-{attempt}"


def is_temporary_file(temporary: str, name: str) -> bool:
    """Tell whether a name is one that `temporary_file_name` makes for this file."""
    prefix = temporary_file_name(name, "")
    return temporary.startswith(prefix) and is_attempt(temporary[len(prefix) :])


def lock_name(name: str) -> str:
    """Name the folder beside a single file that its writer holds locked."""
    return f".{name}.lock"


def is_litter(name: str) -> bool:
    """Tell whether a name is one of our temporary or trash names, which the holder of the lock may remove."""
    return _LITTER.fullmatch(name) is not None


def is_ignored(name: str) -> bool:
    """Tell whether a name inside a checkpoint belongs to the filesystem itself."""
    return _SILLY_RENAME.fullmatch(name) is not None


def is_attempt(attempt: str) -> bool:
    """Tell whether a string can be an attempt or run id."""
    return _ATTEMPT.fullmatch(attempt) is not None
