"""What changes floating-point results without being state: recorded and compared, never restored.

Thread count, instruction set, library versions and flags all change last bits (measured on torch 2.13). State is
restored exactly whatever they are; only the continuation may differ, and then we say so.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from segue._record.tree import same
from segue.errors import EnvironmentMismatch, Finding

_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
)  # fmt: skip


def capture_environment() -> dict[str, Any]:
    """Describe everything known to change bits, as plain values."""
    return {**_software(), **_machine(), **_flags(), **_accelerators()}


def _software() -> dict[str, Any]:
    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version or "",
        "torch_build": hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16],
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _machine() -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _flags() -> dict[str, Any]:
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "flush_denormal": _flushes_denormals(),
        "scaled_dot_product": [
            getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")()
            for kernel in ("flash", "mem_efficient", "math")
        ],
    }


def _flushes_denormals() -> bool:
    # There is a setter and no getter (torch 2.13); 1e-40 is a denormal in fp32.
    small = torch.tensor([1e-30, 1e-10], dtype=torch.float32, device="cpu")
    return bool((small[0] * small[1]).item() == 0.0)


def _accelerators() -> dict[str, Any]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {"accelerators": []}
    return {"accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]}


def check_environment(record: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what differs from the environment of the record; each one is admissible."""
    here = capture_environment()
    for key in sorted(record.keys() | here.keys()):
        before, now = record.get(key, "unknown"), here.get(key, "unknown")
        if not same(before, now):
            yield Finding(
                EnvironmentMismatch, f"environment.{key}", "the environment differs in what can change the last bits",
                f"environment {key}", before, now, admissible=True,
            )  # fmt: skip
