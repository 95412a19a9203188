"""Every class of the allow-list that can be made on a CPU, with the library itself: bit for bit, by value and in place."""

import importlib

import torch
from torch import nn

import segue
from segue._capture.module import capture_module, check_module, plan_module
from segue._capture.staging import capture_value, plain_parts
from segue._record.subclass import CONTEXT_CLASSES, TENSOR_CLASSES, full_name
from segue._record.tree import same
from tests.quantized_state.looking import look

SCRATCH = torch.empty(100_000, dtype=torch.uint8)


def layer(quantize):
    torch.manual_seed(3)
    made = nn.Linear(64, 64, bias=False, dtype=torch.bfloat16)
    quantize(made)
    return made.requires_grad_(False)


def tensors(trainings):
    """A tensor of each class, by the name of its class; of some, several kinds."""
    optim = importlib.import_module("torchao.optim")
    quantization = importlib.import_module("torchao.quantization")
    made = {name: layer(quantize).weight for name, quantize in trainings.BASES.items()}
    made["trained int8"] = layer(trainings.TRAINED_INT8).weight
    made["state 8bit"] = optim.subclass_8bit.OptimState8bit.zeros((64, 64), block_size=256)
    made["state 4bit"] = optim.subclass_4bit.OptimState4bit.zeros((64, 64), block_size=128)
    made["state fp8"] = optim.subclass_fp8.OptimStateFp8.zeros((64, 64), block_size=256)
    # Their kernels are for other devices; what they consist of is not.
    scale = torch.rand(2, 64, dtype=torch.bfloat16)
    shape = torch.Size([64, 64])
    made["packed int4"] = quantization.Int4Tensor(
        torch.ones(64, 32, dtype=torch.int8), scale, scale - 1, [1, 32], shape
    )
    made["int4 in int32"] = quantization.Int4PlainInt32Tensor(
        torch.ones(64, 8, dtype=torch.int32), scale, scale - 1, [1, 32], shape
    )
    made["int4 in tiles"] = quantization.Int4TilePackedTo4dTensor(
        torch.ones(8, 1, 32, 4, dtype=torch.int32), torch.rand(2, 64, 2, dtype=torch.bfloat16), [1, 32], shape
    )
    return made


def test_every_admitted_class_is_there_under_its_name(trainings):
    for name in TENSOR_CLASSES | CONTEXT_CLASSES:
        module, _, attribute = name.rpartition(".")
        assert full_name(getattr(importlib.import_module(module), attribute)) == name


def test_every_admitted_class_is_captured_and_made_again(trainings):
    made = tensors(trainings)
    assert {full_name(type(tensor)) for tensor in made.values()} == TENSOR_CLASSES
    for what, tensor in made.items():
        before = look(tensor)
        captured = capture_value(tensor, what)
        again = captured.to_host()
        assert type(again) is type(tensor), what
        assert again.__tensor_flatten__()[1] == tensor.__tensor_flatten__()[1], what
        assert same(capture_value(again, what), captured), what
        assert look(tensor) == before, what
        # Nothing that the class keeps is outside of what it flattens into.
        assert vars(again).keys() | {"_is_param"} == vars(tensor).keys() | {"_is_param"}, what
        for name in vars(again).keys() - dict(plain_parts(again)).keys():
            assert getattr(again, name) == getattr(tensor, name), (what, name)


class Holder(nn.Module):
    def __init__(self, made):
        super().__init__()
        for name, tensor in made.items():
            self.register_buffer(name.replace(" ", "_"), tensor)


def test_every_admitted_class_is_filled_in_place(trainings, tmp_path):
    source, target = (Holder(tensors(trainings)) for _ in range(2))
    for tensor in source.buffers():
        for _, part in plain_parts(tensor):
            part.view(torch.uint8).bitwise_xor_(5) if part.ndim else part.add_(1)
    record = capture_module(source, "model")
    found = list(check_module(record, target, "model"))
    assert not found
    held = {name: (id(tensor), [part.data_ptr() for _, part in plain_parts(tensor)], tensor._version)
            for name, tensor in target.named_buffers()}  # fmt: skip
    for write in plan_module(record, target, "model"):
        write.run(SCRATCH)
    assert same(capture_module(target, "model").tensors, record.tensors)
    for name, tensor in target.named_buffers():
        identity, pointers, version = held[name]
        assert id(tensor) == identity
        assert [part.data_ptr() for _, part in plain_parts(tensor)] == pointers
        assert tensor._version > version


def test_every_admitted_class_comes_back_from_disk_in_model_state_and_caller_state(trainings, tmp_path):
    made = tensors(trainings)
    net = Holder(made)
    net.head = nn.Linear(1, 1)
    training = segue.Training(net, torch.optim.SGD(net.head.parameters(), lr=0.1))
    record = training.capture({"held": list(made.values())})
    segue.save(record, tmp_path / "a")
    loaded = segue.load(tmp_path / "a")
    assert segue.diff(record, loaded).identical
    state = training.restore(loaded)
    for tensor, again in zip(made.values(), state["held"], strict=True):
        assert same(capture_value(again, "w"), capture_value(tensor, "w"))
