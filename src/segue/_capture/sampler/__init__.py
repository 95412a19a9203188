"""The order of samples, and the randomness of each: both follow from a seed, an epoch and a position."""
