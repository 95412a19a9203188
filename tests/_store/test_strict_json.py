"""Depth is counted as a parser would, but before one runs."""

import json

import pytest

from segue._store import strict_json
from segue.errors import CorruptCheckpoint


@pytest.mark.parametrize(
    "text", ['{"[[[": "\\"[[["}', '["\\\\", "[[["]', '{"a": [1, {"b": []}], "c\\\\\\"[": 1}']
)
def test_brackets_in_strings_do_not_count(text):
    def depth(value):
        if isinstance(value, dict | list):
            return 1 + max(
                (depth(item) for item in (value.values() if isinstance(value, dict) else value)), default=0
            )
        return 0

    assert strict_json._depth(text.encode()) == depth(json.loads(text))


def test_depth_is_limited_exactly():
    strict_json.parse(b"[" * 256 + b"]" * 256, "here")
    with pytest.raises(CorruptCheckpoint, match="deeply"):
        strict_json.parse(b"[" * 257 + b"]" * 257, "here")


def test_depth_is_counted_across_slices(monkeypatch):
    monkeypatch.setattr(strict_json, "_SLICE_BYTES", 3)
    assert strict_json._depth(b'[["[[[",[{"a":[]}]]]') == 5


def test_pairs_of_surrogates_are_fine_and_lone_ones_are_not():
    assert strict_json.parse(b'"\\ud83d\\ude00"', "here") == "\U0001f600"
    with pytest.raises(CorruptCheckpoint):
        strict_json.parse(b'"\\ude00"', "here")


def test_integers_have_at_most_nineteen_digits():
    assert strict_json.parse(b"-9223372036854775808", "here") == -(2**63)
    with pytest.raises(CorruptCheckpoint, match="too long"):
        strict_json.parse(b"1" * 20, "here")
