"""Programs that forgot nothing are never told anything, whatever else they hold that changes."""

import collections
import copy
import functools
import logging
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import segue
from segue.errors import UncoveredStateWarning

STEPS = 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 3))


def train(model, loss_of=None, after=None, state=True, optimizer=None, **registered):
    """Train, and capture at every boundary."""
    loss_of = loss_of or (lambda i: model(torch.randn(4, 3)).pow(2).mean())
    optimizer = optimizer or torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    training = segue.Training(model, optimizer, **registered)
    for i in range(STEPS):
        loss_of(i).backward()
        optimizer.step()
        optimizer.zero_grad()
        if after is not None:
            after(i)
        training.capture({"i": i} if state else None)


def quiet(program):
    """Run a program, and return what it was told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
    return [str(each.message) for each in caught if each.category is UncoveredStateWarning]


def plain():
    train(net())


def a_counter_of_the_loop_and_lists_of_losses():
    losses, best, step = [], float("inf"), 0

    def after(i):
        nonlocal best, step
        losses.append(i)
        best, step = min(best, i), step + 1

    train(net(), after=after)


class Meter:
    """What is only printed."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1


def a_meter_that_is_only_printed():
    meter = Meter()
    train(net(), after=meter.add)


def a_frozen_teacher():
    model, teacher = net(), net().eval().requires_grad_(False)
    train(model, lambda i: (model(torch.ones(4, 3)) - teacher(torch.ones(4, 3))).pow(2).mean())


def an_evaluation_loader():
    model, loader = net(), DataLoader([torch.ones(3)] * 6, batch_size=2)

    def evaluate(i):
        with torch.no_grad():
            for batch in loader:
                model.eval()(batch)
        model.train()

    train(model, after=evaluate)


def a_shuffling_loader_between_two_passes():
    model, loader = net(), DataLoader([torch.ones(3)] * 6, batch_size=2, shuffle=True)

    def a_pass(i):
        return sum(model(batch).pow(2).mean() for batch in loader)

    train(model, a_pass)


def a_plain_loader_with_a_count():
    model, loader = net(), DataLoader([torch.ones(3)] * 2 * STEPS, batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters())
    training = segue.Training(model, optimizer)
    for i, batch in enumerate(loader):
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        training.capture({"batches": i + 1})


def a_position():
    model, data = net(), segue.DataPosition(DataLoader([torch.ones(3)] * 2 * STEPS, batch_size=2))
    optimizer = torch.optim.AdamW(model.parameters())
    training = segue.Training(model, optimizer, components={"data": data})
    for batch in data:
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        training.capture()


def another_training_of_the_process():
    other, model = net(), net()
    its = torch.optim.AdamW(other.parameters())
    others = segue.Training(other, its)

    def after(i):
        other(torch.randn(4, 3)).sum().backward()
        its.step()
        its.zero_grad()
        others.capture(i)

    train(model, after=after)


def the_model_of_an_earlier_cell():
    old = net()
    old_optimizer = torch.optim.AdamW(old.parameters())
    old(torch.randn(4, 3)).sum().backward()
    old_optimizer.step()
    train(net())


