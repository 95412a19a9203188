"""Proofs to run from your own tests: is this store one that a training can rely on?

Nothing here needs pytest to be imported; the classes are collected by it.
"""

from segue.testing.stores import StoreConformance

__all__ = ["StoreConformance"]
