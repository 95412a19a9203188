"""The walk over what registered objects hold: what it finds, under which path, and what it leaves alone."""

import collections
import dataclasses
import functools
import gc
import itertools
import random
import subprocess
import sys
import time
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import segue
from segue._capture.generators import is_generator
from segue._capture.reached import occurrences, reached


def generators(**roots):
    return {item.path: item.value for item in reached(roots) if is_generator(item.value)}


def paths(**roots):
    return list(generators(**roots))


class Box:
    def __init__(self, **held):
        vars(self).update(held)


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.noise = torch.Generator()


class Slots:
    __slots__ = ("__dict__", "_rng", "empty")

    def __init__(self, rng):
        self._rng = rng


class Derived(Slots):
    __slots__ = ("other",)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    rng: random.Random


Pair = collections.namedtuple("Pair", "left right")


def test_a_generator_is_found_wherever_an_object_holds_one():
    def closing(rng, *, other):
        def hook(*args, default=rng, **kwargs):
            return other

        return hook

    made = closing(random.Random(), other=random.Random())
    made.mark = random.Random()
    slots = Derived(random.Random())
    slots.other = random.Random()
    slots.free = random.Random()
    box = Box(
        plain=random.Random(), listed=[0, random.Random()], named={"left": random.Random(), 3: random.Random()},
        pair=Pair(random.Random(), 1), queue=collections.deque([random.Random()]), single={random.Random()},
        slots=slots, frozen=Frozen(random.Random()), space=types.SimpleNamespace(rng=random.Random()),
        partial=functools.partial(min, random.Random(), key=random.Random()), method=Box(rng=random.Random()).__init__,
        drawing=random.Random().random, hook=made, counted=collections.OrderedDict(a=random.Random()),
        factory=collections.defaultdict(functools.partial(min, random.Random())),
    )  # fmt: skip
    assert sorted(paths(component=box)) == [
        "component.counted['a']", "component.drawing.__self__", "component.factory.default_factory.args[0]",
        "component.frozen.rng", "component.hook.__closure__.other", "component.hook.__defaults__.default",
        "component.hook.mark", "component.listed[1]", "component.method.__self__.rng", "component.named['left']",
        "component.named[3]", "component.pair.left", "component.partial.args[0]", "component.partial.keywords['key']",
        "component.plain", "component.queue[0]", "component.single{}", "component.slots._rng", "component.slots.free",
        "component.slots.other", "component.space.rng",
    ]  # fmt: skip


def test_modules_have_canonical_paths_through_wrappers():
    model = nn.Sequential(Noise(), nn.DataParallel(Noise()), torch.compile(Noise(), backend="eager"))
    model.noises = [Noise(), Noise(), nn.DataParallel(Noise())]
    assert paths(model=nn.DataParallel(model)) == [
        "model.0.noise", "model.1.noise", "model.2.noise", "model.noises[0].noise", "model.noises[1].noise",
        "model.noises[2].noise",
    ]  # fmt: skip


def test_a_module_that_is_shared_is_entered_once_and_stands_at_all_its_places():
    shared = Noise()
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})
    assert paths(model=model) == ["model.a.noise"]
    assert [item.path for item in occurrences({"model": model}) if item.value is shared] == [
        "model.a",
        "model.b.0",
    ]


