import pytest
import torch

from segue.demo.text import PADDING, Corpus, read_text


def corpus(seed=0):
    return Corpus.of(read_text(None), context=32, num_sequences=6, seed=seed)


def test_the_default_text_is_real_and_long_enough():
    text = read_text(None)
    assert len(text) > 100_000
    assert b"assert" in text


def test_a_file_is_read_as_bytes(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xff\x00text")
    assert read_text(path) == b"\xff\x00text"


def test_a_microbatch_is_the_same_in_any_order_and_process():
    first, again = corpus(), corpus()
    again.microbatch(3)
    assert torch.equal(first.microbatch(7).tokens, again.microbatch(7).tokens)
    assert torch.equal(first.microbatch(7).targets, again.microbatch(7).targets)
    assert not torch.equal(first.microbatch(7).tokens, first.microbatch(8).tokens)
    assert not torch.equal(first.microbatch(7).tokens, corpus(seed=1).microbatch(7).tokens)


def test_microbatches_have_unequal_numbers_of_tokens():
    assert len({corpus().microbatch(index).num_tokens for index in range(8)}) > 4


def test_a_target_is_the_next_byte_or_padding_to_the_end():
    batch = corpus().microbatch(0)
    real = batch.targets != PADDING
    assert real.sum() == batch.num_tokens
    assert torch.equal(batch.targets[:, :-1][real[:, :-1]], batch.tokens[:, 1:][real[:, :-1]])
    assert bool((real.int().diff(dim=1) <= 0).all())
    assert bool((real.sum(dim=1) >= 32 // 4).all())


def test_drawing_data_moves_no_global_stream():
    before = torch.get_rng_state()
    corpus().microbatch(0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="at least"):
        Corpus.of(b"short", context=32, num_sequences=1, seed=0)
