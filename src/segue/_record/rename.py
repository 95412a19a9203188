"""The same record under other names: for a module that was renamed on purpose."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from segue._record.base import BaseRecord
from segue._record.contract import Sharing, TrainableContract
from segue._record.private import renamed_streams
from segue._record.references import with_names
from segue._record.sections import ComponentRecord, ModuleRecord, OpaqueOptimizerRecord, OptimizerRecord
from segue._record.training import TrainingRecord
from segue._record.twins import without_common_end
from segue.errors import InvalidRecord

R = TypeVar("R", bound=TrainingRecord)


def renamed(record: R, names: Mapping[str, str]) -> R:
    """Return the record with parameters, buffers and submodules renamed wherever they occur.

    Args:
        record: Not changed.
        names: From the recorded name to the new one. The name of a submodule renames everything below it; the longest
            name that fits wins. What is in a component has the component's name before its own: `ema/module.head`.
            The whole model is `""`, and a whole component `ema/`: `{"inner": ""}` takes a wrapper of one's own away.

    Raises:
        InvalidRecord: If neither name of an entry is known, two tensors would get one name, or one would go to another
            component.
    """
    if not names:
        return record
    known = known_names(record)
    for old, new in names.items():
        # A program keeps its entry after the first resume; the records it writes then have the new name already.
        if old not in known and new not in known:
            raise InvalidRecord(
                "nothing in the record has this name", code="rename.unknown", where=f"rename {old}",
                hint="names are those without wrappers (compiled, data parallel, checkpointing, peft's), as `record.model.tensors` has them",
            )  # fmt: skip
    names = {old: new for old, new in names.items() if not _is_done(old, new, known)}
    scopes = _scopes(record, names)
    tables = {prefix: _table(_contract(record, prefix), names) for prefix, names in scopes.items()}
    table = {prefix + old: prefix + new for prefix, part in tables.items() for old, new in part.items()}
    return replace(
        record,
        model=_module(record.model, scopes[""], tables[""]),
        optimizers={
            name: _optimizer(optimizer, table, scopes) for name, optimizer in record.optimizers.items()
        },
        opaque_optimizers=None
        if record.opaque_optimizers is None
        else {
            name: _opaque(optimizer, table, scopes) for name, optimizer in record.opaque_optimizers.items()
        },
        components={
            name: _component(component, f"{name}/", scopes, tables)
            for name, component in record.components.items()
        },
        gradients=record.gradients.renamed(table),
        window=None
        if record.window is None
        else replace(
            record.window,
            sums=record.window.sums.renamed(table),
            handed_out=tuple(sorted(table.get(name, name) for name in record.window.handed_out)),
        ),
        private_streams=renamed_streams(record.private_streams, scopes),
    )


def renamed_module(record: ModuleRecord, names: Mapping[str, str]) -> ModuleRecord:
    """Return the record of a module alone with its tensors and submodules renamed; names are as in `renamed`."""
    names = _with_modules(names)
    return _module(record, names, _table(record.contract, names)) if names else record


def new_names(names: Iterable[str], entries: Mapping[str, str]) -> dict[str, str]:
    """Return what tensors are called after a rename, by what they were called before; those that move alone."""
    moved = {name: _new_name(name, entries) for name in names}
    return {old: new for old, new in moved.items() if old != new}


def renamed_optimizer(record: OptimizerRecord, entries: Mapping[str, str]) -> OptimizerRecord:
    """Return the record of an optimizer alone with its parameters renamed; entries are as in `renamed`."""
    names = {*record.state, *(name for group in record.groups for name in group.parameters)}
    return _optimizer(record, new_names(names, entries), {"": entries}) if entries else record


def names_around(names: Iterable[str]) -> set[str]:
    """Return names, and those of all that they lie in."""
    return {outer for name in names for outer in _outwards(name)}


def names_in(record: ModuleRecord) -> set[str]:
    """Return what a module's tensors and submodules are called, all that these lie in, and the whole of it."""
    return {"", *_names_in(record)}


def _contract(record: TrainingRecord, prefix: str) -> TrainableContract:
    return _modules(record)[prefix].contract


