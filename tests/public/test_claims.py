"""Every claim names a test or a command: those that README and docs name exist, and links lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_a_page_names_exists(page):
    for name in re.findall(r"`(tests/[\w/.]+)`", page.read_text()):
        path = ROOT / name
        assert any(path.rglob("*")) if path.is_dir() else path.exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_function_that_a_page_names_is_in_its_file(page):
    for name, function in re.findall(r"`(tests/[\w/.]+)::(\w+)`", page.read_text()):
        assert f"def {function}(" in (ROOT / name).read_text(), f"{page.name} names {name}::{function}"


def test_the_table_of_behaviours_has_a_test_for_each():
    rows = re.findall(
        r"^\| (\d+) \|.*`tests/[\w/.]+::test_\w+`",
        (ROOT / "docs/explanation/behaviours.md").read_text(),
        re.MULTILINE,
    )
    numbers = [*range(1, 16), *range(17, 85), *range(96, 100)]
    assert sorted(int(number) for number in rows) == numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_case_that_a_page_names_has_a_test(page):
    tests = "\n".join(path.read_text().lower() for path in (ROOT / "tests" / "cases").glob("test_*.py"))
    for group in re.findall(r"\((B\d+(?:, B\d+)*)\)", page.read_text()):
        for case in group.split(", "):
            assert f"test_{case.lower()}" in tests, f"{page.name} names {case}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_page_names_exists(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in re.findall(r"`make ([a-z ]+)`", page.read_text()):
        assert set(command.split()) <= targets, f"{page.name} names make {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
