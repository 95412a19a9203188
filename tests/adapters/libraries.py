"""peft and transformers, imported quietly: beside torchao they print what a CPU does not have."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings

with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.quantized_state.libraries import Int8WeightOnlyConfig, bitsandbytes, quantize_

    logging.disable(logging.NOTSET)

__all__ = ["Int8WeightOnlyConfig", "LlamaConfig", "LlamaForCausalLM", "bitsandbytes", "peft", "quantize_"]
