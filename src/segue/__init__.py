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

from segue import errors, optim, quant, stores
from segue._capture.base import base_identity
from segue._capture.component import Component
from segue._capture.data.position import DataPosition
from segue._capture.rng import RngStreams
from segue._capture.sampler.exact_sampler import ExactSampler
from segue._capture.sampler.seeded_samples import SeededSamples
from segue._capture.sampler.seeds import per_sample_seed
from segue._capture.state_of import StateOf
from segue._record.base import BaseIdentity
from segue._record.diff import Difference, RecordDiff
from segue._record.entries import GradientEntry
from segue._record.gradients import GradientsRecord
from segue._record.rank_local import RankLocal
from segue._record.window import WindowRecord
from segue._session.accumulators import GradientAccumulator, WeightedAccumulator
from segue._session.archive import diff, from_bytes, load, save, to_bytes, verify
from segue._session.callers_restore import RestoredTraining
from segue._session.checkpointer import Checkpointer
from segue._session.fork import ForkedRun, fork
from segue._session.gradients import capture_gradients, restore_gradients
from segue._session.model_state import FullModel, TrainableOnly
from segue._session.modules import capture_module, restore_module
from segue._session.optimizers import capture_optimizer, restore_optimizer
from segue._session.record import TrainingRecord
from segue._session.training import Training
from segue._session.writer import PendingSave
from segue._store.reader import CheckpointInfo
from segue._window.loss import SummedLoss

__version__ = "0.1.0.dev0"

__all__ = [
    "BaseIdentity",
    "CheckpointInfo",
    "Checkpointer",
    "Component",
    "DataPosition",
    "Difference",
    "ExactSampler",
    "ForkedRun",
    "FullModel",
    "GradientAccumulator",
    "GradientEntry",
    "GradientsRecord",
    "PendingSave",
    "RankLocal",
    "RecordDiff",
    "RestoredTraining",
    "RngStreams",
    "SeededSamples",
    "StateOf",
    "SummedLoss",
    "TrainableOnly",
    "Training",
    "TrainingRecord",
    "WeightedAccumulator",
    "WindowRecord",
    "base_identity",
    "capture_gradients",
    "capture_module",
    "capture_optimizer",
    "diff",
    "errors",
    "fork",
    "from_bytes",
    "load",
    "optim",
    "per_sample_seed",
    "quant",
    "restore_gradients",
    "restore_module",
    "restore_optimizer",
    "save",
    "stores",
    "to_bytes",
    "verify",
]
