"""torchao and bitsandbytes, imported quietly: they print and warn about compiled parts that a CPU does not have."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings

with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import bitsandbytes
    import torchao
    import torchao.optim
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, QuantizeTensorToMXKwargs
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
    from torchao.prototype.quantized_training import Int8QuantizedTrainingLinearWeight
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import NF4Tensor, to_nf4

    logging.disable(logging.NOTSET)

__all__ = [
    "Float8WeightOnlyConfig",
    "Int8DynamicActivationInt8WeightConfig",
    "Int8QuantizedTrainingLinearWeight",
    "Int8WeightOnlyConfig",
    "IntxWeightOnlyConfig",
    "MXTensor",
    "NF4Tensor",
    "NVFP4Tensor",
    "QuantizeTensorToMXKwargs",
    "bitsandbytes",
    "quantize_",
    "to_nf4",
    "torchao",
]
