"""Copies that are made after the call, and the proof that nothing was torn.

Wish: training goes on at once, and what comes out is the training as it was at the call, or an error.

Whether a tensor was written in the meantime, its version counter tells, but not all (torch 2.13):

- In-place operations move it, also under `no_grad`, in inference mode, through views and `detach()`: `add_`,
  `copy_`, `set_`, `_foreach_*`, `nn.init`, `load_state_dict`, and every optimizer of torch with `foreach` or without.
- Fused steps (SGD, Adam, AdamW, Adagrad, on the CPU too) move it for nothing but their counter. `.data`, NumPy and
  the storage's own methods don't either.
- It moves when an operation has *ended*: while a large `add_` runs, a second thread sees new values and the old
  version. So no thread can tell by itself that a copy is whole. The last look, `seal`, is for the thread that trains,
  which is in no operation then.
- `parameter.data = other` moves nothing, and writes nothing: the memory that is copied stays as it was. The same holds
  for an entry of `optimizer.state` that is replaced.

So only what nothing but an optimizer's `step` should write is deferred, since `step` can be made to wait (`gate`):
trainable parameters of torch optimizers, and state. All other is copied at once. For the writes that no counter shows, a sample of
each deferred tensor is taken at the call and compared with the copy: it notices those that go over a whole tensor, such
as `parameter.data.clamp_()`, and not one of a few elements.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

import torch
from torch.optim import Optimizer

from segue._capture.sampling import positions, sample
from segue._capture.subclass import PLAIN_CLASSES
from segue._capture.transfer import Transfer, begin_transfer, can_transfer
from segue._record.tensors import MemoryBytes
from segue.errors import CaptureError, ConcurrentMutation

DEFERRED_FROM_BYTES: Final = 1 << 20
"""Smaller tensors are copied at once: that costs less than to keep watch over them."""

_SAMPLED_ELEMENTS = 256
_HINT = "call `result()` first, or change it in `step` of a registered optimizer, which waits; `capture` copies at once"


def deferrable(optimizers: Iterable[Optimizer]) -> list[torch.Tensor]:
    """Return the large tensors that only a `step` which waits should write: parameters, and state beside them."""
    gated = [optimizer for optimizer in optimizers if is_gated(optimizer)]
    # Frozen ones in a group are written elsewhere, if at all, and often by `.data`: momentum teachers in a forward.
    members = [p for optimizer in gated for group in optimizer.param_groups for p in group["params"]]
    owned = [parameter for parameter in members if parameter.requires_grad]
    slots = [value for optimizer in gated for own in optimizer.state.values() for value in _values(own)]
    return [tensor for tensor in (*owned, *slots) if isinstance(tensor, torch.Tensor) and _is_fit(tensor)]


def is_gated(optimizer: Optimizer) -> bool:
    """Tell whether this optimizer's `step` runs its step hooks, as that of a class of torch's kind does."""
    own = vars(optimizer).get("step")  # a scheduler's wrapper calls on; another function may write by itself
    return getattr(type(optimizer).step, "hooked", False) and (
        own is None or hasattr(own, "_wrapped_by_lr_sched")
    )


def _values(slots: object) -> Iterable[object]:
    return slots.values() if isinstance(slots, Mapping) else ()


def _is_fit(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has a version, is copied as it lies, and shares its memory with no other."""
    return (
        type(tensor) in PLAIN_CLASSES
        and tensor.layout is torch.strided
        and can_transfer(tensor)
        and tensor.nbytes >= DEFERRED_FROM_BYTES
        and tensor.untyped_storage().nbytes() == tensor.nbytes
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_inference())
    )


@dataclass(frozen=True)
class _Copy:
    where: str
    source: torch.Tensor
    """Over the memory of the moment, with the live tensor's version counter."""
    version: int
    sample: torch.Tensor
    transfer: Transfer

    def mutation(self) -> ConcurrentMutation | None:
        """Return the error if the source has been written since, as far as its counter tells."""
        if self.source._version == self.version:
            return None
        return _mutation(self.where, f"version {self.version}", f"version {self.source._version}")

    def hidden_mutation(self) -> ConcurrentMutation | None:
        """Return the error if the finished copy doesn't have the sample's bits."""
        copied = self.transfer.data.view(self.sample.dtype)
        if torch.equal(copied[positions(copied.numel(), _SAMPLED_ELEMENTS)], self.sample.cpu()):
            return None
        return _mutation(
            self.where, "the bits it had at the call", "others, by a write that no version shows"
        )


