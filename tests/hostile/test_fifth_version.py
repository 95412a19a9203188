"""Checkpoints that lie about what version 5 of the format added: private streams, extra state, settings of modules."""

import pytest

from segue._store.archive import write_checkpoint
from segue.errors import CorruptCheckpoint
from tests._store.records import fifth_version
from tests.hostile.lies import at, lie, refused

MODEL = ("sections", "model", "dict")
DROP = (*MODEL, "settings", "dict", "drop", "dict")
STREAMS = ("sections", "private_streams")
NOISE = (*STREAMS, "dict", "model.noise", "dict")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("honest") / "checkpoint"
    write_checkpoint(fifth_version(1), path)
    return path


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_older_version_that_needs_5_is_refused(version, checkpoint):
    lie(checkpoint, lambda document: document.update(version=version))
    refused(checkpoint, CorruptCheckpoint, match="claims an older version")


def put(path, **values):
    return lambda document: at(document, path).update(values)


def without(path, name):
    return lambda document: at(document, path).pop(name)


LIES = {
    "streams that are a list": put(("sections",), private_streams=[1]),
    "streams that say nothing": put(("sections",), private_streams=None),
    "no stream at all": put(STREAMS, dict={}),
    "a stream without a path": put((*STREAMS, "dict"), **{"": {"dict": {"kind": "x", "state": 1, "aliases": []}}}),
    "a stream that is a number": put((*STREAMS, "dict"), more=3),
    "a stream of no kind": without(NOISE, "kind"),
    "a stream without a state": without(NOISE, "state"),
    "a stream of more than it has": put(NOISE, code="os.system"),
    "a kind that is a number": put(NOISE, kind=3),
    "aliases that are a tuple": put(NOISE, aliases={"tuple": ["a"]}),
    "an alias that is a number": put(NOISE, aliases=[1]),
    "an alias twice": put(NOISE, aliases=["a", "a"]),
    "an alias of itself": put(NOISE, aliases=["model.noise"]),
    "an alias that is another stream": put(NOISE, aliases=["component.aug.rng"]),
    "settings that are a list": put(MODEL, settings=[1]),
    "settings of nobody": put(MODEL, settings={"dict": {}}),
    "settings without a class": without(DROP, "class"),
    "settings of more than there is": put(DROP, code="os.system"),
    "values that are a list": put(DROP, values=[1]),
    "a value under a private name": put(DROP, values={"dict": {"p": 0.1, "_forward_hooks": 1}}),
    "a value under a method's place": put(DROP, values={"dict": {"p": 0.1, "a.b": 1}}),
    "asked for what has no value": put(DROP, asked={"dict": {"other": 1}}),
    "extra state that is a list": put(MODEL, extra=[1]),
    "extra state of nobody": put(MODEL, extra={"dict": {}}),
    "extra state by numbers": put(MODEL, extra={"map": [[1, 2]]}),
}  # fmt: skip


@pytest.mark.parametrize("what", LIES)
def test_a_lie_about_it_is_refused(what, checkpoint):
    lie(checkpoint, LIES[what])
    refused(checkpoint, CorruptCheckpoint)
