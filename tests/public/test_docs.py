"""Documents that run: every Python block after `<!-- run -->` is executed, and every other one at least parses."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]
MARKER = "<!-- run -->"
_BLOCK = re.compile(
    r"(?P<marker><!-- run -->[ \t]*\n\s*)?^```python[ \t]*\n(?P<code>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def blocks(text, name):
    """Yield name with line, code, and whether it is marked, for each Python block of a document."""
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        yield f"{name}:{line}", match["code"], match["marker"] is not None


ALL = [block for path in DOCUMENTS for block in blocks(path.read_text(), str(path.relative_to(ROOT)))]
MARKED = [(name, code) for name, code, marked in ALL if marked]


@pytest.mark.parametrize(("name", "code"), MARKED, ids=[name for name, _ in MARKED])
def test_a_marked_block_runs(name, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Blank lines before it, so that a traceback names the line of the document.
    path, _, line = name.rpartition(":")
    exec(compile("\n" * (int(line) - 1) + code, str(ROOT / path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name, code, _ in ALL], ids=[name for name, _, _ in ALL]
)
def test_every_python_block_parses(name, code):
    ast.parse(code)


def test_every_marker_stands_before_a_python_block():
    for path in DOCUMENTS:
        text = path.read_text()
        marked = sum(1 for _, _, is_marked in blocks(text, path.name) if is_marked)
        assert text.count(MARKER) == marked, path.name


def test_the_readme_runs_what_it_shows():
    assert any(name.startswith("README.md:") for name, _ in MARKED)


def test_links_to_files_of_the_repository_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name} -> {target}"


def test_blocks_are_found_with_and_without_a_marker():
    text = "a\n\n<!-- run -->\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n```console\n$ z\n```\n"
    assert list(blocks(text, "d")) == [("d:5", "x = 1\n", True), ("d:9", "y = 2\n", False)]