class Caching(nn.Module):
    """Keeps what a graph made, clocks, and what is computed from what it is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = self.linear.weight
        self.last, self.losses, self.mask, self.seen_at = None, [], torch.ones(3), 0.0
        self.lock, self.logger, self.ref = threading.Lock(), logging.getLogger("x"), weakref.ref(self.linear)
        self.rows = self.linear.weight.detach()[0]

    def forward(self, x):
        self.mask = torch.ones(3)
        self.last = self.linear(x) * self.mask
        self.losses = [self.last.sum()]
        self.seen_at = time.time()
        return self.last


def a_layer_that_keeps_what_a_graph_made_and_clocks():
    train(Caching())


def averages_that_are_registered():
    model = net()
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, after=lambda i: average.update_parameters(model), components={"average": average})


def an_object_that_saves_under_other_names():
    class Average:
        def __init__(self, model):
            self.shadow = [p.detach().clone() for p in model.parameters()]
            self._updates, self.values, self.model = 0, collections.deque(maxlen=2), model

        def update(self, i):
            self._updates += 3
            self.values.append(i + 0.5)
            for mine, p in zip(self.shadow, self.model.parameters(), strict=True):
                mine.mul_(0.9).add_(p.detach(), alpha=0.1)

        def state_dict(self):
            weights = {str(k): each for k, each in enumerate(self.shadow)}
            return {"weights": weights, "updates": self._updates, "values": self.values}

        def load_state_dict(self, state):
            raise NotImplementedError

    model = net()
    average = Average(model)
    train(model, after=average.update, components={"average": average})


def private_generators_of_what_is_registered():
    model = net()
    model.noise, model.chance = torch.Generator(), np.random.default_rng(0)
    train(model, lambda i: model(torch.randn(4, 3, generator=model.noise)).mean() * model.chance.random())


def a_generator_that_is_made_anew():
    model = net()
    train(model, lambda i: model(torch.randn(4, 3, generator=torch.Generator().manual_seed(i))).mean())


def a_scaler_that_is_registered():
    model, scaler = net(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    training = segue.Training(model, optimizer, components={"scaler": scaler})
    for i in range(STEPS):
        scaler.scale(model(torch.randn(4, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        training.capture(i)


def a_scheduler():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    train(
        model,
        after=lambda i: scheduler.step() if i < STEPS else None,
        optimizer=optimizer,
        schedulers=scheduler,
    )


def settings_of_layers_of_torch():
    model = net()

    def anneal(i):
        model[2].p *= 0.9
        model[1].momentum *= 0.9

    train(model, after=anneal)


def compiled():
    model = torch.compile(net(), backend="eager")
    train(model)


def recurrent():
    model = nn.LSTM(3, 3)
    train(model, lambda i: model(torch.randn(4, 2, 3))[0].pow(2).mean())


def reparametrized():
    train(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))


def functions_with_caches():
    @functools.cache
    def squared(i):
        return i * i

    model = net()
    train(model, lambda i: model(torch.randn(4, 3)).mean() * squared(i))


def hooks_that_hold_nothing():
    model = net()
    model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    train(model)


def hooks_that_come_and_go():
    model = net()

    def loss_of(i):
        handle = model[0].register_forward_hook(lambda module, inputs, output: None)
        loss = model(torch.randn(4, 3)).mean()
        handle.remove()
        return loss

    train(model, loss_of)


def a_profiler():
    model = net()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train(model, after=lambda i: profiler.step())


def a_progress_bar():
    from tqdm import tqdm

    with tqdm(total=STEPS, disable=True) as bar:
        train(net(), after=lambda i: bar.update())


def weights_on_the_way_to_another_library():
    model = net()
    saved = {}
    train(model, after=lambda i: saved.update(model.state_dict()))


def a_window():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    window = segue.GradientAccumulator(model, microbatches=2)
    training = segue.Training(model, optimizer, accumulator=window)
    for i in range(STEPS):
        model(torch.randn(4, 3)).mean().backward()
        window.add()
        if window.is_full:
            window.finish_mean()
            optimizer.step()
            optimizer.zero_grad()
        training.capture(i)


def _config(cls, **more):
    return cls(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, **more
    )  # fmt: skip


def _ids(i):
    return torch.randint(0, 64, (2, 5 + i))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(_config(LlamaConfig, num_key_value_heads=2, max_position_embeddings=32))
    train(model, lambda i: model(input_ids=(x := _ids(i)), labels=x).loss)


def llama_with_activation_checkpoints():
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        _config(LlamaConfig, num_key_value_heads=2, max_position_embeddings=32, use_cache=False)
    )
    model.gradient_checkpointing_enable()
    train(model, lambda i: model(input_ids=(x := _ids(i)), labels=x).loss)


def mixture_of_experts():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = _config(MixtralConfig, num_key_value_heads=2, num_local_experts=2, output_router_logits=True)
    model = MixtralForCausalLM(config)
    train(model, lambda i: model(input_ids=(x := _ids(i)), labels=x).loss)


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(_config(BertConfig))
    train(model, lambda i: model(input_ids=_ids(i), labels=torch.tensor([0, 1])).loss)


def lora():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    base = LlamaForCausalLM(_config(LlamaConfig, num_key_value_heads=2, max_position_embeddings=32))
    model = get_peft_model(base, LoraConfig(r=2, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
    train(model, lambda i: model(input_ids=(x := _ids(i)), labels=x).loss)


def accelerated():
    from accelerate import Accelerator

    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    accelerator = Accelerator(cpu=True)
    wrapped, its, prepared = accelerator.prepare(model, optimizer, scheduler)
    training = segue.Training(wrapped, its, scheduler)
    for i in range(STEPS):
        accelerator.backward(wrapped(torch.randn(4, 3)).mean())
        its.step()
        prepared.step()
        its.zero_grad()
        training.capture(i)


def eight_bit():
    from torchao.optim import AdamW8bit

    model = nn.Linear(64, 64)
    train(model, lambda i: model(torch.randn(4, 64)).mean(), optimizer=AdamW8bit(model.parameters()))


def schedule_free():
    from schedulefree import AdamWScheduleFree

    model = nn.Linear(3, 3)
    optimizer = AdamWScheduleFree(model.parameters(), lr=0.01)
    optimizer.train()
    train(model, optimizer=optimizer)


def copies_that_are_no_state():
    model = net()
    once = {name: p.detach().clone() for name, p in model.named_parameters()}
    parameters, shared = list(model.parameters()), model.state_dict()
    held = Meter()

    def loss_of(i):
        return model(torch.randn(4, 3)).pow(2).mean()

    optimizer = torch.optim.AdamW(model.parameters())
    training = segue.Training(model, optimizer)
    for i in range(STEPS):
        loss_of(i).backward()
        held.gradients = [p.grad.clone() for p in model.parameters()]
        gradients = [p.grad.clone() for p in model.parameters()]
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        training.capture(i)
    assert all((once, parameters, shared, gradients, before))


def an_average_in_the_callers_state():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    ema = {name: p.detach().clone() for name, p in model.named_parameters()}
    training = segue.Training(model, optimizer)
    for i in range(STEPS):
        model(torch.randn(4, 3)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, p in model.named_parameters():
            ema[name].lerp_(p.detach(), 0.1)
        training.capture({"i": i, "ema": ema})


def a_deep_copy_for_evaluation():
    model = net()
    copies = []

    def evaluate(i):
        copies[:] = [copy.deepcopy(model).eval()]

    train(model, after=evaluate)


PROGRAMS = [
    value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", None) == __name__ and not name.startswith("_")
    and name not in ("net", "train", "quiet", "Meter", "Caching")
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_it_is_told_nothing(program):
    assert quiet(program) == []


def test_there_are_many():
    assert len(PROGRAMS) >= 30
