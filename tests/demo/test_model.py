import torch

from segue.demo.model import Decoder, ModelSize

SIZE = ModelSize(width=16, num_layers=2, num_heads=2, context=12)


def test_logits_have_the_documented_shape():
    assert Decoder(SIZE)(torch.zeros(3, 7, dtype=torch.int64)).shape == (3, 7, 256)


def test_the_output_projection_is_the_embedding():
    model = Decoder(SIZE)
    assert model.head.weight is model.embedding.weight


def test_a_later_byte_does_not_change_an_earlier_prediction():
    model = Decoder(SIZE).eval()
    tokens = torch.randint(0, 256, (1, 10))
    changed = tokens.clone()
    changed[0, 6] += 1
    changed %= 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


def test_dropout_draws_from_the_global_stream():
    model, tokens = Decoder(SIZE), torch.zeros(1, 4, dtype=torch.int64)
    assert not torch.equal(model(tokens), model(tokens))
