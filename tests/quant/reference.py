"""Formats, packing and rounding once more: slow, in plain Python, sharing no code and no arithmetic with segue."""

import itertools
import math
import struct
from fractions import Fraction

BITS = {"q8f": 8, "q8s": 8, "q4f": 4, "q4s": 4, "q2f": 2, "q2s": 2, "e4m3": 8, "e5m2": 8, "e2m1": 4}
RANGES = {
    "q8f": (-128, 127),
    "q8s": (-127, 127),
    "q4f": (-8, 7),
    "q4s": (-7, 7),
    "q2f": (-2, 1),
    "q2s": (-1, 1),
}
LARGEST = {
    "q8f": 127,
    "q8s": 127,
    "q4f": 7,
    "q4s": 7,
    "q2f": 1,
    "q2s": 1,
    "e4m3": 448,
    "e5m2": 57344,
    "e2m1": 6,
}


def _minifloat(code, exponent_bits, mantissa_bits, bias):
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    exponent = (code >> mantissa_bits) % (1 << exponent_bits)
    mantissa = code % (1 << mantissa_bits)
    if exponent == 0:
        return sign * Fraction(mantissa, 1 << mantissa_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)


def value_of(kind, code):
    """The number that a code of a floating kind stands for; a float where it is no number."""
    if kind == "e4m3":
        return math.nan if code % 128 == 127 else _minifloat(code, 4, 3, 7)
    if kind == "e5m2":
        special = {124: math.inf, 252: -math.inf}.get(code, math.nan)
        return special if code % 128 >= 124 else _minifloat(code, 5, 2, 15)
    return _minifloat(code, 2, 1, 1)


SCALE_CODES = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80, "ue8m0": 255, "ue4m3": 127}
"""How many codes of each kind stand for numbers that are not negative, in order."""


def scale_of(kind, code):
    """The number that a code of a scale kind stands for, which must be one of `SCALE_CODES`."""
    if kind == "f32":
        return Fraction(struct.unpack("<f", struct.pack("<I", code))[0])
    if kind == "f16":
        return Fraction(struct.unpack("<e", struct.pack("<H", code))[0])
    if kind == "bf16":
        return Fraction(struct.unpack("<f", struct.pack("<I", code << 16))[0])
    return Fraction(2) ** (code - 127) if kind == "ue8m0" else _minifloat(code, 4, 3, 7)


SCALE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "ue8m0": 1, "ue4m3": 1}


def fitting_scale(kind, value_kind, maximum):
    """The code of the smallest scale with which a maximum fits; `None` where there is none."""
    target = Fraction(maximum) / LARGEST[value_kind]
    if target == 0:
        target = Fraction(1)
    low, high = 0, SCALE_CODES[kind]
    while low < high:
        middle = (low + high) // 2
        if scale_of(kind, middle) >= target:
            high = middle
        else:
            low = middle + 1
    return low if low < SCALE_CODES[kind] else None


_TABLES = {
    kind: {code: value for code in range(1 << (BITS[kind] - 1)) if isinstance(value := value_of(kind, code), Fraction)}
    for kind in ("e4m3", "e5m2", "e2m1")
}  # fmt: skip


def rounded(kind, quotient, sign):
    """The integer or code nearest to an exact quotient, halves to even, saturating. `sign` is that of a zero."""
    if kind in RANGES:
        low, high = RANGES[kind]
        return min(max(round(quotient), low), high)
    table, magnitude = _TABLES[kind], abs(quotient)
    nearest = min(abs(value - magnitude) for value in table.values())
    codes = [code for code, value in table.items() if abs(value - magnitude) == nearest]
    code = min(codes, key=lambda code: code % 2)
    return code + (1 << (BITS[kind] - 1)) if sign < 0 else code


def indices(shape):
    return itertools.product(*map(range, shape))


def block_of(block, index):
    """The position of the scale of an index."""
    if block is None:
        return ()
    sizes = [1] * max(len(index) - len(block), 0) + list(block)
    return tuple(place // size for place, size in zip(index, sizes, strict=False))


def scale_positions(shape, block):
    return sorted({block_of(block, index) for index in indices(shape)}) if block is not None else [()]


def units(kind, shape, dim, unit_bits, values):
    """Pack values, given by index, into words or bytes; returns them in row-major order."""
    axis, bits = len(shape) - 1 - dim, BITS[kind]
    per_unit = unit_bits // bits
    packed = {}
    for index in indices(shape):
        unit = (*index[:axis], index[axis] // per_unit, *index[axis + 1 :])
        packed[unit] = packed.get(unit, 0) + (
            (values[index] % (1 << bits)) << (index[axis] % per_unit * bits)
        )
    return [packed[unit] for unit in sorted(packed)]


def value_bytes(kind, shape, store, dim, values):
    """The bytes of all values, given by index, in a store."""
    if store == "native":
        return bytes(values[index] % 256 for index in indices(shape))
    if store == "packed_native":
        return bytes(units(kind, shape, dim, 8, values))
    return b"".join(struct.pack("<I", word) for word in units(kind, shape, dim, 32, values))


def float32(number):
    """The bits of the float32 nearest to an exact number or a special float, and infinity beyond the largest."""
    try:
        return struct.pack("<f", float(number))
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, number))
