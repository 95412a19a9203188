"""What `segue.stores` offers is documented, method by method."""

import inspect

import pytest

from segue import stores


@pytest.mark.parametrize("name", stores.__all__)
def test_every_public_name_says_what_it_is(name):
    value = getattr(stores, name)
    assert (inspect.getdoc(value) or "").split("\n\n")[0].rstrip().endswith(".")
    if inspect.isclass(value):
        methods = inspect.getmembers(value, inspect.isfunction)
        silent = [each for each, method in methods if not each.startswith("_") and not inspect.getdoc(method)]
        assert silent == []


def test_the_names_are_sorted():
    assert stores.__all__ == sorted(stores.__all__)


@pytest.mark.parametrize("method", ["acquire", "put", "candidates", "open", "summary", "remove"])
def test_every_method_of_a_store_says_what_it_raises(method):
    for store in (stores.Store, stores.DirectoryStore, stores.FileStore):
        assert "Raises:" in inspect.getdoc(getattr(store, method)), store


def test_a_url_says_which_store(tmp_path):
    kinds = {
        tmp_path / "a": stores.DirectoryStore,
        tmp_path / "a.segue": stores.FileStore,
        f"file://{tmp_path}/a.segue": stores.FileStore,
        "memory://a": stores.DirectoryStore,
        "memory://a.segue": stores.FileStore,
    }
    assert {url: type(stores.store_at(url)) for url in kinds} == kinds
