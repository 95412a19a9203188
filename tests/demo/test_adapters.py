import torch
from safetensors.torch import load_file

from segue.demo.adapters import adapted
from segue.demo.base import read_base
from segue.demo.model import Decoder
from tests.demo.adapting import SIZE, parts_of, small_run, trained

ADAPTER = {
    f"blocks.0.attention.{projection}.{side}.weight"
    for projection in ("project_in", "project_out")
    for side in ("down", "up")
}


def test_the_adapter_alone_is_trained(tmp_path):
    model = adapted(Decoder(SIZE), small_run(tmp_path).adapter)
    assert trained(model).keys() == ADAPTER


def test_an_adapter_that_has_learnt_nothing_changes_nothing(tmp_path):
    run, base, tokens = small_run(tmp_path), Decoder(SIZE), torch.randint(0, 256, (2, 7))
    model = adapted(Decoder(SIZE), run.adapter).eval()
    read_base(base, run.adapter.base)
    assert torch.equal(model(tokens), base.eval()(tokens))
    with torch.no_grad():
        trained(model)["blocks.0.attention.project_in.up.weight"].normal_()
    assert not torch.equal(model(tokens), base(tokens))


def test_a_capture_holds_the_adapter_and_its_optimizer_has_no_other_parameter(tmp_path):
    run = small_run(tmp_path)
    parts = parts_of(run)
    record = parts.training.capture()
    assert set(record.model.tensors) == ADAPTER
    assert set(record.model.base.omitted) | ADAPTER == {name for name, _ in parts.model.named_parameters()}
    assert len(record.model.base.omitted) == len(load_file(run.adapter.base))
    assert sum(len(group["params"]) for group in parts.optimizer.param_groups) == len(ADAPTER)