def _modules(record: TrainingRecord) -> dict[str, ModuleRecord]:
    """Return every recorded module by what stands before the names of its tensors."""
    components = {f"{name}/": item.module for name, item in record.components.items()}
    return {"": record.model, **{name: module for name, module in components.items() if module is not None}}


def _scopes(record: TrainingRecord, names: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Divide entries among the modules whose tensors they name, and add the submodules that they imply."""
    modules = _modules(record)
    scopes: dict[str, dict[str, str]] = {prefix: {} for prefix in modules}
    model = _names_in(record.model)
    for old, new in names.items():
        prefix = old[: old.find("/") + 1]
        if old in model or prefix not in modules:
            prefix = ""
        if not new.startswith(prefix):
            raise InvalidRecord(
                "a name is in another component", code="rename.component", where=f"rename {old}", expected=prefix,
                found=new,
            )  # fmt: skip
        scopes[prefix][old.removeprefix(prefix)] = new.removeprefix(prefix)
    return {prefix: _with_modules(part) for prefix, part in scopes.items()}


def _with_modules(names: Mapping[str, str]) -> dict[str, str]:
    """Add the submodules that an entry for a tensor implies: `{"a.weight": "b.weight"}` renames `a` to `b` as well."""
    implied = {}
    for old, new in names.items():
        shorter = without_common_end(old, new)
        if all(shorter):
            implied[shorter[0]] = shorter[1]
    return {**implied, **names}


def _is_done(old: str, new: str, known: Collection[str]) -> bool:
    """Tell whether all that would go deeper, as by `{"": "inner"}`, is there already."""
    inside = _below(old)
    if old == new or not new.startswith(inside):
        return False
    others = (name for name in known if name.startswith(inside) and name != old)
    return all(name == new or name.startswith(_below(new)) or new.startswith(f"{name}.") for name in others)


def _below(name: str) -> str:
    """Return what the names of all in a module begin with; the whole of a component is `ema/`."""
    return f"{name}." if name and not name.endswith("/") else name


def known_names(record: TrainingRecord) -> set[str]:
    """Return what tensors and submodules are called, all that these lie in, and the whole of each module."""
    return {prefix + name for prefix, module in _modules(record).items() for name in names_in(module)}


def _names_in(record: ModuleRecord) -> set[str]:
    return names_around([*record.contract.tensors, *record.training, *_aliases(record.contract)])


def _outwards(name: str) -> Iterator[str]:
    """Yield a name, and those of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _aliases(contract: TrainableContract) -> list[str]:
    return [name for sharing in contract.sharing for name in sharing.members]


def _new_name(name: str, names: Mapping[str, str]) -> str:
    for old in (*_outwards(name), ""):
        if old in names:
            return ".".join(filter(None, (names[old], name[len(old) :].removeprefix("."))))
    return name


def _new_modes(
    modes: Mapping[str, bool], tensors: Collection[str], names: Mapping[str, str]
) -> dict[str, bool]:
    """Rename the modules that have modes.

    Those between an old place and a new one further out go, but for what else they hold; those between an old place
    and a new one further in come, and are as the module that went there.
    """
    moved = {path: _new_name(path, names) for path in modes}
    emptied = dict(_between((old, new) for old, new in names.items()))
    found = {new: modes[path] for path, new in moved.items() if path not in emptied}
    held = [*found, *tensors]
    for path in emptied.keys() & modes.keys():
        if any(name.startswith(_below(path)) for name in held):
            found.setdefault(path, modes[path])
    for path, old in _between((new, old) for old, new in names.items()):
        if old in modes:
            found.setdefault(path, modes[old])
    return found


def _between(places: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the modules around an inner place, up to the outer one, each with the outer; nothing for places beside each other."""
    for inner, outer in places:
        if inner != outer and inner.startswith(_below(outer)):
            for path in (*[*_outwards(inner)][1:], ""):
                if path == outer or path.startswith(_below(outer)):
                    yield path, outer


def _table(contract: TrainableContract, names: Mapping[str, str]) -> dict[str, str]:
    """Map canonical names to canonical names: a tied tensor is called by the first of its *new* names."""
    table = {name: _new_name(name, names) for name in contract.tensors}
    for sharing in contract.sharing:
        if sharing.tied:
            table[min(sharing.members)] = min(_new_name(name, names) for name in sharing.members)
    if len(set(table.values())) != len(table):
        raise InvalidRecord(
            "two tensors would get one name", code="rename.collision", found=sorted(names.values())
        )
    return table


def _module(record: ModuleRecord, names: Mapping[str, str], table: Mapping[str, str]) -> ModuleRecord:
    contract = record.contract
    sharing = [replace(item, members=_members(item, names)) for item in contract.sharing]
    return ModuleRecord(
        dict(sorted((table[name], tensor) for name, tensor in record.tensors.items())),
        _new_modes(record.training, table.values(), names),
        TrainableContract(
            dict(sorted((table[name], spec) for name, spec in contract.tensors.items())),
            tuple(sorted(sharing, key=lambda item: sorted(item.members))),
            tuple(table[name] for name in contract.order),
            dict(sorted((table[name], spec) for name, spec in contract.bound.items())),
        ),
        _base(record.base, table),
        _by_path(record.configuration, names),
        _by_path(record.extra, names),
        _by_path(record.settings, names),
    )


def _by_path(trees: Any, names: Mapping[str, str]) -> Any:
    return None if trees is None else {_new_name(path, names): tree for path, tree in trees.items()}


def _base(base: BaseRecord | None, table: Mapping[str, str]) -> BaseRecord | None:
    if base is None:
        return None
    return replace(base, omitted=dict(sorted((table[name], digest) for name, digest in base.omitted.items())))


def _members(sharing: Sharing, names: Mapping[str, str]) -> dict[str, int]:
    return dict(sorted((_new_name(name, names), offset) for name, offset in sharing.members.items()))


def _optimizer(
    record: OptimizerRecord, table: Mapping[str, str], scopes: Mapping[str, Mapping[str, str]]
) -> OptimizerRecord:
    groups = tuple(
        replace(group, parameters=tuple(table.get(name, name) for name in group.parameters))
        for group in record.groups
    )
    state = {table.get(name, name): slots for name, slots in record.state.items()}
    return replace(
        record, groups=groups, state=state, attributes=_attributes(record.attributes, table, scopes)
    )


def _opaque(
    record: OpaqueOptimizerRecord, table: Mapping[str, str], scopes: Mapping[str, Mapping[str, str]]
) -> OpaqueOptimizerRecord:
    groups = record.groups
    if groups is not None:
        groups = tuple(tuple(table.get(name, name) for name in group) for group in groups)
    return replace(record, groups=groups, attributes=_attributes(record.attributes, table, scopes))


def _attributes(attributes: Any, table: Mapping[str, str], scopes: Mapping[str, Mapping[str, str]]) -> Any:
    """Rename the parameters and modules that attributes of an optimizer point to."""

    def new_name(word: str) -> str:
        for prefix, names in scopes.items():
            around = f"component.{prefix.removesuffix('/')}." if prefix else "model."
            if word.startswith(around):
                return around + _new_name(word.removeprefix(around), names)
        return table.get(word, word)

    return with_names(attributes, new_name)


def _component(
    record: ComponentRecord,
    prefix: str,
    scopes: Mapping[str, Mapping[str, str]],
    tables: Mapping[str, Mapping[str, str]],
) -> ComponentRecord:
    """Rename the tensors of a component, and what it shares with the model or another."""
    if record.module is None:
        return record
    module = record.module
    if scopes[prefix]:
        module = _module(module, scopes[prefix], tables[prefix])
    if record.tree is None:
        return replace(record, module=module)
    shares = {}
    for own, share in record.tree["shares"].items():
        scope, name = share["with"]
        other = "" if scope == "model" else scope.removeprefix("component.") + "/"
        with_other = (scope, _of_tensor_or_part(name, tables.get(other, {})))
        shares[_of_tensor_or_part(own, tables[prefix])] = {**share, "with": with_other}
    return replace(record, module=module, tree={"shares": dict(sorted(shares.items()))})


def _of_tensor_or_part(name: str, table: Mapping[str, str]) -> str:
    """Rename a tensor, or a part of one: `name.part`, where the parts may have parts."""
    whole = name
    while whole and whole not in table:
        whole = whole.rpartition(".")[0]
    return table.get(whole, whole) + name[len(whole) :]
