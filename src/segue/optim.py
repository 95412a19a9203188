"""Optimizers for parameters of few bits, whose whole state can be captured.

Wish: a bf16 model learns as an fp32 one does, and a resume loses nothing of it.

A bf16 parameter of 1.0 next changes by 0.0078: smaller updates are rounded away. So the value that an optimizer steps
must be kept in fp32, a *master*, and the parameter is only its cast. Programs that keep masters beside the optimizer
forget to save them: what is then built again from the bf16 parameters has lost the updates below their last bit, and
the run goes on a little differently.

`FP32Master` is one optimizer of torch, over the parameters themselves. Masters are state like any other,
`state[parameter]["master"]`, beside the slots of the inner optimizer, so whatever knows torch's optimizers
(schedulers, scalers, hooks, `Training`) knows this one. The inner optimizer has no state between steps: it is given
masters, slots and options at each step, and they are taken back after it. So there is nothing else to capture, and
nothing that a restore could leave behind.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from segue._capture.attributes import known_attributes
from segue._capture.optimizer import refuse_unsupported_optimizer
from segue._capture.staging import type_name
from segue._window.arithmetic import Arithmetic, copy_each
from segue.errors import OptimizerMismatch, UnsupportedState

__all__ = ["FP32Master"]

_MASTER = "master"
_LARGEST = torch.finfo(torch.float32).max
# Integers as wide as each dtype that a parameter may have, to compare bits.
_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
_NOT_OPTIONS = frozenset({"params", "param_names"})


class FP32Master(Optimizer):
    """Any optimizer, stepping fp32 masters of bf16, fp16 or fp32 parameters.

    Each step, for the parameters that have a gradient: the gradient is cast to fp32, divided by the gradient scale
    unless that is 1, and clipped if `max_norm` is given; the inner optimizer steps the masters; each parameter
    becomes its master, rounded once to its own dtype. A master begins as the cast of its parameter, at the first step
    that has a gradient for it. A parameter without a gradient gets no state, no decay and no change.

    The parameters' `grad_dtype` becomes float32 where it was their own dtype, so that backward adds gradients up in
    fp32, and accumulators hand out fp32 means uncast (torch 2.13). Set it back, before any gradient stands, to save
    the memory; then gradients are cast at the step.

    A parameter that was edited between steps (clamped, masked, loaded) is followed: each element whose bits are no
    longer its master's cast becomes the new master, and all others keep theirs. So edit parameters, not masters.

    A `GradScaler` needs no `unscale_`: its scale is divided out in fp32 here, and a step that it found to overflow
    changes nothing.

    Args:
        params: What the inner optimizer would take: parameters, named parameters, or groups with their own options.
            Dense, float32, float16 or bfloat16, on any device.
        inner: A class of optimizers that keeps all it knows in state by parameter and in options.
        max_norm: Clip the gradients of all groups together to this norm, as `torch.nn.utils.clip_grad_norm_` does;
            `None` doesn't. Decides how the run goes on: restore refuses another one.
        **options: What the inner optimizer takes, such as `lr`.

    Raises:
        TypeError: If `inner` is no class of optimizers, or does not take these options.
        ValueError: If `max_norm` is not finite and positive, or the inner optimizer refuses its arguments.
        UnsupportedState: If a parameter is of another dtype (`optim.dtype`), or one that is to get gradients in fp32
            has one in its own dtype (`optim.standing`); if the inner optimizer needs a closure (LBFGS), or keeps
            state elsewhere.

    Guarantees:
        The bits of masters and slots are those of the inner optimizer over fp32 copies that get the same gradients.
        Continued from a record, also one made between microbatches, it goes on with the same bits.

    Cost:
        Four bytes for each element that was ever stepped, and slots in fp32. With a scale or clipping, one fp32
        copy of the gradients as it steps. Looking for edits reads parameters and masters once a step.

    Collective:
        No: `max_norm` is over this process's gradients.
    """

    # `GradScaler.step` then hands over its scale instead of stepping or not by itself (torch 2.13).
    _step_supports_amp_scaling = True

    def __init__(
        self, params: ParamsT, inner: type[Optimizer], *, max_norm: float | None = None, **options: Any
    ) -> None:
        if not (isinstance(inner, type) and issubclass(inner, Optimizer)):
            raise TypeError(f"inner takes a class of optimizers, such as torch.optim.AdamW, not {inner!r}")
        if max_norm is not None and not 0 < max_norm < math.inf:
            raise ValueError(f"max_norm must be finite and positive, or None, not {max_norm!r}")
        self._max_norm = None if max_norm is None else float(max_norm)
        # A matrix, which every optimizer of torch takes; it is never stepped.
        self._inner = inner([torch.empty(1, 1)], **options)
        self._inner_options = options
        self._release_inner()
        self._refuse_inner()
        super().__init__(params, self._inner.defaults)

    @property
    def inner_class(self) -> type[Optimizer]:
        """The class of optimizers that steps the masters."""
        return type(self._inner)

    @property
    def max_norm(self) -> float | None:
        """The norm that gradients are clipped to."""
        return self._max_norm

    def master(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the live master of a parameter, not a copy; `None` before its first step."""
        master: torch.Tensor | None = self.state.get(parameter, {}).get(_MASTER)
        return master

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch declares overloads
        self, closure: Callable[[], float] | None = None, *, gradient_scale: float = 1.0
    ) -> float | None:
        """Step all parameters that have a gradient; `.grad` is not changed.

        Args:
            closure: Computes the gradients; called once, before anything else.
            gradient_scale: What the loss was multiplied by. Beside a `GradScaler`, its scale comes on top.

        Returns:
            What the closure returned.

        Raises:
            ValueError: If the scale or its reciprocal is not finite in fp32, or it is not positive.
            UnsupportedState: If a gradient is sparse (`optim.sparse`), or a parameter no longer fits its master
                (`optim.master`); no parameter has changed.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        scale = self._whole_scale(gradient_scale)
        stepped = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        parameters = [parameter for members in stepped for parameter in members]
        if scale is not None and parameters:
            self._step(stepped, parameters, scale)
        return loss

    def _whole_scale(self, gradient_scale: float) -> float | None:
        """Return what gradients are to be divided by, `None` if a scaler found that they have overflowed."""
        found_inf, scaler = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and found_inf.item():
            return None
        scale = float(gradient_scale) * (1.0 if scaler is None else float(scaler))
        if not (0 < scale <= _LARGEST and 1 / scale <= _LARGEST):
            raise ValueError(
                f"the gradient scale must be positive, and finite in fp32 like its reciprocal, not {scale!r}"
            )
        return scale

    def _step(self, stepped: list[list[torch.Tensor]], parameters: list[torch.Tensor], scale: float) -> None:
        for parameter in parameters:
            self._check(parameter)
        masters: dict[torch.Tensor, torch.Tensor] = {}
        begun: set[torch.Tensor] = set()
        for parameter in parameters:
            master = self.master(parameter)
            if master is None:
                master = parameter.detach().to(torch.float32, copy=True)
                begun.add(parameter)
            else:
                _follow_edits(parameter, master)
            masters[parameter] = master
        try:
            self._prepare_inner(stepped, masters, begun)
            self._hand_gradients(masters, scale)
            self._inner.step()
            self._refuse_inner()
            self._take_back(masters)
        finally:
            for master in masters.values():
                master.grad = None
            self._release_inner()
        copy_each(list(masters), list(masters.values()))

    def _check(self, parameter: torch.Tensor) -> None:
        where, master = _told(parameter), self.master(parameter)
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            raise UnsupportedState(
                "a sparse gradient is not supported", code="optim.sparse", where=where, found=parameter.grad.layout
            )  # fmt: skip
        _refuse_dtype(parameter)
        if master is None:
            if self.state.get(parameter):
                raise UnsupportedState(
                    "state without a master", code="optim.master", where=where, found=sorted(self.state[parameter])
                )  # fmt: skip
            return
        expected, found = (
            (torch.float32, parameter.shape, parameter.device),
            (master.dtype, master.shape, master.device),
        )
        if expected != found:
            raise UnsupportedState(
                "a parameter does not fit its master", code="optim.master", where=where, expected=expected, found=found
            )  # fmt: skip

    def _prepare_inner(
        self,
        stepped: list[list[torch.Tensor]],
        masters: Mapping[torch.Tensor, torch.Tensor],
        begun: Collection[torch.Tensor],
    ) -> None:
        """Give the inner optimizer its groups and slots, as they would be if it had stepped masters all along."""
        for group, members in zip(self.param_groups, stepped, strict=True):
            own = _options(group)
            self._inner.param_groups.append({**own, "params": [masters[p] for p in members]})
            fresh = [masters[p] for p in members if p in begun]
            if fresh:
                # Some (Adagrad) make their state when they are built.
                born = self._build({**own, "params": fresh}).state
                self._inner.state.update({master: born[master] for master in fresh if master in born})
            for parameter in members:
                if parameter not in begun:
                    slots = self.state[parameter].items()
                    self._inner.state[masters[parameter]] = {k: v for k, v in slots if k != _MASTER}

    def _hand_gradients(self, masters: Mapping[torch.Tensor, torch.Tensor], scale: float) -> None:
        copied = scale != 1.0 or self._max_norm is not None
        for parameter, master in masters.items():
            assert parameter.grad is not None
            master.grad = parameter.grad.detach().to(torch.float32, copy=copied)
        Arithmetic(torch.float32).divide([m.grad for m in masters.values() if m.grad is not None], scale)
        if self._max_norm is not None:
            nn.utils.clip_grad_norm_(list(masters.values()), self._max_norm)

    def _take_back(self, masters: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Keep what the inner optimizer knows now, under the parameters."""
        slots = self._inner.state
        if not slots.keys() <= set(masters.values()):
            raise self._unfit_inner(
                "an inner optimizer with state that belongs to no parameter is not supported"
            )
        if any(_MASTER in slots.get(master, {}) for master in masters.values()):
            raise self._unfit_inner(f"an inner optimizer with a slot named {_MASTER!r} is not supported")
        for group, inner_group in zip(self.param_groups, self._inner.param_groups, strict=True):
            group.update(_options(inner_group))  # some write to their options
        for parameter, master in masters.items():
            own = self.state[parameter]
            own.clear()
            own.update({_MASTER: master, **slots.get(master, {})})

    def _release_inner(self) -> None:
        self._inner.param_groups = []
        self._inner.state.clear()

    def _build(self, group: dict[str, Any]) -> Optimizer:
        return type(self._inner)([group], **self._inner_options)

    def _refuse_inner(self) -> None:
        if isinstance(self._inner, torch.optim.LBFGS):
            raise self._unfit_inner("an inner optimizer that needs a closure is not supported")
        if known_attributes(self._inner):
            raise self._unfit_inner(
                "an inner optimizer that keeps state in attributes of its own is not supported"
            )
        refuse_unsupported_optimizer(self._inner, "FP32Master inner")

    def _unfit_inner(self, what: str) -> UnsupportedState:
        found = type_name(self._inner)
        return UnsupportedState(what, code="optim.inner", where="FP32Master inner", found=found)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters get masters at their first step.

        Args:
            param_group: As torch takes it.

        Raises:
            UnsupportedState: As the constructor.
            ValueError: If the inner optimizer refuses the group.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for parameter in group["params"]:
                _refuse_dtype(parameter)
                _refuse_standing(parameter)
            self._build({**_options(group), "params": [_placeholder(p) for p in group["params"]]})
        except BaseException:
            self.param_groups.pop()
            raise
        for parameter in group["params"]:
            if _is_to_sum_in_fp32(parameter):
                parameter.grad_dtype = torch.float32

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, by position as torch does, but without a cast.

        Load the model as well, before or after: a parameter that isn't its master's cast counts as edited.

        Args:
            state_dict: Its tensors are copied.

        Raises:
            OptimizerMismatch: If a state has no master, or one of another shape or dtype; nothing has changed.
        """
        # torch's own would cast masters and slots to the parameters' dtype (torch 2.13); it does all the rest.
        kept: dict[torch.Tensor, dict[str, Any]] = {}
        last = self.register_load_state_dict_pre_hook(
            lambda _, hooked: kept.update(self._loadable(state_dict if hooked is None else hooked))
        )
        first = self.register_load_state_dict_post_hook(lambda _: self._replace_state(kept), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _loadable(self, state_dict: dict[str, Any]) -> dict[torch.Tensor, dict[str, Any]]:
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        live = [(p, group) for group in self.param_groups for p in group["params"]]
        # If there are more or fewer of them, torch refuses next.
        places = dict(zip(numbers, live, strict=False))
        found: dict[torch.Tensor, dict[str, Any]] = {}
        for number, slots in state_dict["state"].items():
            if number in places:
                parameter, group = places[number]
                _refuse_other_state(parameter, slots, number)
                found[parameter] = {k: _placed(k, v, parameter, group) for k, v in slots.items()}
        return found

    def _replace_state(self, state: dict[torch.Tensor, dict[str, Any]]) -> None:
        self.state.clear()
        self.state.update(state)

    def __getstate__(self) -> dict[str, Any]:
        own = {"inner": type(self._inner), "inner_options": self._inner_options, "max_norm": self._max_norm}
        return {**super().__getstate__(), "fp32_master": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        own = state.pop("fp32_master", None)  # `load_state_dict` calls this too, with groups and state alone
        if own is not None:
            self._max_norm = own["max_norm"]
            self._inner_options = own["inner_options"]
            self._inner = own["inner"]([torch.empty(1, 1)], **self._inner_options)
            self._release_inner()
        super().__setstate__(state)


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _NOT_OPTIONS}


def _told(parameter: torch.Tensor) -> str:
    return f"a parameter of shape {tuple(parameter.shape)}"


def _refuse_dtype(parameter: torch.Tensor) -> None:
    if parameter.dtype not in _BITS:
        raise UnsupportedState(
            "no fp32 master for this dtype", code="optim.dtype", where=_told(parameter),
            expected="float32, float16 or bfloat16", found=parameter.dtype,
        )  # fmt: skip


def _is_to_sum_in_fp32(parameter: torch.Tensor) -> bool:
    # Any other than its own was set by the caller; None admits any (torch 2.13).
    return (
        parameter.is_leaf and parameter.dtype is not torch.float32 and parameter.grad_dtype is parameter.dtype
    )


def _refuse_standing(parameter: torch.Tensor) -> None:
    if _is_to_sum_in_fp32(parameter) and parameter.grad is not None:
        raise UnsupportedState(
            "a gradient stands where gradients are to be fp32 from now on", code="optim.standing",
            where=_told(parameter), found=parameter.grad.dtype,
            hint="build the optimizer before the first backward, or clear gradients first",
        )  # fmt: skip


def _placeholder(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor for an optimizer's constructor to look at; without memory, since some make state for it."""
    return torch.empty_like(parameter, dtype=torch.float32, device="meta", requires_grad=False)


