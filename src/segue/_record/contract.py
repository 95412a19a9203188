"""The trainable contract: what must be equal for pending gradients and optimizer state to mean the same.

No values; names, alias groups, logical shapes, dtypes, strides. A name is the identity of a parameter,
its position never is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from segue._record.parametrized import parametrization_findings
from segue._record.parts import PartsSpec, class_of
from segue._record.structure import added
from segue._record.twins import Twins, without_common_end
from segue.errors import ContractMismatch, Finding, InvalidRecord, some

_MAX_ELEMENTS = 2**58
"""Sizes of 0 aside. Of the largest elements, 16 bytes, that is as much as a checkpoint may say it has."""


@dataclass(frozen=True)
class TensorSpec:
    """What a parameter or buffer is, without its values."""

    kind: str
    """`parameter`, `buffer`, or `transient` for a buffer that is in no state dict."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str
    requires_grad: bool
    grad_dtype: str | None
    """The dtype its gradient may have, where the caller set one that differs from its own (`grad_dtype`)."""
    parts: PartsSpec | None = added(since=2)
    """What it consists of, where it is of a tensor subclass such as torchao's; `None` for a plain tensor."""

    def __post_init__(self) -> None:
        """Refuse a shape that no tensor has: a record without values has nothing else to compare it with."""
        if any(size < 0 for size in self.shape) or math.prod(filter(None, self.shape)) >= _MAX_ELEMENTS:
            raise InvalidRecord("no tensor has this shape", code="record.layout", found=self.shape)


@dataclass(frozen=True)
class Sharing:
    """One alias of a tensor, or several registered tensors that lie in one storage."""

    members: Mapping[str, int]
    """Offset in bytes of each name, relative to the first; equal layouts at offset 0 are the same tensor."""
    tied: bool
    """Whether all names are one object."""


