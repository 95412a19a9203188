"""Whatever a manifest, tree, header or tensor file becomes, reading it raises nothing but a `StoreError`."""

import copy
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from segue._store.archive import write_checkpoint
from segue.errors import StoreError
from tests._store.records import fifth_version, fourth_version, record, second_version, third_version
from tests.hostile.lies import lie, lie_in_bytes, lie_in_header, lie_in_state, manifest, read_all

NASTY = st.sampled_from(
    [None, True, False, 0, -1, 1.5, 2**53, 2**63, "", "x", "model/tensors/weight", "float32", "|O", [], {}, [[]], {"tuple": []},
     {"tensor": "model/tensors/weight"}, {"dict": {}}, {"subclass": [{"dict": {}}, {}]}, {"bytes": "AA=="}, {"array": ["a", "<f4", [1], "C"]}, "\x00", "é", "9" * 50]
)  # fmt: skip
TAGS = st.sampled_from(
    ["dict", "map", "ordered", "counter", "tuple", "set", "frozenset", "deque", "int", "float", "complex", "str", "bytes",
     "bytearray", "range", "dtype", "device", "size", "scalar", "array", "tensor", "sparse", "subclass", "quantized", "converted", "nonsense"]
)  # fmt: skip
TREES = st.recursive(
    NASTY,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TAGS, inner, max_size=2)
        | st.builds(lambda tag, body: {tag: body}, TAGS, inner)
    ),
    max_leaves=12,
)
quick = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def places(tree, path=()):
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def replaced(tree, path, value):
    if not path:
        return value
    tree = copy.copy(tree)
    tree[path[0]] = replaced(tree[path[0]], path[1:], value)
    return tree


@pytest.fixture(
    scope="module",
    params=[record, second_version, third_version, fourth_version, fifth_version],
    ids=["version 1", "version 2", "version 3", "version 4", "version 5"],
)
def spoiled(request, tmp_path_factory):
    honest = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(request.param(1), honest)
    path = tmp_path_factory.mktemp("fuzz") / "checkpoint"

    def fresh():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(honest, path)
        return path

    return fresh


def only_store_errors(path) -> None:
    try:
        read_all(path)
    except StoreError as error:
        str(error)


@quick
@given(data=st.data())
def test_any_part_of_a_manifest_replaced(spoiled, data):
    path = spoiled()
    document = manifest(path)
    place = data.draw(st.sampled_from(list(places(document))))
    changed = replaced(document, place, data.draw(TREES))
    lie_in_bytes(path, json.dumps(changed).encode())
    only_store_errors(path)


@quick
@given(tree=TREES)
def test_any_caller_tree(spoiled, tree):
    path = spoiled()
    state = json.loads((path / "state.json").read_text())
    lie_in_state(path, json.dumps(state | {"caller_state": tree}).encode())
    only_store_errors(path)


@quick
@given(data=st.data())
def test_any_part_of_a_header_replaced(spoiled, data):
    path = spoiled()

    def change(header):
        place = data.draw(st.sampled_from(list(places(header))[1:]))
        return json.dumps(replaced(header, place, data.draw(TREES))).encode()

    lie_in_header(path, change)
    only_store_errors(path)


@quick
@given(text=st.binary(max_size=200), where=st.integers(0, 3000), cut=st.integers(0, 50))
def test_any_bytes_anywhere_in_a_manifest(spoiled, text, where, cut):
    path = spoiled()
    document = (path / "manifest.json").read_bytes()
    lie_in_bytes(path, document[:where] + text + document[where + cut :])
    only_store_errors(path)


@quick
@given(
    changes=st.dictionaries(
        st.sampled_from(["model", "optimizers", "window", "environment", "lineage"]), TREES
    )
)
def test_any_sections(spoiled, changes):
    path = spoiled()
    lie(path, lambda document: document["sections"].update(changes))
    only_store_errors(path)
