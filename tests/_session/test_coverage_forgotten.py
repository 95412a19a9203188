"""Whatever a program forgot to register is told by its name, with a line that works when it is pasted."""

import re
import warnings

import pytest

from segue.errors import UncoveredStateWarning
from tests._session.forgotten import FORGOTTEN, REGISTERED
from tests.cases.state import raw

CUT, END = 3, 7


def run(source, *calls):
    """Run a program as its own module, and return what each call of its main function returns, and what it was told."""
    records = []
    space = {"__name__": "program", "CUT": CUT, "RECORDS": records}
    exec(compile(source, "<program>", "exec"), space)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [
            raw(space["main"](*(records[-1] if each == "record" else each for each in call)))
            for call in calls
        ]
    return results, [str(each.message) for each in caught if each.category is UncoveredStateWarning]


def arguments(name, told=()):
    components = [REGISTERED[name]] if name in REGISTERED else []
    found = {"components": components, "optimizers": ['"optimizer": optimizer']}
    for argument, entries in told:
        if argument == "optimizers":
            found[argument] = [entries] if len(found[argument]) == 1 else [*found[argument], entries]
        else:
            found[argument].append(entries)
    return ", ".join(f"{argument}={{{', '.join(entries)}}}" for argument, entries in found.items())


def source_of(name, told=(), before="", over=None):
    forgotten = FORGOTTEN[name]
    text = forgotten.source(before, arguments(name, told))
    if not forgotten.steps.startswith("range"):
        loop = f"for i, batch in zip(range(first, last), {over or forgotten.steps}):"
        text = text.replace(f"for i in {forgotten.steps}:", loop)
    return text


def paths_in(message):
    return [path for line in re.findall(r"^  (\S.*?): ", message, re.MULTILINE) for path in line.split(", ")]


@pytest.mark.parametrize("name", FORGOTTEN)
def test_what_was_forgotten_is_told_by_its_name_once_and_matters(name):
    forgotten = FORGOTTEN[name]
    (whole, resumed), told = run(source_of(name), (0, END), (CUT, END, "record"))
    assert whole != resumed
    assert len(told) >= 1
    assert sorted(paths_in(told[0])) == sorted(forgotten.path.split(", "))
    for path in forgotten.path.split(", "):
        assert f'"{path}"' in told[0].partition("not_state=")[2]


@pytest.mark.parametrize("name", [name for name, each in FORGOTTEN.items() if each.is_pasted])
def test_the_line_that_is_told_registers_it_and_the_run_goes_on_exactly(name):
    _, (message, *_) = run(source_of(name), (0, END))
    told = re.findall(r"(components|optimizers)=\{(.*)\}", message)
    before = "\n".join(re.findall(r"(data = segue\.DataPosition\(\w+\))", message))
    over = "data" if before else None
    (whole, resumed), again = run(source_of(name, told, before, over), (0, END), (CUT, END, "record"))
    assert again == []
    assert whole == resumed


def test_there_are_many_kinds():
    assert len(FORGOTTEN) >= 40