def _follow_edits(parameter: torch.Tensor, master: torch.Tensor) -> None:
    """Make the parameter's value the master's where the parameter is no longer the master's cast."""
    # A function of values alone: a version counter would not come back after a restore, and doesn't see `.data`.
    bits = _BITS[parameter.dtype]
    found, expected = parameter.detach().view(bits), master.to(parameter.dtype).view(bits)
    if master.device.type == "cpu" and torch.equal(found, expected):
        return
    # Elsewhere a look would wait for the device, so the choice is made there.
    master.copy_(torch.where(found != expected, parameter.detach(), master))


def _refuse_other_state(parameter: torch.Tensor, slots: object, number: object) -> None:
    master = slots.get(_MASTER) if isinstance(slots, Mapping) else None
    found = (master.dtype, tuple(master.shape)) if isinstance(master, torch.Tensor) else "no master"
    expected = (torch.float32, tuple(parameter.shape))
    if found != expected:
        raise OptimizerMismatch(
            "not the state of an FP32Master over these parameters", code="optim.state", where=f"state {number}",
            expected=expected, found=found,
        )  # fmt: skip


def _placed(key: str, value: Any, parameter: torch.Tensor, group: Mapping[str, Any]) -> Any:
    """Copy a slot to where torch would have it: with its parameter, but for counters that the host counts."""
    value = copy.deepcopy(value)
    counted_by_host = key == "step" and not (group.get("capturable") or group.get("fused"))
    return value.to(parameter.device) if isinstance(value, torch.Tensor) and not counted_by_host else value
