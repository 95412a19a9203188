"""What changes floating-point results without being state: recorded and compared, never restored.

Thread count, instruction set, library versions and flags all change last bits (measured on torch 2.13). State is
restored exactly whatever they are; only the continuation may differ, and then we say so, and why.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from segue._capture.compiled import compiled_in
from segue._record.tree import same
from segue.errors import EnvironmentMismatch, Finding

_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT",
)  # fmt: skip

# They compute, or decide what is computed, in a training that has imported them.
_LIBRARIES = (
    "accelerate", "apex", "bitsandbytes", "datasets", "deepspeed", "diffusers", "flash_attn", "lightning",
    "liger_kernel", "pytorch_lightning", "peft", "schedulefree", "timm", "torchao", "torchaudio", "torchdata", "torchvision",
    "transformer_engine", "transformers", "triton", "xformers",
)  # fmt: skip

# Instruction sets that oneDNN and MKL choose kernels by; the others that a processor has change nothing.
_INSTRUCTIONS = ("avx", "avx2", "fma", "avx_vnni", "avx512", "amx", "asimd", "sve", "bf16", "i8mm")

_KERNELS = "it decides which kernels run, and in which order they add"
_SPLITS = "sums are split over threads, and rounded in another order"
_FLAG = "it selects other kernels, or another precision inside them"
_WHY = {
    "torch": "another version has other kernels",
    "torch_git": "another build has other kernels",
    "torch_build": "another build has other kernels",
    "numpy": "another version may draw and round otherwise",
    "python": "another version may draw and order otherwise",
    "libraries": "another version may compute otherwise",
    "machine": _KERNELS,
    "cpu_capability": _KERNELS,
    "cpu_model": "MKL and oneDNN choose kernels and block sizes by the processor",
    "cpu_instructions": _KERNELS,
    "num_threads": _SPLITS,
    "num_interop_threads": _SPLITS,
    "variables": _KERNELS,
    "compiled": "compiled and eager code round differently",
    "default_dtype": "new tensors have another dtype",
    "autocast_dtype": "autocast computes in another dtype",
    "flush_denormal": "the smallest numbers become zero",
    "einsum": "products are contracted in another order",
    "accelerators": "another device, or another driver, has other kernels",
}

# A record of an older segue has no word about these, or one side was asked without its modules: nothing to compare.
_SINCE_LATER = frozenset({
    "libraries", "cpu_model", "cpu_instructions", "compiled", "autocast_dtype", "einsum", "deterministic_warn_only",
    "fill_uninitialized_memory", "fp32_precision", "mkldnn_deterministic", "cuda",
})  # fmt: skip


def capture_environment(modules: Mapping[str, nn.Module] | None = None) -> dict[str, Any]:
    """Describe everything known to change bits, as plain values.

    Args:
        modules: The registered modules by name: which of them run compiled is told too.
    """
    compiled = {} if modules is None else {"compiled": compiled_in(modules)}
    return {**_software(), **_machine(), **_flags(), **_accelerators(), **compiled}


def _software() -> dict[str, Any]:
    return {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version or "",
        "torch_build": _build(),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version_of(name)) is not None},
    }


@functools.cache
def _build() -> str:
    return hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16]


def _version_of(library: str) -> str | None:
    """Return the version of a library that is in use; nothing is imported to find out."""
    module = sys.modules.get(library)
    version = None if module is None else vars(module).get("__version__")
    return version if type(version) is str else None


def _machine() -> dict[str, Any]:
    model, instructions = _processor()
    return {
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpu_model": model,
        "cpu_instructions": instructions,
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


@functools.cache
def _processor() -> tuple[str, str]:
    """Return the model of the first processor and its instruction sets, as far as the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor(), ""
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    told = {key.strip().lower(): value.strip() for key, _, value in lines}
    named = told.get("flags", told.get("features", "")).split()
    found = sorted(flag for flag in named if any(flag.startswith(kind) for kind in _INSTRUCTIONS))
    return told.get("model name", platform.processor()), " ".join(found)


