"""What a function's code reads of its variables: found in its bytecode, without running it.

A function that is given a whole configuration reads two numbers of it. If every read of a variable goes on with an
attribute or an entry (`args.warmup`, `config["optim"]["warmup"]`), only these decide what it does, or the length alone
where it is only measured; a variable that is handed on, called or compared is read whole.

What it can't see: names that are put together as the code runs (`getattr`, `globals()`, `eval`), and what functions of
libraries read.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# The instructions of Python 3.11 to 3.14. An instruction that isn't among them reads a variable whole, which is safe.
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_CONSTANT = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
_NOTHING = frozenset({"EXTENDED_ARG", "NOP", "CACHE"})
_KEYS = (str, int, bool, float, bytes, tuple, type(None))


@dataclass(frozen=True)
class Step:
    """One step from a value to a part of it."""

    kind: Literal["attribute", "entry", "length"]
    key: Any = None


@dataclass
class Read:
    """What is read of a value: all of it, or parts."""

    is_whole: bool = False
    steps: dict[Step, Read] = field(default_factory=dict)

    def add(self, steps: tuple[Step, ...]) -> None:
        """Note that a part is read whole."""
        part = self
        for step in steps:
            part = part.steps.setdefault(step, Read())
        part.is_whole = True

    def update(self, other: Read) -> None:
        """Note all that another reads."""
        self.is_whole |= other.is_whole
        for step, inner in other.steps.items():
            self.steps.setdefault(step, Read()).update(inner)


WHOLE = Read(is_whole=True)


@dataclass(frozen=True)
class Reads:
    """What a code object reads, and the code objects in it: lambdas, comprehensions."""

    names: Mapping[str, Read]
    """Of globals."""
    variables: Mapping[str, Read]
    """Of closed-over variables and arguments."""


@functools.lru_cache(maxsize=1024)
def reads_of(code: types.CodeType) -> Reads:
    """Tell what a code object reads. The result is shared: not to be changed."""
    names: dict[str, Read] = {}
    variables: dict[str, Read] = {}
    instructions = [each for each in dis.get_instructions(code) if each.opname not in _NOTHING]
    for index, instruction in enumerate(instructions):
        if instruction.opname in _GLOBAL:
            _noted(names, instruction.argval).add(_steps_from(instructions, index + 1))
        elif instruction.opname in _CELL:
            _noted(variables, instruction.argval).add(_steps_from(instructions, index + 1))
        else:
            *others, last = _arguments(instruction, code)
            for name in filter(None, others):
                _noted(variables, name).add(())
            if last is not None:
                _noted(variables, last).add(_steps_from(instructions, index + 1))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found = reads_of(inner)
            _merge(names, found.names)
            _merge(variables, {name: found.variables.get(name, Read()) for name in inner.co_freevars})
    return Reads(names, variables)


def _noted(reads: dict[str, Read], name: str) -> Read:
    return reads.setdefault(name, Read())


def _merge(reads: dict[str, Read], others: Mapping[str, Read]) -> None:
    for name, other in others.items():
        _noted(reads, name).update(other)


def _arguments(instruction: dis.Instruction, code: types.CodeType) -> list[str | None]:
    """Return the local variables that an instruction loads, the one on top of the stack last; `[None]` for none.

    Some load two (Python 3.13). Cells are loaded as local variables too where they are only handed on to an inner
    function, which has its own reads of them.
    """
    name = instruction.opname
    if not name.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST")) or name == "LOAD_FAST_AND_CLEAR":
        return [None]
    found = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    loaded = found[1:] if name.startswith("STORE_FAST") else found
    cells = {*code.co_cellvars, *code.co_freevars}
    return [None if each in cells else each for each in loaded]


def _steps_from(instructions: list[dis.Instruction], index: int) -> tuple[Step, ...]:
    """Return the attributes and entries that directly follow a load, one within the other, and whether it is measured."""
    steps: list[Step] = []
    begin = index
    while True:
        following = instructions[index : index + 2]
        if following and following[0].opname in _ATTRIBUTE:
            steps.append(Step("attribute", following[0].argval))
            index += 1
        elif _is_measured(instructions, begin, index):
            return (*steps, Step("length"))
        elif len(following) == 2 and _is_key(following[0]) and _is_subscript(following[1]):
            steps.append(Step("entry", following[0].argval))
            index += 2
        else:
            return tuple(steps)


def _is_measured(instructions: list[dis.Instruction], begin: int, index: int) -> bool:
    """Tell whether `len` stands before a load, and is called with what it led to."""
    before = instructions[begin - 2] if begin >= 2 else None
    if before is None or before.opname not in _GLOBAL or before.argval != "len":
        return False
    calls = [each for each in instructions[index : index + 2] if each.opname != "PRECALL"]
    return bool(calls) and calls[0].opname == "CALL" and calls[0].arg == 1


def _is_key(instruction: dis.Instruction) -> bool:
    return instruction.opname in _CONSTANT and isinstance(instruction.argval, _KEYS)


def _is_subscript(instruction: dis.Instruction) -> bool:
    # The second from Python 3.14.
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"
    )
