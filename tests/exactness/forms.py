"""One net in every form that a program may give it: names, and every bit, are those of the plain one."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper, offload_wrapper
from torch.nn.parallel import DistributedDataParallel

WIDTH = 6


class Net(nn.Module):
    """Layers of which some are called as wrappers call what they wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(WIDTH, WIDTH)
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.LayerNorm(WIDTH))
        self._orig_mod = nn.Linear(WIDTH, WIDTH, bias=False)
        self.base_model = nn.ModuleDict({"model": nn.Linear(WIDTH, WIDTH)})
        self.head = nn.Linear(WIDTH, 2)
        self.register_buffer("scale", torch.rand(WIDTH))
        self.register_buffer("offset", torch.rand(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.module(x * self.scale + self.offset))
        hidden = self.base_model["model"](self._orig_mod(self.block(hidden)))
        return self.head(torch.relu(hidden))


class Pipeline(nn.Module):
    """Two nets, one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.cat([self.first(x), x[:, 2:]], 1))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


def replicated(module: nn.Module) -> nn.Module:
    return DistributedDataParallel(module)


class Replicated(DistributedDataParallel):
    """A subclass of a program's, as some libraries have one."""


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """A process group of one, which needs no launcher."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


Form = Callable[[nn.Module], nn.Module]

WRAPPERS: dict[str, Form] = {
    "plain": lambda module: module,
    "compiled": compiled,
    "compiled in place": compiled_in_place,
    "DDP": replicated,
    "a subclass of DDP": Replicated,
    "DataParallel": nn.DataParallel,
    "checkpointed": checkpoint_wrapper,
}


def outermost(*wrappers: str) -> Form:
    """Put wrappers around the whole of it, the first outermost."""
    return lambda module: functools.reduce(
        lambda inner, name: WRAPPERS[name](inner), reversed(wrappers), module
    )


def inside(**wrappers: str) -> Form:
    """Put wrappers around submodules of the first net."""

    def wrap(module: Pipeline) -> nn.Module:
        for path, name in wrappers.items():
            outer, _, own = ("first." + path.replace("__", ".")).rpartition(".")
            setattr(
                module.get_submodule(outer),
                own,
                WRAPPERS[name](module.first.get_submodule(path.replace("__", "."))),
            )
        return module

    return wrap


def half(name: str) -> Form:
    """Wrap the first net and leave the second plain."""

    def wrap(module: Pipeline) -> nn.Module:
        module.first = WRAPPERS[name](module.first)
        return module

    return wrap


FORMS: dict[str, Form] = {
    **{name: outermost(name) for name in WRAPPERS},
    "compiled DDP": outermost("compiled", "DDP"),
    "DDP of compiled": outermost("DDP", "compiled"),
    "compiled beside plain": half("compiled"),
    "checkpointed beside plain": half("checkpointed"),
    "layers checkpointed": inside(block="checkpointed", module="checkpointed"),
    "layers called like wrappers, wrapped": inside(module="compiled", _orig_mod="DataParallel", base_model__model="checkpointed"),
    "DDP of compiled of checkpointed": outermost("DDP", "compiled", "checkpointed"),
    "compiled of checkpointed of DataParallel": outermost("compiled", "checkpointed", "DataParallel"),
    "DDP around compiled around checkpointed layers": lambda module: replicated(compiled(inside(block="checkpointed")(module))),
}  # fmt: skip

COMPILED: dict[str, Form] = {
    "by inductor": torch.compile,
    "by inductor, DDP inside": lambda module: torch.compile(replicated(module)),
    "by inductor, one of two": lambda module: Pipeline(torch.compile(module.first), module.second),
    "by aot_eager": lambda module: torch.compile(module, backend="aot_eager"),
    "by aot_eager in place": lambda module: module.compile(backend="aot_eager") or module,
}
"""Forms that compute by other kernels than the plain one, and take a while to build them."""

ONLY_NAMED: dict[str, Form] = {"offloaded": offload_wrapper}
"""Forms whose forward needs an accelerator."""


def pipeline() -> Pipeline:
    return Pipeline(Net(), Net())


def in_form(name: str) -> nn.Module:
    """Build the two nets in a form."""
    return {**FORMS, **COMPILED, **ONLY_NAMED}[name](pipeline())


@functools.cache
def peft_and_config():
    from tests.adapters.libraries import peft

    return peft, {"r": 2, "lora_alpha": 3, "lora_dropout": 0.1, "target_modules": ["module", "0", "head"]}


def adapted() -> nn.Module:
    """Build the nets with adapters in peft's wrappers, beside a base that is the same in each process."""
    peft, config = peft_and_config()
    return peft.get_peft_model(same_base(), peft.LoraConfig(**config))


def injected() -> nn.Module:
    """Build the same with adapters in the layers, and no wrapper."""
    peft, config = peft_and_config()
    return peft.inject_adapter_in_model(peft.LoraConfig(**config), same_base())


def same_base() -> Pipeline:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pipeline()


def adapted_around(form: Form) -> nn.Module:
    peft, config = peft_and_config()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(form(same_base()), peft.LoraConfig(**config))


ADAPTED: dict[str, Callable[[], nn.Module]] = {
    "injected": injected,
    "in peft's wrappers": adapted,
    "its tuner": lambda: adapted().base_model,
    "compiled injected": lambda: compiled(injected()),
    "DDP of peft's": lambda: replicated(adapted()),
    "compiled of peft's": lambda: compiled(adapted()),
    "DDP of compiled of peft's": lambda: replicated(compiled(adapted())),
    "checkpointed of peft's": lambda: checkpoint_wrapper(adapted()),
    "peft's around compiled beside plain": lambda: adapted_around(half("compiled")),
    "checkpointed of peft's around compiled beside plain": lambda: checkpoint_wrapper(adapted_around(half("compiled"))),
}  # fmt: skip
"""Forms of the net with adapters, built whole."""
