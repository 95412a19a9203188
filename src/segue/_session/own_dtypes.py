"""Parts of a record that was stored in another precision, in their own dtypes again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from segue._record.composite import ConvertedTensor
from segue._record.conversion import refuse_inexact
from segue._record.converted_bytes import Workspace
from segue.errors import LossyRecord


def in_own_dtypes(tensors: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return trees in which every tensor is in its own dtype; what was converted is converted back as it is read.

    Args:
        tensors: Trees by name.
        where: What they are, for messages.

    Raises:
        LossyRecord: If a tensor lost something.
        InvalidRecord: If one that is said to come back exactly doesn't.
        StoreError: If stored bytes do not match their checksums.
    """
    workspace = Workspace()
    return {name: _restored(tree, f"{where} {name}", workspace) for name, tree in tensors.items()}


def _restored(tree: Any, where: str, workspace: Workspace) -> Any:
    if isinstance(tree, ConvertedTensor):
        if not tree.exact:
            raise LossyRecord(
                "it was stored in a precision that lost bits of it", code="record.lossy", where=where,
                expected=tree.dtype, found=tree.stored.dtype,
                hint="go on from a record that was stored as it was (`native`)",
            )  # fmt: skip
        refuse_inexact(tree, where, workspace)
        return tree.restored(workspace)
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, _restored(item, f"{where} {key}", workspace)) for key, item in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(_restored(item, where, workspace) for item in tree)
    return tree