def _flags() -> dict[str, Any]:
    deterministic: Any = torch.utils.deterministic
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "autocast_dtype": str(torch.get_autocast_dtype("cpu")),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": bool(deterministic.fill_uninitialized_memory),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "fp32_precision": _fp32_precisions(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "mkldnn_deterministic": bool(torch.backends.mkldnn.deterministic),
        "cudnn_benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": bool(torch.backends.cudnn.deterministic),
        "flush_denormal": _flushes_denormals(),
        "einsum": _einsum(),
        "scaled_dot_product": [
            getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")()
            for kernel in ("flash", "mem_efficient", "math")
        ],
    }


def _fp32_precisions() -> dict[str, str]:
    """Return what fp32 is computed in, per backend and kind of operation, where it isn't left at its default."""
    mkldnn: Any = torch.backends.mkldnn
    asked = {"all": torch.backends, "mkldnn": mkldnn, **{f"mkldnn.{kind}": getattr(mkldnn, kind, None)
             for kind in ("matmul", "conv", "rnn")}}  # fmt: skip
    told = {name: str(getattr(place, "fp32_precision", "none")) for name, place in asked.items()}
    return {name: precision for name, precision in told.items() if precision != "none"}


def _einsum() -> str:
    opt_einsum: Any = torch.backends.opt_einsum
    return str(opt_einsum.strategy) if opt_einsum.is_available() and opt_einsum.enabled else "left to right"


def _flushes_denormals() -> bool:
    # There is a setter and no getter (torch 2.13); 1e-40 is a denormal in fp32.
    small = torch.tensor([1e-30, 1e-10], dtype=torch.float32, device="cpu")
    return bool((small[0] * small[1]).item() == 0.0)


def _accelerators() -> dict[str, Any]:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return {"accelerators": [], "cuda": {}}
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"accelerators": names, "cuda": _cuda_flags()}


def _cuda_flags() -> dict[str, Any]:
    """Describe what decides on CUDA alone; asked only where it is in use."""
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    return {
        "version": str(torch.version.cuda or torch.version.hip),
        "cudnn": cudnn.version(),
        "cudnn_enabled": bool(cudnn.enabled),
        "cudnn_conv_fp32_precision": str(cudnn.conv.fp32_precision),
        "cudnn_rnn_fp32_precision": str(cudnn.rnn.fp32_precision),
        "matmul_fp32_precision": str(matmul.fp32_precision),
        "matmul_fp16_reduced": bool(matmul.allow_fp16_reduced_precision_reduction),
        "matmul_bf16_reduced": bool(matmul.allow_bf16_reduced_precision_reduction),
        "matmul_fp16_accumulation": bool(matmul.allow_fp16_accumulation),
        "blas": str(torch.backends.cuda.preferred_blas_library()),
        "linalg": str(torch.backends.cuda.preferred_linalg_library()),
        "cudnn_scaled_dot_product": torch.backends.cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "autocast_dtype": str(torch.get_autocast_dtype("cuda")),
    }


def check_environment(
    record: Mapping[str, Any], modules: Mapping[str, nn.Module] | None = None
) -> Iterator[Finding]:
    """Yield what differs from the environment of the record; each one is admissible."""
    here = capture_environment(modules)
    for key in sorted(record.keys() | here.keys()):
        if key in _SINCE_LATER and not (key in record and key in here):
            continue
        before, now = record.get(key, "unknown"), here.get(key, "unknown")
        if key == "libraries":
            now = _libraries_of(before, now)
        if not same(before, now):
            yield Finding(
                EnvironmentMismatch, f"environment.{key}", "the state is exact, but the continuation may differ in the "
                f"last bits: {why(key)}", f"environment {key}", before, now, admissible=True,
                when_accepted="goes on with what is here",
            )  # fmt: skip


def _libraries_of(record: Any, here: Mapping[str, str]) -> Any:
    """Return the versions here of what the record names; of what isn't imported, that of its installation.

    A resume stands at the beginning of a program, a capture in its middle: what was imported by then is no difference.
    """
    if type(record) is not dict:
        return here
    return {name: here.get(name) or _installed(name, recorded) for name, recorded in record.items()}


def _installed(library: Any, recorded: Any) -> Any:
    """Return the version of a library that is not imported: as recorded, if only a label of its build isn't told."""
    try:
        version = metadata.version(library) if library in _LIBRARIES else "unknown"
    except metadata.PackageNotFoundError:
        return "not installed"
    return recorded if version == str(recorded).partition("+")[0] else version


def why(key: str) -> str:
    """Say why an entry of the environment changes bits."""
    return _WHY.get(key, _FLAG)
