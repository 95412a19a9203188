"""segue: exact training continuation for PyTorch.

A run that is killed, preempted, or moved goes on as if nothing had happened: the same bits, or a precise refusal.

```
   cli      demo      testing      bench                           edges: may use everything below
                         _session                                joins the parts; policy
          _window        _capture        _store                  pending sums | live <-> record | record <-> bytes
                         _record                                 values: immutable, comparable, device-free
                          errors
```

Start with `Training` and `Checkpointer`.
"""

from segue import errors, optim, quant
from segue._capture.component import Component
from segue._capture.rng import RngStreams
from segue._record.diff import Difference, RecordDiff
from segue._record.entries import GradientEntry
from segue._record.gradients import GradientsRecord
from segue._record.training import TrainingRecord
from segue._record.window import WindowRecord
from segue._session.accumulators import GradientAccumulator, WeightedAccumulator
from segue._session.archive import diff, load, save, verify
from segue._session.checkpointer import Checkpointer
from segue._session.gradients import capture_gradients, restore_gradients
from segue._session.training import FullModel, Training
from segue._session.writer import PendingSave
from segue._store.reader import CheckpointInfo
from segue._window.loss import SummedLoss

__version__ = "0.1.0.dev0"

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "Component",
    "Difference",
    "FullModel",
    "GradientAccumulator",
    "GradientEntry",
    "GradientsRecord",
    "PendingSave",
    "RecordDiff",
    "RngStreams",
    "SummedLoss",
    "Training",
    "TrainingRecord",
    "WeightedAccumulator",
    "WindowRecord",
    "capture_gradients",
    "diff",
    "errors",
    "load",
    "optim",
    "quant",
    "restore_gradients",
    "save",
    "verify",
]
