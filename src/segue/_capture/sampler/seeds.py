"""A seed for each sample of each epoch."""

from __future__ import annotations

from typing import SupportsIndex

from segue._capture.sampler.keys import COUNTS, SEEDS, checked, hashed


def per_sample_seed(seed: SupportsIndex, epoch: SupportsIndex, index: SupportsIndex) -> int:
    """Return the seed of one sample in one epoch, for augmentation that doesn't depend on who computes it when.

    Args:
        seed: That of the run, from 0 to 2**64 - 1.
        epoch: From 0.
        index: The sample's index in its dataset, from 0.

    Returns:
        A number of 63 bits, so it fits `torch.int64`, `torch.Generator.manual_seed`, `random.Random` and
        `numpy.random.default_rng`.

    Raises:
        TypeError: If one of them is no whole number.
        ValueError: If one is out of range.

    Guarantees:
        The same for ever, on every machine: the first 8 bytes of `SHA-256(b"segue.sample" + seed + epoch + index)`,
        each number in 8 bytes, little-endian, without the highest bit.

    Cost:
        About two microseconds.
    """
    return hashed(
        b"segue.sample",
        checked(seed, "seed", SEEDS), checked(epoch, "epoch", COUNTS), checked(index, "index", COUNTS),
    ) & (COUNTS - 1)  # fmt: skip
