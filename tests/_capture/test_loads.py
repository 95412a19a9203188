"""What code reads of its variables is found in its bytecode, whatever the version of Python makes of it."""

import pytest

from segue._capture.loads import Read, reads_of


def shown(read: Read) -> list[str]:
    """Every part that is read whole, as a path."""
    found = ["*"] if read.is_whole else []
    for step, inner in read.steps.items():
        text = {"attribute": f".{step.key}", "entry": f"[{step.key!r}]", "length": "len"}[step.kind]
        found += [text + (path if path != "*" else "") for path in shown(inner)]
    return sorted(found)


def reads(source, setting=""):
    space = {}
    lines = [f"    {line}" for line in [*filter(None, setting.split("\n")), f"f = {source}", "return f"]]
    exec("\n".join(["def outer():", *lines]), space)
    found = reads_of(space["outer"]().__code__)
    told = {**found.names, **found.variables}
    return {name: shown(read) for name, read in told.items()}


# Source, and what of each name it reads.
OF_GLOBALS = [
    ("lambda e: WARMUP", {"WARMUP": ["*"]}),
    ("lambda e: args.warmup", {"args": [".warmup"]}),
    ("lambda e: cfg.optim.warmup + cfg.optim.total", {"cfg": [".optim.total", ".optim.warmup"]}),
    ("lambda e: cfg.optim.warmup if cfg.optim else 1", {"cfg": [".optim", ".optim.warmup"]}),
    ("lambda e: box['cap']", {"box": ["['cap']"]}),
    ("lambda e: box['a']['b'].c[0]", {"box": ["['a']['b'].c[0]"]}),
    ("lambda e: box[e]", {"box": ["*"], "e": ["*"]}),
    ("lambda e: box['a' if e else 'b']", {"box": ["*"], "e": ["*"]}),
    ("lambda e: args.get('warmup')", {"args": [".get"]}),
    ("lambda e: math.cos(1)", {"math": [".cos"]}),
    ("lambda e: helper(args)", {"helper": ["*"], "args": ["*"]}),
    ("lambda e: (args if e else cfg).warmup", {"cfg": [".warmup"], "e": ["*"]}),
    ("lambda e: [args.warmup for _ in range(3)]", {"args": [".warmup"], "range": ["*"]}),
    ("lambda e: (lambda: args.warmup)()", {"args": [".warmup"]}),
    ("lambda e: [x for x in milestones]", {"milestones": ["*"]}),
    ("lambda e: args.a and args.b or args.c", {"args": [".a", ".b", ".c"]}),
    ("lambda e: f'{args.name}'", {"args": [".name"]}),
    ("lambda e: args == other", {"args": ["*"], "other": ["*"]}),
    ("lambda e: box[1:2]", {"box": ["*"]}),
    ("lambda e: e / len(data)", {"data": ["len"]}),
    ("lambda e: e / len(cfg.data['a'])", {"cfg": [".data['a']len"]}),
    ("lambda e: len(data, e)", {"data": ["*"], "e": ["*"]}),
    ("lambda e: len(f(data))", {"data": ["*"], "f": ["*"]}),
    ("lambda e: len(data) + data[0]", {"data": ["[0]", "len"]}),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), OF_GLOBALS, ids=[source for source, _ in OF_GLOBALS])
def test_of_a_global_only_what_is_read_is_told(source, expected):
    found = reads(source)
    assert {name: found.get(name) for name in expected} == expected


OF_CELLS = [
    ("lambda e: cap", "cap = 1", {"cap": ["*"]}),
    ("lambda e: box['cap']", "box = {}", {"box": ["['cap']"]}),
    ("lambda e: args.warmup", "args = None", {"args": [".warmup"]}),
    ("lambda e: (lambda: args.warmup + args.total)()", "args = None", {"args": [".total", ".warmup"]}),
    ("lambda e: [args.warmup for _ in (1, 2)]", "args = None", {"args": [".warmup"]}),
    ("lambda e: [[box['a'] for _ in (1,)] for _ in (1,)]", "box = {}", {"box": ["['a']"]}),
    ("lambda e: {k: args for k in (1,)}", "args = None", {"args": ["*"]}),
    ("lambda e: (lambda args: args.inner)(args.outer)", "args = None", {"args": [".outer"]}),
]


@pytest.mark.parametrize(("source", "setting", "expected"), OF_CELLS, ids=[each[0] for each in OF_CELLS])
def test_of_a_closed_over_variable_likewise(source, setting, expected):
    found = reads(source, setting)
    assert {name: found.get(name) for name in expected} == expected


OF_ARGUMENTS = [
    ("lambda e, args=None: args.warmup / e", {"args": [".warmup"], "e": ["*"]}),
    ("lambda e, box=None: box['cap']", {"box": ["['cap']"]}),
    ("lambda e, a=None: (a, e)", {"a": ["*"], "e": ["*"]}),
    ("lambda e, a=None: (e, a.b)", {"a": [".b"], "e": ["*"]}),
    ("lambda self, e: self.cap * self.scale(e)", {"self": [".cap", ".scale"], "e": ["*"]}),
    ("lambda self, e: (lambda: self.cap)()", {"self": [".cap"]}),
    ("lambda self, e: [self.cap for _ in (1,)]", {"self": [".cap"]}),
]


@pytest.mark.parametrize(("source", "expected"), OF_ARGUMENTS, ids=[source for source, _ in OF_ARGUMENTS])
def test_of_an_argument_likewise(source, expected):
    found = reads(source)
    assert {name: found.get(name) for name in expected} == expected


def test_what_is_written_too_is_read_whole():
    setting = "\n".join(["def g(e):", "    args.count += 1", "    box['n'] += 1", "    return args.count"])
    found = reads("g", setting)
    assert "*" in found["args"]
    assert "*" in found["box"]


def test_a_class_within_a_function_reads_globals_too():
    setting = "\n".join(
        ["def g(e):", "    class Inner:", "        cap = CAP", "        end = args.end", "    return Inner"]
    )
    found = reads("g", setting)
    assert found["CAP"] == ["*"]
    assert found["args"] == [".end"]


def test_many_constants_and_names_make_no_difference():
    names = " + ".join(f"a{index}.b{index}" for index in range(300))
    found = reads(f"lambda e: {names}")
    assert all(found[f"a{index}"] == [f".b{index}"] for index in range(300))
