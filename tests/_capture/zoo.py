"""Every dtype and layout that torch has and we keep, and those we refuse."""

import torch

from segue._record.tensors import DTYPES


def of_dtype(name, count=12):
    """A flat tensor of any dtype whose bytes are all different patterns, NaN payloads among them."""
    dtype = DTYPES[name]
    size = dtype.itemsize
    raw = torch.arange(count * size, dtype=torch.int64).mul(37).add(113).remainder(256).to(torch.uint8)
    return (raw % 2 if name == "bool" else raw).view(dtype)


def layouts():
    base = torch.arange(24.0)
    complex_base = torch.complex(base, -base)
    return {
        "zero-dim": torch.tensor(-0.0),
        "empty": torch.empty(0, 3),
        "empty and transposed": torch.empty(3, 0, 2).transpose(0, 2),
        "one element": torch.ones(1, 1, 1),
        "transposed": base.view(4, 6).t(),
        "channels last": base.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "permuted": base.view(2, 3, 4).permute(2, 0, 1),
        "sliced": base.view(4, 6)[1:3, ::2],
        "strided by three": base[::3],
        "view of a large storage": torch.zeros(100_000)[500:510],
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 5),
        "expanded scalar": torch.tensor(3.0).expand(4),
        "conjugate": complex_base.conj(),
        "conjugate and transposed": complex_base.view(4, 6).t().conj(),
        "conjugate of double": complex_base.to(torch.complex128).conj(),
        "negative": complex_base.conj().imag,
        "negative of nan": torch.complex(base, torch.full((24,), float("nan"))).conj().imag,
        "real part": complex_base.real,
        "nan payloads": torch.tensor([0x7FC00123, -1, 0x7F800001], dtype=torch.int32).view(torch.float32),
        "with gaps": torch.as_strided(torch.arange(20.0), (3, 2), (7, 2)),
        "inference": inference(),
    }


def inference():
    with torch.inference_mode():
        return torch.arange(6.0).view(2, 3).t()


def logical_bytes(tensor):
    """The row-major bytes of the values, computed another way than segue does."""
    resolved = tensor.detach().resolve_conj().resolve_neg()
    flat = torch.empty(resolved.shape, dtype=resolved.dtype)
    flat.copy_(resolved)
    return bytes(flat.reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
