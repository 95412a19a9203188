"""Manifests that lie, signed so that only the lie is wrong."""

import json

import pytest

from segue._store.manifest import VERSION, layout_problem
from segue.errors import CorruptCheckpoint, StoreError, UnsupportedFormat
from tests.hostile.lies import lie, lie_in_bytes, lie_in_state, manifest, refused

WEIGHT = "model/tensors/weight"
KEYS = (
    "format", "version", "run", "seq", "attempt", "kind", "step", "microbatch", "topology", "sizes", "files", "tensors",
    "sections",
)  # fmt: skip
WRONG = (None, True, -1, 1.5, 2**62 + 1, "8", "", [], {}, [[]], {"a": 1}, "../x", "\x1b[31m", "\0")


@pytest.mark.parametrize("key", KEYS)
def test_a_missing_key_is_refused(checkpoint, key):
    lie(checkpoint, lambda document: document.pop(key))
    refused(checkpoint, (CorruptCheckpoint, UnsupportedFormat), entry="manifest.json")


def test_an_unknown_key_is_refused(checkpoint):
    lie(checkpoint, lambda document: document.update(hooks=["os.system"]))
    refused(checkpoint, CorruptCheckpoint, entry="expected exactly the keys")


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_refused(checkpoint, key):
    honest = manifest(checkpoint)
    allowed = {
        "run": [None],
        "step": [None],
        "microbatch": [None],
        "kind": ["8", "../x", "\x1b[31m", "\0", ""],
    }
    for value in WRONG:
        if value in allowed.get(key, []) and value is not True:
            continue
        if key == "attempt" and value == "8":
            continue
        if key == "run" and value == "8":
            continue
        lie(
            checkpoint,
            lambda document, value=value: (
                document.clear(),
                document.update(honest),
                document.update({key: value}),
            ),
        )
        refused(checkpoint, entry="manifest.json")


@pytest.mark.parametrize("field", ["dtype", "shape", "strides", "device", "chunks"])
def test_a_tensor_entry_of_another_type_is_refused(checkpoint, field):
    honest = manifest(checkpoint)
    for value in WRONG:
        lie(checkpoint, lambda document, value=value: (document.clear(), document.update(json.loads(json.dumps(honest))), document["tensors"][WEIGHT].update({field: value})))  # fmt: skip
        refused(checkpoint, CorruptCheckpoint, entry="manifest.json")


@pytest.mark.parametrize("field", range(6))
def test_a_chunk_field_of_another_type_is_refused(checkpoint, field):
    honest = manifest(checkpoint)
    for value in WRONG:

        def change(document, value=value):
            document.clear()
            document.update(json.loads(json.dumps(honest)))
            document["tensors"][WEIGHT]["chunks"][0][field] = value

        lie(checkpoint, change)
        refused(checkpoint, CorruptCheckpoint)


TENSOR_LIES = {
    "a shape that overflows": {"shape": [2**61, 2**61], "strides": [1, 1]},
    "a shape that wraps to the right size": {"shape": [2**62, 4, 3], "strides": [12, 3, 1]},
    "a shape with nothing and everything": {"shape": [0, 2**62], "strides": [1, 1]},
    "too many dimensions": {"shape": [1] * 70, "strides": [1] * 70},
    "a negative size": {"shape": [-4, -3]},
    "a size that is a float": {"shape": [4.0, 3]},
    "a size that is true": {"shape": [12, True], "strides": [1, 1]},
    "another shape of the same bytes": {"shape": [3, 4], "strides": [4, 1]},
    "another dtype of the same bytes": {"dtype": "int32"},
    "an unknown dtype": {"dtype": "object"},
    "strides over terabytes": {"strides": [2**40, 1]},
    "one stride too few": {"strides": [1]},
    "a device that is code": {"device": "__import__('os')"},
    "no chunk": {"chunks": []},
}


@pytest.mark.parametrize("what", TENSOR_LIES)
def test_a_tensor_entry_that_lies_is_refused(checkpoint, what):
    lie(checkpoint, lambda document: document["tensors"][WEIGHT].update(TENSOR_LIES[what]))
    refused(checkpoint, CorruptCheckpoint)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a\\b",
        "manifest.json",
        "commit",
        "state.json",
        "model.safetensors\0",
        "MODEL.safetensors",
        "file://x",
    ],
)
def test_a_chunk_in_any_other_file_is_refused(checkpoint, name):
    def change(document):
        document["tensors"][WEIGHT]["chunks"][0][0] = name

    lie(checkpoint, change)
    refused(checkpoint, CorruptCheckpoint, entry="not a tensor file")


@pytest.mark.parametrize(
    "name",
    ["../x", "/x", "a\\b", "a\0", "a\nb", "", ".", "..", "x" * 300, "C:x", "a\u202eb", "A.safetensors"],
)
def test_any_other_file_name_is_refused(checkpoint, name):
    lie(checkpoint, lambda document: document["files"].update({name: document["files"]["state.json"]}))
    refused(checkpoint, CorruptCheckpoint, entry="files")


def test_claimed_sizes_are_compared_before_anything_is_allocated(checkpoint):
    lie(checkpoint, lambda document: document["files"]["state.json"].update(size=2**60, head=2**60))
    refused(checkpoint, CorruptCheckpoint, entry="size")


def test_sizes_that_do_not_add_up_are_refused(checkpoint):
    lie(checkpoint, lambda document: document["sizes"].update(model=1))
    refused(checkpoint, CorruptCheckpoint, entry="sizes")


