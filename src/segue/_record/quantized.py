"""Quantized values as bytes, with the exact arithmetic of how many there must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from segue._record.composite import Composite, fields_of
from segue._record.tensors import CapturedTensor


class QuantValue(Enum):
    """What one value is."""

    Q8F = "q8f"
    Q8S = "q8s"
    Q4F = "q4f"
    Q4S = "q4s"
    Q2F = "q2f"
    Q2S = "q2s"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    E2M1 = "e2m1"


class QuantScale(Enum):
    """What one scale is."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    UE8M0 = "ue8m0"
    UE4M3 = "ue4m3"


class QuantStore(Enum):
    """How values lie in memory."""

    NATIVE = "native"
    PACKED_U32 = "packed_u32"
    PACKED_NATIVE = "packed_native"


@dataclass(frozen=True)
class QuantScheme:
    """How a tensor is quantized, symmetrically: value and scale kinds, store, and level."""

    value: QuantValue
    scale: QuantScale = QuantScale.F32
    store: QuantStore = QuantStore.NATIVE
    packed_dim: int = 0
    """For a packed store, the dimension along which values share a word, counted from the innermost."""
    block: tuple[int, ...] | None = None
    """The shape that has a scale of its own; `None` for one scale per tensor."""


@dataclass(frozen=True, eq=False)
class QuantizedTensor(Composite):
    """A quantized tensor: its values' bytes, and behind them those of its scales."""

    tag: ClassVar[str] = "quantized"

    scheme: QuantScheme
    shape: tuple[int, ...]
    data: CapturedTensor
    """Flat uint8."""

    @property
    def parts(self) -> Mapping[str, CapturedTensor]:
        return {"data": self.data}

    @property
    def description(self) -> dict[str, Any]:
        scheme = self.scheme
        return {
            "value": scheme.value.value,
            "scale": scheme.scale.value,
            "store": scheme.store.value,
            "packed_dim": scheme.packed_dim,
            "block": scheme.block,
            "shape": self.shape,
        }

    @classmethod
    def from_parts(cls, description: Mapping[str, Any], parts: Mapping[str, Any]) -> Self:
        value, scale, store, packed_dim, block, shape = fields_of(
            description, value=str, scale=str, store=str, packed_dim=int, block=object, shape=tuple
        )
        return cls(
            QuantScheme(QuantValue(value), QuantScale(scale), QuantStore(store), packed_dim, block),
            shape,
            parts["data"],
        )

    def to_host(self) -> QuantizedTensor:
        return self
