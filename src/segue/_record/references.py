"""Descriptions that name what is restored elsewhere: `{"reference": "parameter a.weight"}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KEY = "reference"


def with_names(tree: Any, new_name: Callable[[str], str]) -> Any:
    """Return a description whose references name parameters and modules otherwise.

    Args:
        tree: Of plain values.
        new_name: Maps what a parameter or module is called to what it is called now; any other word to itself.
    """
    if type(tree) is dict:
        if tree.keys() == {KEY} and type(tree[KEY]) is str:
            return {KEY: " ".join(map(new_name, tree[KEY].split(" ")))}
        return {key: with_names(item, new_name) for key, item in tree.items()}
    if type(tree) is list:
        return [with_names(item, new_name) for item in tree]
    return tree
