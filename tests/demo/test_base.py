import pytest
import torch
from safetensors.torch import load_file

from segue.demo.base import main, pretrain, read_base, write_base, write_neighbour
from segue.demo.model import Decoder
from segue.demo.settings import RunSettings
from tests.demo.adapting import SIZE, small_run

RUN = RunSettings(model=SIZE, num_sequences=2)


def bits(tensors):
    return {name: tensor.detach().reshape(-1).view(torch.uint8).clone() for name, tensor in tensors.items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_a_seed_gives_the_same_base_again_and_it_has_learnt():
    first, again = pretrain(RUN), pretrain(RUN)
    assert same(bits(first.state_dict()), bits(again.state_dict()))
    assert not same(bits(first.state_dict()), bits(Decoder(SIZE).state_dict()))


def test_a_file_gives_the_model_its_values_back(tmp_path):
    written, read = Decoder(SIZE), Decoder(SIZE)
    write_base(written, tmp_path / "base")
    read_base(read, tmp_path / "base")
    assert same(bits(read.state_dict()), bits(written.state_dict()))
    assert read.head.weight is read.embedding.weight


def test_a_neighbour_differs_in_the_one_bit_that_is_told(tmp_path):
    write_base(Decoder(SIZE), tmp_path / "base")
    for seed in range(20):
        told = write_neighbour(tmp_path / "base", tmp_path / "other", seed)
        base, other = bits(load_file(tmp_path / "base")), bits(load_file(tmp_path / "other"))
        flipped = {name: base[name] ^ other[name] for name in base}
        (name,) = [name for name, bytes_ in flipped.items() if bytes_.any()]
        (byte,) = flipped[name].nonzero().flatten().tolist()
        assert told == f"bit {int(flipped[name][byte]).bit_length() - 1} of byte {byte:,} of {name}"
        assert int(flipped[name][byte]).bit_count() == 1


def test_without_an_adapter_there_is_no_base_to_make(tmp_path):
    RUN.write(tmp_path / "settings")
    with pytest.raises(ValueError, match="no base"):
        main(tmp_path / "settings")


def test_the_settings_say_where_the_base_goes(tmp_path):
    run = small_run(tmp_path)
    before = bits(load_file(run.adapter.base))
    run.write(tmp_path / "settings")
    threads = torch.get_num_threads()
    try:
        main(tmp_path / "settings")
    finally:
        torch.set_num_threads(threads)
    assert same(bits(load_file(run.adapter.base)), bits(dict(pretrain(run).named_parameters())))
    assert not same(bits(load_file(run.adapter.base)), before)