def test_hooks_of_modules_parameters_wrappers_and_optimizers_are_entered_by_position():
    def hook_of(rng):
        return lambda *args: rng and None

    model = nn.DataParallel(nn.Sequential(nn.Linear(2, 2)))
    model.register_forward_hook(hook_of(random.Random()))
    inner = model.module[0]
    inner.register_forward_hook(hook_of(None)).remove()  # so that the keys are no positions
    inner.register_forward_hook(hook_of(random.Random()))
    inner.register_forward_pre_hook(hook_of(random.Random()))
    inner.register_full_backward_hook(hook_of(random.Random()))
    inner.weight.register_hook(hook_of(random.Random()))
    inner.bias.register_post_accumulate_grad_hook(hook_of(random.Random()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    segue.Training(model, optimizer)  # adds hooks of its own
    optimizer.register_step_post_hook(hook_of(random.Random()))
    assert sorted(paths(model=model, optimizer=optimizer)) == [
        "model.0._backward_hooks[0].__closure__.rng", "model.0._forward_hooks[0].__closure__.rng",
        "model.0._forward_pre_hooks[0].__closure__.rng",
        "model.0.bias._post_accumulate_grad_hooks[0].__closure__.rng",
        "model.0.weight._backward_hooks[0].__closure__.rng", "model._forward_hooks[0].__closure__.rng",
        "optimizer._optimizer_step_post_hooks[0].__closure__.rng",
    ]  # fmt: skip


def test_a_function_under_a_decorator_of_a_library_is_entered():
    def noisy(rng):
        @torch.no_grad()
        def draw(x):
            return rng

        return draw

    assert paths(component=Box(draw=noisy(random.Random()))) == [
        "component.draw.__closure__.func.__closure__.rng"
    ]


def test_loaders_lead_to_samplers_and_datasets_but_not_into_a_pass_under_way():
    class Data(torch.utils.data.Dataset):
        def __init__(self):
            self.rng = np.random.default_rng(1)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    generator, data = torch.Generator(), Data()
    loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data, generator=generator), 2, False))
    assert paths(data=loader) == ["data.dataset.rng", "data.batch_sampler.sampler.generator"]
    shuffled = DataLoader(data, shuffle=True, generator=generator)
    begun = Box(loader=shuffled, under_way=iter(shuffled))
    assert [item.path for item in occurrences({"data": begun}) if item.value is generator] == [
        "data.loader.generator",
        "data.loader.sampler.generator",
    ]


def test_what_is_registered_by_state_of_stands_under_its_name():
    class Counter:
        rng = random.Random()

    held, module = {"rng": random.Random()}, types.ModuleType("noises")
    module.rng = random.Random()
    module.other = random.Random()
    roots = {
        "component.a": segue.StateOf(held),
        "component.b": segue.StateOf(module, "rng"),
        "component.c": segue.StateOf(Counter, "rng"),
    }
    assert paths(**roots) == ["component.b.rng", "component.c.rng", "component.a['rng']"]


def test_each_object_is_yielded_once_by_its_shortest_path_and_cycles_end():
    rng = random.Random()
    outer = Box(deep=Box(deep=Box(rng=rng)), rng=rng, items=[])
    outer.deep.back = outer
    outer.items.append(outer.items)
    found = list(reached({"component": outer}))
    assert [item.path for item in found if item.value is rng] == ["component.rng"]
    assert len({id(item.value) for item in found}) == len(found)
    [item] = [item for item in found if item.value is rng]
    assert (item.owner is outer, item.name) == (True, "rng")


def test_the_order_does_not_depend_on_when_attributes_were_set():
    a, b = random.Random(1), random.Random(2)
    assert paths(component=Box(a=a, b=b, d={"x": a, "y": b})) == paths(
        component=Box(d={"y": b, "x": a}, b=b, a=a)
    )