@dataclass(frozen=True)
class TrainableContract:
    """Everything about the registered tensors of one module that isn't their values.

    The distinct trainable parameters are the contract of the seeds; frozen parameters and buffers stand beside
    them, marked, since a full record restores those too.
    """

    tensors: Mapping[str, TensorSpec | None]
    """By canonical name, sorted; the first name of each alias group. `None` for a registered buffer that is `None`."""
    sharing: tuple[Sharing, ...]
    """Groups of two or more names in one storage, sorted by first name."""
    order: tuple[str, ...]
    """The distinct parameters as the module iterates them: norms over `parameters()` add up in this order."""
    bound: Mapping[str, TensorSpec | None] = field(default_factory=dict)
    """How tensors were when the program first bound the module, where that differs: a buffer that a forward has
    replaced, a parameter that was frozen as it trained. An unchanged program builds them so again."""

    @property
    def trainable(self) -> list[str]:
        """The names of the distinct trainable parameters, sorted."""
        return [name for name, spec in self.tensors.items() if spec is not None and spec.requires_grad]

    def trainable_part(self) -> TrainableContract:
        """Return the contract of the distinct trainable parameters alone: that of the seeds.

        Whoever restores the model answers for its frozen parameters and buffers.
        """
        names = set(self.trainable)
        sharing = []
        for group in self.sharing:
            members = (
                group.members
                if group.tied
                else {name: at for name, at in group.members.items() if name in names}
            )
            if len(members) > 1 and names & members.keys():
                sharing.append(replace(group, members=members))
        return TrainableContract(
            {name: spec for name, spec in self.tensors.items() if name in names},
            tuple(sharing),
            tuple(name for name in self.order if name in names),
        )

    def differences(self, found: TrainableContract, scope: str) -> Iterator[Finding]:
        """Yield what differs between this contract, of the record, and `found`, of the live module.

        Args:
            found: The contract of the live module.
            scope: What the tensors belong to, for codes: `model` or `component.<name>`.
        """
        # What is missing first: its hint tells of a rename, and the rest follows from that.
        gone, new = self.tensors.keys() - found.tensors.keys(), found.tensors.keys() - self.tensors.keys()
        findings, told = parametrization_findings(self.tensors, found.tensors, scope)
        yield from findings
        gone, new = gone - told, new - told
        aliases, recorded_aliases = found._names(), self._names()
        kinds = {name: _kind_of(found.tensors[name]) for name in new if found.tensors[name] is not None}
        twins = Twins(kinds if gone else {})
        for name in sorted(gone):
            yield self._missing(name, aliases, twins, found.tensors.keys(), scope)
        for name in sorted(new):
            yield found._extra(name, recorded_aliases, scope)
        for name in sorted(self.tensors.keys() & found.tensors.keys()):
            yield from self._differences_of(name, found._as_built(name), scope)
        yield from self._sharing_differences(found, scope)
        yield from self._order_difference(found, scope)

    def _differences_of(self, name: str, live: TensorSpec | None, scope: str) -> Iterator[Finding]:
        """Compare one tensor, unless it is as it was when the recorded program began."""
        recorded = self.tensors[name]
        if not (name in self.bound and _may_have_become(self.bound[name], live, recorded)):
            yield from _spec_differences(name, recorded, live, scope)

    def _as_built(self, name: str) -> TensorSpec | None:
        """Return a live tensor as the program laid it out: what came since doesn't hinder an older record."""
        live, bound = self.tensors[name], self.bound.get(name)
        if live is None or bound is None or not _is_laid_out_by_its_owner(live) or live.shape != bound.shape:
            return live
        return replace(live, strides=bound.strides)

    def _order_difference(self, found: TrainableContract, scope: str) -> Iterator[Finding]:
        """Compare the order of what is trained on both sides: nothing is added up over the rest.

        A parametrization that a forward puts on and takes off (peft's `target_parameters`) moves a frozen weight behind
        its bias (torch 2.13).
        """
        both = set(self.order) & set(found.order)
        before, now = (
            [name for name in order if name in both and self._trains(name, found)]
            for order in (self.order, found.order)
        )
        if before == now:
            return
        yield Finding(
            ContractMismatch,
            f"{scope}.order",
            "the parameters are declared in another order",
            f"{scope} {moved(before, now)}",
            before,
            now,
            "global norms add up in this order, so the last bits may differ",
            admissible=True,
        )

    def _trains(self, name: str, found: TrainableContract) -> bool:
        specs = self.tensors.get(name), found.tensors.get(name)
        return any(spec is not None and spec.requires_grad for spec in specs)

    def _names(self) -> dict[str, Sharing]:
        return {name: sharing for sharing in self.sharing for name in sharing.members}

    def _known_names(self) -> set[str]:
        return {*self.tensors, *self._names()}

    def _missing(
        self, name: str, aliases: Mapping[str, Sharing], twins: Twins, found: Collection[str], scope: str
    ) -> Finding:
        alias = aliases.get(name)
        hint = None
        if alias is not None:
            hint = f"in the program it is an alias of {next(iter(alias.members))}"
        else:
            hint = self._rename_hint(name, twins, found, scope)
        kind = getattr(self.tensors[name], "kind", "buffer")
        return Finding(
            ContractMismatch, f"{scope}.missing.{name}", f"a {kind} of the record is missing in the program",
            f"{scope} {name}", _summary(self.tensors[name]), "absent", hint, admissible=alias is None,
            when_accepted="leaves it out",
        )  # fmt: skip

    def _rename_hint(self, name: str, twins: Twins, found: Collection[str], scope: str) -> str | None:
        """Propose the entry of `rename=` that would bring this name to a new tensor of its kind and shape."""
        twin = twins.closest(name, _kind_of(self.tensors[name]))
        if twin is None:
            return None
        old, new = without_common_end(name, twin)
        # All of it moved, into a module or out of one: a wrapper of the program's own, say.
        as_one = (old and new) or not self.tensors.keys() & found
        entry = {old: new} if as_one else {name: twin}
        # What is in a component has its name before its own.
        [(old, new)] = [(_in_scope(old, scope), _in_scope(new, scope)) for old, new in entry.items()]
        return f'was it renamed? then resume(rename={{"{old}": "{new}"}}) tells so'

    def _extra(self, name: str, recorded_aliases: Mapping[str, Sharing], scope: str) -> Finding:
        kind = getattr(self.tensors[name], "kind", "buffer")
        alias = recorded_aliases.get(name)
        hint = None if alias is None else f"in the record it is an alias of {next(iter(alias.members))}"
        return Finding(
            ContractMismatch, f"{scope}.extra.{name}", f"a {kind} of the program is not in the record",
            f"{scope} {name}", "absent", _summary(self.tensors[name]), hint, admissible=alias is None,
        )  # fmt: skip

    def _sharing_differences(self, found: TrainableContract, scope: str) -> Iterator[Finding]:
        if self.sharing == found.sharing:
            return
        ours = {frozenset(sharing.members): sharing for sharing in self.sharing}
        theirs = {frozenset(sharing.members): sharing for sharing in found.sharing}
        known_here, known_there = self._known_names(), found._known_names()
        for members in sorted(ours.keys() | theirs.keys(), key=sorted):
            left, right = ours.get(members), theirs.get(members)
            # Of tensors that the other side does not have at all, or parts of them, it is told of each already.
            known = known_there if left else known_here
            if left == right or not any(
                name in known or name.rpartition(".")[0] in known for name in members
            ):
                continue
            names = ", ".join(sorted(members))
            yield Finding(
                ContractMismatch, f"{scope}.tied.{min(members)}", "parameters or buffers share memory differently",
                f"{scope} {names}", _sharing_summary(left), _sharing_summary(right),
                "build the model with the same ties and views as when it was captured",
            )  # fmt: skip


