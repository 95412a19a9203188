"""Modules that are built at their first forward (`nn.LazyLinear`), restored before it.

Until then their tensors have no shape, and most of torch refuses to look at them. A record knows the shape; so for the time
of a check each gets memory of that, and is then made lazy again. For a restore it keeps it: the tensor stays the object
that optimizers hold, as torch's own loading does it, and the first forward finds nothing to initialise (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from segue._capture.naming import NamedTensor, joined, named_tensors
from segue._capture.writes import ObjectWrite, Write
from segue._record.contract import TensorSpec
from segue._record.sections import ModuleRecord
from segue.errors import ContractMismatch, Finding


@dataclass(frozen=True)
class _Lazy:
    tensor: Any
    cls: type
    memory: torch.Tensor

    def undo(self) -> None:
        self.tensor.__class__ = self.cls
        self.tensor.data = self.memory


class Materialised:
    """Gives the lazy tensors of modules the shapes of a record, for as long as it is entered, or for good if kept.

    Args:
        modules: What each module is restored from: record, module, scope.
    """

    def __init__(self, modules: Iterable[tuple[ModuleRecord, nn.Module, str]]) -> None:
        self._modules = list(modules)
        self._lazy: list[_Lazy] = []

    def __enter__(self) -> Materialised:
        try:
            for record, module, scope in self._modules:
                for item, spec in _lazy_tensors(record, module, scope):
                    self._lazy.append(_materialised(item.tensor, spec))
        except BaseException:
            self.undo()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.undo()

    def keep(self) -> None:
        """Leave them with the memory that they have got."""
        self._lazy.clear()

    def undo(self) -> None:
        """Make them lazy again."""
        for lazy in self._lazy:
            lazy.undo()
        self._lazy.clear()


def _lazy_tensors(
    record: ModuleRecord, module: nn.Module, scope: str
) -> Iterator[tuple[NamedTensor, TensorSpec]]:
    """Yield the lazy tensors that a record knows; others stay lazy, and are refused as such."""
    if not any(isinstance(child, LazyModuleMixin) for child in module.modules()):
        return
    for name, item in named_tensors(module, scope).items():
        spec = record.contract.tensors.get(name)
        if spec is not None and spec.parts is None and item.tensor is not None and is_lazy(item.tensor):
            yield item, spec


def _materialised(tensor: Any, spec: TensorSpec) -> _Lazy:
    empty = tensor.data
    lazy = _Lazy(tensor, type(tensor), empty)
    # Its own dtype and device: if the record has others, that is a difference, as of any tensor.
    tensor.data = torch.empty_strided(spec.shape, spec.strides, dtype=empty.dtype, device=empty.device)
    tensor.__class__ = tensor.cls_to_become
    return lazy


def built_class(module: nn.Module) -> type:
    """Return the class of a module; of a lazily built one that which it becomes at its first forward."""
    becomes: type | None = (
        getattr(module, "cls_to_become", None) if isinstance(module, LazyModuleMixin) else None
    )
    return becomes or type(module)


def lazy_findings(
    record: ModuleRecord, places: Iterable[tuple[str, nn.Module]], scope: str
) -> Iterator[Finding]:
    """Yield the tensors whose recorded shape is none that a lazily built module would get."""
    for path, child in places:
        for name, sizes in _known_sizes(child).items():
            spec = record.contract.tensors.get(joined(path, name))
            if spec is not None and not _may_be(spec.shape, sizes):
                shown = tuple("?" if size is None else size for size in sizes)
                yield Finding(
                    ContractMismatch, f"{scope}.shape.{joined(path, name)}", "the shape differs from the one that the "
                    "module would get at its first forward", f"{scope} {joined(path, name)}", spec.shape, shown,
                )  # fmt: skip


def plan_sizes(record: ModuleRecord, places: Iterable[tuple[str, nn.Module]], scope: str) -> Iterator[Write]:
    """Plan to tell lazily built modules of torch the sizes that their first forward would: some compare them (torch 2.13)."""
    for path, child in places:
        if not isinstance(child, LazyModuleMixin):
            continue
        specs = [
            record.contract.tensors.get(joined(path, name)) for name in ("weight", "bias", "running_mean")
        ]
        shape = next((spec.shape for spec in specs if spec is not None), None)
        own: Any = child
        if shape is None or not shape:
            continue
        if isinstance(own, _NormBase):
            yield ObjectWrite(f"{scope} {path} sizes", partial(setattr, own, "num_features", shape[0]))
        elif isinstance(own, nn.Linear):
            yield ObjectWrite(f"{scope} {path} sizes", partial(setattr, own, "in_features", shape[-1]))
        elif isinstance(own, _ConvNd):
            size = shape[0] if isinstance(own, _ConvTransposeNd) else shape[1] * own.groups
            yield ObjectWrite(f"{scope} {path} sizes", partial(setattr, own, "in_channels", size))


def _known_sizes(module: nn.Module) -> dict[str, tuple[int | None, ...]]:
    """Return what is known of the shapes of a lazily built module of torch before its first forward, and is lazy there."""
    if not isinstance(module, LazyModuleMixin):
        return {}
    own: Any = module
    if isinstance(own, nn.Linear):
        return {"weight": (own.out_features, None), "bias": (own.out_features,)}
    if isinstance(own, _ConvNd):
        outer = (
            (None, own.out_channels // own.groups)
            if isinstance(own, _ConvTransposeNd)
            else (own.out_channels, None)
        )
        return {"weight": (*outer, *own.kernel_size), "bias": (own.out_channels,)}
    return (
        dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (None,))
        if isinstance(own, _NormBase)
        else {}
    )


def _may_be(shape: tuple[int, ...], sizes: tuple[int | None, ...]) -> bool:
    return len(shape) == len(sizes) and all(
        size is None or size == given for given, size in zip(shape, sizes, strict=True)
    )