def test_a_tensor_that_no_tree_names_is_refused(checkpoint):
    lie(checkpoint, lambda document: document["sections"].update(streams=None))
    refused(checkpoint, CorruptCheckpoint, entry="no section names")


def test_a_tensor_that_is_named_twice_is_refused(checkpoint):
    lie_in_state(
        checkpoint,
        (checkpoint / "state.json")
        .read_bytes()
        .replace(
            b'"caller_state":{', b'"caller_state":{"dict":{"t":{"tensor":"model/tensors/weight"}}},"x":{'
        ),
    )
    refused(checkpoint, CorruptCheckpoint)


def test_a_newer_version_is_told_as_such(checkpoint):
    lie(checkpoint, lambda document: document.update(version=VERSION + 1, something_new=1))
    refused(checkpoint, UnsupportedFormat, match=rf"newer segue \(format {VERSION + 1}\)")


def test_a_newer_version_with_other_files_is_told_as_such(checkpoint):
    lie(checkpoint, lambda document: document.update(version=VERSION + 1))
    (checkpoint / "model-00000-of-00002.safetensors").write_bytes(b"")
    refused(checkpoint, UnsupportedFormat, match=rf"newer segue \(format {VERSION + 1}\)")


TEXTS = {
    "a duplicate key": lambda text: text.replace('"seq": 0', '"seq": 0, "seq": 0'),
    "NaN": lambda text: text.replace('"seq": 0', '"seq": NaN'),
    "Infinity": lambda text: text.replace('"seq": 0', '"seq": -Infinity'),
    "a number too large": lambda text: text.replace('"seq": 0', '"seq": 1e999'),
    "a float for an integer": lambda text: text.replace('"seq": 0', '"seq": 0e0'),
    "a hundred thousand digits": lambda text: text.replace('"seq": 0', '"seq": ' + "9" * 100_000),
    "depth": lambda text: text.replace('"seq": 0', '"seq": ' + "[" * 50_000 + "]" * 50_000),
    "depth without end": lambda text: "[" * 1_000_000,
    "trailing data": lambda text: text + "{}",
    "a list": lambda text: "[" + text + "]",
    "a string": lambda text: '"manifest"',
    "nothing": lambda text: "",
    "a lone surrogate": lambda text: text.replace('"kind": "full"', '"kind": "\\ud800"'),
    "a byte-order mark": lambda text: "\ufeff" + text,
    "an open string": lambda text: text + '"',
    "a comment": lambda text: "// hello\n" + text,
}


@pytest.mark.parametrize("what", TEXTS)
def test_json_that_is_not_strict_is_refused(checkpoint, what):
    text = TEXTS[what]((checkpoint / "manifest.json").read_text())
    lie_in_bytes(checkpoint, text.encode())
    refused(checkpoint, StoreError, entry="manifest.json")


@pytest.mark.parametrize("data", [b"\xff\xfe", b'"\xc3\x28"', b"\0", "{}".encode("utf-16")])
def test_json_that_is_not_utf8_is_refused(checkpoint, data):
    lie_in_bytes(checkpoint, data)
    refused(checkpoint, CorruptCheckpoint, entry="manifest.json")


@pytest.mark.parametrize(
    "tree",
    [
        {"call": ["os.system", "true"]}, {"dict": []}, {"tuple": {}}, {"tensor": ["x"]}, {"tensor": "x"}, {"int": "1_0"},
        {"array": ["x", "|O", [1], "C"]}, {"dtype": "Tensor"}, {"dtype": "__class__"}, {"bytes": "?"}, {"set": [[]]},
        {"map": [[1, 2], [1, 3]]}, {"deque": [-1, []]}, {"float": "00"}, {"size": ["a"]}, {"a": 1, "b": 2}, {},
        {"device": "cuda:x"}, {"range": [0, 1, 0]}, {"scalar": ["|O", ""]}, {"str": "gA=="},
    ],
)  # fmt: skip
def test_a_malformed_tree_is_corrupt(checkpoint, tree):
    state = json.loads((checkpoint / "state.json").read_text())
    state["caller_state"] = tree
    lie_in_state(checkpoint, json.dumps(state).encode())
    refused(checkpoint, CorruptCheckpoint, entry="state.json")


def test_a_tree_too_deep_is_corrupt(checkpoint):
    state = (
        (checkpoint / "state.json")
        .read_bytes()
        .replace(b'"note"', b'"deep":' + b"[" * 300 + b"]" * 300 + b',"note"')
    )
    lie_in_state(checkpoint, state)
    refused(checkpoint, CorruptCheckpoint, entry="state.json")


@pytest.mark.parametrize("section", ["model", "optimizers", "gradients", "window", "environment", "version"])
def test_a_section_of_another_shape_is_corrupt(checkpoint, section):
    lie(checkpoint, lambda document: document["sections"].update({section: [1]}))
    refused(checkpoint, CorruptCheckpoint)


@pytest.mark.parametrize("change", [lambda s: s.update(extra=1), lambda s: s.pop("streams")])
def test_an_unknown_or_missing_section_is_corrupt(checkpoint, change):
    lie(checkpoint, lambda document: change(document["sections"]))
    refused(checkpoint, CorruptCheckpoint, entry="sections")


@pytest.mark.parametrize("strides", [[1, 1], [2, 1], [1, 2]])
def test_strides_over_which_elements_share_memory_are_refused(strides):
    assert layout_problem((3, 3), tuple(strides), 4) == "elements share memory"
    assert layout_problem((3, 3), (3, 1), 4) is None
    assert layout_problem((3, 1, 3), (0, 0, 1), 4) is None