def _mutation(where: str, expected: str, found: str) -> ConcurrentMutation:
    return ConcurrentMutation(
        "a tensor changed before its copy was complete",
        where=where,
        expected=expected,
        found=found,
        hint=_HINT,
    )


def _in_a_thread(work: Callable[[], None]) -> None:
    # Not a daemon: at exit the interpreter waits for it, and no copy outlives what it is made into.
    threading.Thread(target=work, name="segue-capture", daemon=False).start()


class DeferredCopies:
    """The copies of one capture that are made after the call.

    `take` is for the call, `start` for its end. Then a thread copies, and `seal` decides.

    Args:
        tensors: What may be deferred.
        begin: Begins to copy a tensor.
    """

    def __init__(
        self, tensors: Iterable[torch.Tensor], begin: Callable[[torch.Tensor], Transfer] = begin_transfer
    ) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}
        self._begin = begin
        self._copies: list[_Copy] = []
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._is_sealed = False
        self._error: BaseException | None = None
        self._pid = os.getpid()

    def __len__(self) -> int:
        return len(self._copies)

    def take(self, tensor: torch.Tensor, where: str) -> MemoryBytes | None:
        """Promise the bytes of a tensor: what is returned has them once this is sealed. `None`: copy it at once."""
        if id(tensor) not in self._tensors:
            return None
        source, version = tensor.detach(), tensor._version
        taken = sample(source, _SAMPLED_ELEMENTS)
        copy = _Copy(where, source, version, taken, self._begin(source))
        self._copies.append(copy)
        return MemoryBytes(copy.transfer.data)

    def start(
        self,
        then: Callable[[BaseException | None], None],
        in_background: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        """Copy in a thread, and call `then` in it, with what went wrong or `None`."""
        self._tensors.clear()
        try:
            in_background(lambda: self._run(then))
        except RuntimeError:  # no more threads; or the interpreter is on its way out
            self._run(then)

    def _run(self, then: Callable[[BaseException | None], None]) -> None:
        try:
            for copy in self._copies:
                copy.transfer.finish()
            for copy in self._copies:
                error = copy.mutation() or copy.hidden_mutation()
                if error is not None:
                    raise error
        except BaseException as error:
            self._error = error
        finally:
            self._finished.set()
        then(self._error)

    def abandon(self) -> None:
        """Make no copies, since their capture has failed."""
        self._copies.clear()
        self._finished.set()

    @property
    def is_orphaned(self) -> bool:
        """Whether this is the child of a fork, where no thread goes on with the copies."""
        return os.getpid() != self._pid and not self._finished.is_set()

    def settle(self) -> None:
        """Wait for the copies and decide about them, without raising what is wrong with them."""
        with contextlib.suppress(CaptureError):
            self.seal()

    def seal(self) -> None:
        """Wait for the copies, and decide, once, whether they are whole: what is written from now on is no concern.

        Exact where the thread that trains calls it. Where another does, an operation that is under way in that very
        moment has not moved the counter yet.

        Raises:
            ConcurrentMutation: If a tensor was written before.
            CaptureError: In the child of a fork that happened before the copies were complete.
        """
        if self.is_orphaned:
            raise CaptureError(
                "the process was forked while it copied", code="capture.forked", where="capture_async",
                hint="call `result()` before you fork",
            )  # fmt: skip
        self._finished.wait()
        with self._lock:
            if not self._is_sealed:
                found = (copy.mutation() for copy in self._copies)
                self._error = self._error or next((error for error in found if error is not None), None)
                self._is_sealed = True
                self._copies.clear()
        if isinstance(self._error, CaptureError):
            raise self._error


_current: ContextVar[DeferredCopies | None] = ContextVar("segue_deferred_copies", default=None)


@contextlib.contextmanager
def deferring(copies: DeferredCopies | None) -> Iterator[None]:
    """Let captures in this block take their large copies from here; with `None`, make all of them at once."""
    before = _current.set(copies)
    try:
        yield
    finally:
        _current.reset(before)


def deferred_bytes(tensor: torch.Tensor, where: str) -> MemoryBytes | None:
    """Return the promised bytes of a tensor whose copy may be deferred, `None` if it is to be made now."""
    copies = _current.get()
    return None if copies is None else copies.take(tensor, where)
