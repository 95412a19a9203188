"""Every scheme that fits a small shape, to draw from."""

import math

from hypothesis import strategies as st

from segue.quant import QuantScale, QuantScheme, QuantStore, QuantValue

INTEGERS = [kind for kind in QuantValue if kind.value.startswith("q")]


@st.composite
def shapes_and_schemes(draw, least=1, most=6):
    shape = tuple(draw(st.lists(st.integers(least, most), max_size=3)))
    value = draw(st.sampled_from(QuantValue))
    stores = [QuantStore.NATIVE]
    if shape:
        stores.append(QuantStore.PACKED_U32)
        if value is QuantValue.E2M1:
            stores.append(QuantStore.PACKED_NATIVE)
    store = draw(st.sampled_from(stores))
    dim = 0 if store is QuantStore.NATIVE else draw(st.integers(0, len(shape) - 1))
    block = draw(st.none() | st.lists(st.integers(1, 5), max_size=len(shape)).map(tuple))
    return shape, QuantScheme(value, draw(st.sampled_from(QuantScale)), store, dim, block)


def field_range(scheme):
    """The integers or codes that fit into the bits of a value."""
    bits = 8 if scheme.store is QuantStore.NATIVE else scheme.value.bits
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if scheme.value in INTEGERS else (0, 2**bits - 1)


def lists_for(shape, elements):
    count = math.prod(shape)
    return st.lists(elements, min_size=count, max_size=count)