def _in_scope(name: str, scope: str) -> str:
    _, found, component = scope.partition("component.")
    return f"{component}/{name}" if found else name


def moved(before: Sequence[str], after: Sequence[str]) -> str:
    """Name what stands at another position, at most five of them."""
    names = [name for name, other in zip(after, before, strict=False) if name != other]
    return some(names)


def _may_have_become(bound: TensorSpec | None, live: TensorSpec | None, recorded: TensorSpec | None) -> bool:
    """Tell whether a tensor of the program is how the recorded run began, and can be made what it has become.

    A buffer can become anything. Of a parameter only the trainable flag moves, since optimizers hold the object, and
    its layout: some optimizers lay out what they step by rows (bitsandbytes 0.50).
    """
    if live is not None and bound is not None:
        live = replace(live, device=bound.device)
    if live != bound:
        return False
    spec = bound or recorded
    if spec is not None and spec.kind == "parameter":
        if bound is None or recorded is None:
            return False
        strides = recorded.strides if _is_laid_out_by_its_owner(recorded) else bound.strides
        return (
            replace(bound, requires_grad=recorded.requires_grad, device=recorded.device, strides=strides)
            == recorded
        )
    return bound is None or recorded is None or bound.kind == recorded.kind


def _is_laid_out_by_its_owner(spec: TensorSpec) -> bool:
    return spec.kind == "parameter" and spec.parts is None


def _kind_of(spec: TensorSpec | None) -> Hashable:
    """Return what a tensor must have in common with one that is only called otherwise."""
    return spec and (spec.kind, spec.shape, spec.dtype, spec.parts is None)


def _summary(spec: TensorSpec | None) -> str:
    if spec is None:
        return "None"
    return f"{spec.dtype} {spec.shape}" + (f" in a {spec.parts.short_name}" if spec.parts else "")


def _sharing_summary(sharing: Sharing | None) -> str:
    if sharing is None:
        return "separate"
    return "one tensor" if sharing.tied else f"one storage, offsets {dict(sharing.members)}"


_ASPECTS = ("kind", "shape", "dtype", "strides", "requires_grad", "grad_dtype")


def _spec_differences(
    name: str, left: TensorSpec | None, right: TensorSpec | None, scope: str
) -> Iterator[Finding]:
    where = f"{scope} {name}"
    if left is None or right is None:
        if left is not right:
            yield Finding(
                ContractMismatch, f"{scope}.none.{name}", "a buffer is None on one side only",
                where, _summary(left), _summary(right),
            )  # fmt: skip
        return
    for aspect in _ASPECTS:
        before, now = getattr(left, aspect), getattr(right, aspect)
        if before == now or (aspect == "strides" and left.shape != right.shape):
            continue
        yield Finding(
            ContractMismatch,
            f"{scope}.{aspect}.{name}",
            _CLAUSES[aspect](before),
            where,
            before,
            now,
            _HINTS.get(aspect),
        )
    yield from _parts_differences(name, left.parts, right.parts, scope)


def _parts_differences(
    name: str, left: PartsSpec | None, right: PartsSpec | None, scope: str
) -> Iterator[Finding]:
    """Yield how the record's tensor subclass differs from the program's, one finding for each thing."""
    where = f"{scope} {name}"
    if left is None or right is None:
        if left is not right:
            what = "it is of a tensor subclass on one side only, and nothing is quantized or dequantized"
            code = f"{scope}.class.{name}"
            yield Finding(ContractMismatch, code, what, where, class_of(left), class_of(right))
        return
    for aspect, path, before, now in left.differences(right):
        place = ".".join((name, *path))
        yield Finding(
            ContractMismatch, f"{scope}.{aspect}.{place}", _PARTS_CLAUSES[aspect], " ".join((where, *path)),
            before, now,
        )  # fmt: skip


_PARTS_CLAUSES = {
    "class": "it is of another tensor subclass",
    "context": "how it is quantized differs, and nothing is requantized",
    "order": "its parts are in another order",
    "part": "a part of it is on one side only",
    "part_dtype": "a part of it has another dtype, and nothing is ever cast",
    "part_shape": "a part of it has another shape",
    "part_strides": "a part of it has another memory layout (strides)",
}


_CLAUSES: dict[str, Callable[[object], str]] = {
    "kind": lambda before: f"a {before} of the record is registered otherwise in the program",
    "shape": lambda before: "the shape differs",
    "dtype": lambda before: "the dtype differs, and nothing is ever cast",
    "strides": lambda before: "the memory layout (strides) differs",
    "requires_grad": lambda before: "newly frozen" if before else "newly trainable",
    "grad_dtype": lambda before: "the dtype of its gradient differs",
}
_HINTS = {
    "requires_grad": "freeze or unfreeze it as it was before resuming; `Checkpointer.newest()` tells how it was",
    "strides": "layout changes the last bits of norms and sums; build it in the same memory format",
}