def test_a_new_process_finds_the_same_paths(tmp_path):
    script = tmp_path / "walk.py"
    script.write_text(
        "import random, sys\n"
        "from segue._capture.reached import reached\n"
        "class Box: pass\n"
        "box = Box()\n"
        "box.unordered = {random.Random() for _ in range(4)}\n"
        "for name in ('a', 'b', 'c'): setattr(box, name, {'x': [random.Random()], 'y': {1: random.Random()}})\n"
        "print([item.path for item in reached({'component': box})])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


class Touchy:
    """Has code wherever code can be asked."""

    def __init__(self):
        object.__setattr__(self, "rng", random.Random())

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")

    @property
    def computed(self):
        raise AssertionError("a property ran")

    def __iter__(self):
        raise AssertionError("iterated over")

    def __len__(self):
        raise AssertionError("asked for its length")

    def __eq__(self, other):
        raise AssertionError("compared")

    def __hash__(self):
        raise AssertionError("hashed")

    def __bool__(self):
        raise AssertionError("asked for its truth")

    def __repr__(self):
        raise AssertionError("shown")


class TouchyList(list):
    __len__ = __iter__ = __getitem__ = __bool__ = Touchy.__iter__


class TouchyDict(dict):
    __len__ = __iter__ = __getitem__ = __bool__ = items = keys = values = Touchy.__iter__


class TouchyMeta(type):
    def __getattribute__(cls, name):
        raise AssertionError(f"asked for {name} of a class")


def test_no_code_of_the_program_runs():
    strange = TouchyMeta("OfTouchyClass", (), {})()
    object.__setattr__(strange, "rng", random.Random())
    box = Box(a=Touchy(), b=TouchyList([random.Random()]), c=TouchyDict(x=random.Random()), d=strange)
    assert paths(component=box) == [
        "component.a.rng",
        "component.b[0]",
        "component.c['x']",
        "component.d.rng",
    ]


def test_proxies_and_what_belongs_to_the_process_are_not_asked():
    import logging
    import threading
    import weakref

    target = Box(rng=random.Random())
    box = Box(proxy=weakref.proxy(target), reference=weakref.ref(target), logger=logging.getLogger("x"),
              lock=threading.Lock(), thread=threading.current_thread(), module=np, cls=Box)  # fmt: skip
    assert paths(component=box) == []


def test_tensors_and_iterators_are_told_and_not_looked_into():
    tensor, iterator = torch.ones(2), itertools.count()
    generator = (each for each in [random.Random()])
    box = Box(tensor=tensor, iterator=iterator, generator=generator, array=np.ones(2), number=3, text="x")
    assert [item.path for item in reached({"component": box})] == [
        "component", "component.array", "component.generator", "component.iterator", "component.tensor",
    ]  # fmt: skip
    assert next(iterator) == 0


def test_nothing_is_changed_by_walking():
    model = nn.Sequential(Noise(), Noise())
    before = [dict(vars(module)) for module in model.modules()], torch.get_rng_state()
    list(reached({"model": model, "component": Box(items=[1, [2]])}))
    after = [dict(vars(module)) for module in model.modules()], torch.get_rng_state()
    assert before[0] == after[0]
    assert torch.equal(before[1], after[1])


def test_what_is_large_comes_last_and_is_cut():
    cut = []
    items = [Box(rng=random.Random()) for _ in range(3)] + [[0]] * 20_000
    box = Box(a=items, z=Box(z=Box(rng=random.Random())))
    found = [item for item in reached({"component": box}, cut=cut) if isinstance(item.value, random.Random)]
    assert [item.path for item in found] == [
        "component.z.z.rng", "component.a[0].rng", "component.a[1].rng", "component.a[2].rng",
    ]  # fmt: skip
    assert cut == ["component.a"]


def test_a_chain_without_end_is_cut():
    first = last = Box()
    for _ in range(1000):
        last.next = last = Box()
    cut = []
    assert len(list(reached({"component": first}, cut=cut))) < 100
    assert len(cut) == 1


def test_a_module_that_contains_itself_ends():
    module = nn.Module()
    module.noise = torch.Generator()
    module.register_module("again", module)
    assert paths(component=Box(module=module)) == ["component.module.noise"]


@pytest.mark.parametrize("value", [None, 3, "text", torch.ones(1), [], {}])
def test_a_root_may_be_anything(value):
    assert paths(component=value) == []


def test_five_thousand_modules_take_less_than_the_step_they_belong_to():
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.GELU(), nn.Identity()) for _ in range(1000)
    )
    assert len(list(layers.modules())) > 5000
    list(reached({"model": layers}))
    gc.collect()
    times = []
    for _ in range(5):
        before = time.process_time()
        found = sum(1 for _ in reached({"model": layers}))
        times.append(time.process_time() - before)
    assert found == len(list(layers.modules()))
    assert min(times) < 0.5  # 0.04 s on a machine with nothing else to do
