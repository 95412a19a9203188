"""Lookup tables in an optimizer's state: stored with each parameter, and one tensor again in the live optimizer.

The optimizer only reads them, so nothing but memory depends on which of them are one tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from segue._capture.attributes import own_tables, table_slots
from segue._capture.staging import capture_tensor
from segue._capture.targets import empty_like, fill_writes
from segue._capture.writes import Write
from segue._record.tensors import CapturedTensor, same_bits


class LookupTables:
    """The tables of one optimizer while its restore is planned.

    Args:
        optimizer: Its own tables are used where they have the recorded bits; they are never written.
        writes: Where the writes of new ones are planned.
    """

    def __init__(self, optimizer: Optimizer, writes: list[Write]) -> None:
        self._slots = table_slots(optimizer)
        self._known = [(table, capture_tensor(table, "table")) for table in own_tables(optimizer)]
        self._writes = writes

    def holds(self, slot: str, value: Any) -> bool:
        """Tell whether a recorded slot is a lookup table."""
        return slot in self._slots and isinstance(value, CapturedTensor)

    def planned(self, captured: CapturedTensor, where: str) -> torch.Tensor:
        """Return the live table of these bits on this device, planning a new one where there is none."""
        for table, known in self._known:
            if known.device == captured.device and same_bits(known, captured):
                return table
        table = empty_like(captured, captured.device)
        self._writes.extend(fill_writes(where, table, captured))
        self._known.append((table, captured))
        return table
