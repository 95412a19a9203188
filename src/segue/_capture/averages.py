"""Averaged weights that stand in the model, as during an evaluation: a capture would take them for the trained ones.

Wish: a checkpoint that is written inside of `with ema.average_parameters():` is refused, and no other is.

Why the obvious way fails. That the model equals its average says nothing: so it is at the beginning, after the first
update of an `AveragedModel`, in the warm-up of most others, for a target network that was just copied, and for the best
weights that were just kept. In all of these the average was written, and the model wasn't. So that is what is looked for: who
was written last. Each optimizer's `step` leaves a sample of one parameter. If that has other bits at a capture, although
nothing but steps has ever written to it, and every trainable parameter is, bit for bit, a tensor of one component or of the
caller's state, then that was put there. A component that has exchanged its memory with the model's is told by the
addresses, an `AveragedModel` that has exchanged values by the sample, and some libraries say themselves that they keep the
trained weights aside.

What it still loses. Objects that are not registered; an exchange of values with another object than an `AveragedModel`; a
program that writes to its parameters between steps (clipping, projections), and one that has taken fewer than two; models
that no torch optimizer steps. The other way round, weights that are put into a model to go on from them look like an average
until the next step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from segue._capture.naming import NamedTensor
from segue._capture.staging import is_plain, type_name
from segue.errors import NotAtBoundary

_SAMPLE = 64
Candidates = Callable[[], Iterator[torch.Tensor]]
"""Returns the tensors of one object."""


@dataclass
class _Sample:
    """What a step has left of one parameter."""

    parameter: torch.Tensor
    address: int
    bits: torch.Tensor
    steps: int = 1
    is_written: bool = False
    """Whether anything but a step has written to it."""
    is_written_there: torch.Tensor | None = None
    """The same, on a device that nobody should wait for."""

    @property
    def tells(self) -> bool:
        if self.is_written_there is not None and bool(self.is_written_there):
            self.is_written = True
        return self.steps > 1 and not self.is_written

    def has_moved(self) -> bool:
        return not torch.equal(self.bits, sampled(self.parameter))

    def look(self) -> None:
        """Note whether it was written to since its last step."""
        if self.parameter.device.type == "cpu":
            self.is_written = self.is_written or self.has_moved()
            return
        differs = (self.bits != sampled(self.parameter)).any()
        known = self.is_written_there
        self.is_written_there = differs if known is None else known | differs


def sampled(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a few of a dense tensor's elements, from all over it."""
    count = min(_SAMPLE, tensor.numel())
    flat = tensor.detach().as_strided((count,), (tensor.numel() // count,), tensor.storage_offset())
    return flat.clone().view(torch.uint8)


def _can_be_sampled(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.numel() > 1 and _is_dense(tensor) and not tensor.is_inference()


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


class AveragesWatch:
    """Watches whether a model is as its optimizers have left it.

    Args:
        optimizers: Torch optimizers; each gets a hook before and after its step.
        parameters: The model's trainable parameters.
        components: Tensors of the components that are modules.
    """

    def __init__(
        self,
        optimizers: Iterable[Optimizer],
        parameters: Iterable[torch.Tensor],
        components: Iterable[torch.Tensor],
    ) -> None:
        self._trained = {id(parameter) for parameter in parameters}
        self._samples: dict[int, _Sample] = {}
        self._addresses: dict[int, int] = {}
        self._note(parameters, components)
        this = weakref.ref(self)
        for optimizer in optimizers:
            before = optimizer.register_step_pre_hook(_hook(this, AveragesWatch._before))
            after = optimizer.register_step_post_hook(_hook(this, AveragesWatch._after))
            weakref.finalize(self, before.remove).atexit = False
            weakref.finalize(self, after.remove).atexit = False

    def forget(self, parameters: Iterable[torch.Tensor], components: Iterable[torch.Tensor]) -> None:
        """Begin anew, as after a restore."""
        self._samples.clear()
        self._trained = {id(parameter) for parameter in parameters}
        self._note(parameters, components)

    def _note(self, *tensors: Iterable[torch.Tensor]) -> None:
        self._addresses = {
            id(tensor): tensor.data_ptr()
            for group in tensors
            for tensor in group
            if is_plain(tensor) and tensor.numel()
        }

    def _before(self, optimizer: Optimizer) -> None:
        sample = self._samples.get(id(optimizer))
        if sample is None or sample.is_written:
            return
        if sample.parameter.data_ptr() != sample.address:
            self._addresses.clear()  # memory that was exchanged for good tells nothing any more
            sample.is_written = True
        else:
            sample.look()

    def _after(self, optimizer: Optimizer) -> None:
        sample = self._samples.get(id(optimizer))
        if sample is None:
            parameter = self._choose(optimizer)
            if parameter is not None:
                self._samples[id(optimizer)] = _Sample(parameter, parameter.data_ptr(), sampled(parameter))
        elif not sample.is_written and _can_be_sampled(sample.parameter):
            sample.bits, sample.address = sampled(sample.parameter), sample.parameter.data_ptr()
            sample.steps += 1

    def _choose(self, optimizer: Optimizer) -> torch.Tensor | None:
        """Return the largest parameter that gets a gradient, among the first of each group."""
        found = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"][:8]
            if id(parameter) in self._trained and parameter.grad is not None and _can_be_sampled(parameter)
        ]
        return max(found, key=torch.Tensor.numel, default=None)

    def _moved(self) -> list[_Sample]:
        return [
            sample
            for sample in self._samples.values()
            if sample.tells and _can_be_sampled(sample.parameter) and sample.has_moved()
        ]

    def refuse_swapped(
        self,
        parameters: Mapping[str, torch.Tensor],
        components: Mapping[str, Any],
        tensors: Mapping[str, list[NamedTensor]],
        saved: Mapping[str, Candidates],
    ) -> None:
        """Raise if averaged weights stand in the model.

        Args:
            parameters: The model's trainable parameters by name.
            components: The registered objects by scope.
            tensors: Of those that are modules, their tensors.
            saved: The tensors that other objects, and the caller's state, keep; looked at only if needed.

        Raises:
            NotAtBoundary: If they do.
        """
        for scope, value in components.items():
            _refuse_told(value, scope)
        self._refuse_exchanged_memory(parameters, tensors)
        moved = self._moved()
        if not moved or not parameters:
            return
        for scope, value in components.items():
            if isinstance(value, AveragedModel) and int(value.n_averaged) > 1:
                self._refuse_exchanged_values(moved, tensors.get(scope, []), scope, value)
        for scope, items in tensors.items():
            own = [
                item.tensor for item in items if item.tensor is not None and not self._is_shared(item.tensor)
            ]
            if _holds_all(parameters, own):
                raise _swapped(scope, components[scope], "the model's weights are those of this component")
        for scope, candidates in saved.items():
            if _holds_all(parameters, list(candidates())):
                raise _swapped(scope, components.get(scope), "the model's weights are those that it keeps")

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Tell whether a component's tensor was in one place with a parameter of the model from the beginning."""
        address = self._addresses.get(id(tensor))
        return id(tensor) in self._trained or (
            address is not None
            and any(self._addresses.get(other) == address for other in self._trained if other != id(tensor))
        )

    def _refuse_exchanged_memory(
        self, parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, list[NamedTensor]]
    ) -> None:
        elsewhere = {
            parameter.data_ptr(): id(parameter)
            for parameter in parameters.values()
            if self._addresses.get(id(parameter), parameter.data_ptr()) != parameter.data_ptr()
        }
        for scope, items in tensors.items() if elsewhere else ():
            for item in items:
                other = elsewhere.get(self._addresses.get(id(item.tensor), 0))
                if (
                    other is not None
                    and item.tensor is not None
                    and item.tensor.data_ptr() == self._addresses.get(other)
                ):
                    raise _swapped(
                        scope, None, f"the model has the memory of {item.name}, and that has the model's"
                    )

    def _refuse_exchanged_values(
        self, moved: list[_Sample], items: list[NamedTensor], scope: str, value: object
    ) -> None:
        for sample in moved:
            for item in items:
                tensor = item.tensor
                if (
                    tensor is not None
                    and _can_be_sampled(tensor)
                    and (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                    == (
                        sample.parameter.shape,
                        sample.parameter.stride(),
                        sample.parameter.dtype,
                        sample.parameter.device,
                    )
                    and torch.equal(sampled(tensor), sample.bits)
                ):
                    raise _swapped(scope, value, f"{item.name} has the weights that the last step has left")


def _holds_all(parameters: Mapping[str, torch.Tensor], candidates: list[torch.Tensor]) -> bool:
    """Tell whether every parameter has the bits of a tensor among these, in its own dtype."""
    by_shape: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for candidate in candidates:
        if is_plain(candidate):
            by_shape.setdefault(tuple(candidate.shape), []).append(candidate)
    return all(
        any(_is_copy(parameter, candidate) for candidate in by_shape.get(tuple(parameter.shape), ()))
        for parameter in parameters.values()
        if parameter.numel()
    )


def _is_copy(parameter: torch.Tensor, candidate: torch.Tensor) -> bool:
    if not is_plain(parameter) or not (candidate.is_floating_point() or candidate.dtype == parameter.dtype):
        return False
    ours, theirs = parameter.detach(), candidate.detach().to(parameter.device, parameter.dtype)
    return torch.equal(
        ours.contiguous().view(-1).view(torch.uint8), theirs.contiguous().view(-1).view(torch.uint8)
    )


# Libraries that keep the trained weights aside while averaged ones stand in the model, and drop them afterwards; and what
# else an object of such a library has, so that another one's attribute of this name says nothing.
_ASIDE = (
    ("temp_stored_params", "shadow_params"),  # diffusers
    ("_weights_buffer", "_ema_model_weights"),  # the callback of NeMo and Lightning
)


def _refuse_told(value: object, scope: str) -> None:
    for aside, beside in _ASIDE:
        own = getattr(value, "__dict__", {})
        if own.get(aside) is not None and beside in own:
            raise _swapped(scope, value, f"it keeps the trained weights aside (`{aside}`)")


def _swapped(scope: str, value: object, why: str) -> NotAtBoundary:
    return NotAtBoundary(
        f"averaged weights stand in the model: {why}", code="capture.averaged_weights", where=scope,
        found=None if value is None else type_name(value),
        hint="save when the trained weights are back; if the run really goes on from these, save after the next step",
    )  # fmt: skip


def _hook(
    this: weakref.ref[AveragesWatch], method: Callable[[AveragesWatch, Optimizer], None]
) -> Callable[..., None]:
    def look(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        # A compiled step runs its hooks too, and would break in two here; a captured graph would run it for ever.
        if torch.compiler.is_compiling() or _is_captured():
            return
        watch = this()
        if watch is not None:
            method(watch, optimizer)

    return look


def _is_captured() -> bool:
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return is_used and torch.cuda.is_current_stream_capturing()
