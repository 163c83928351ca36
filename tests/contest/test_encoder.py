"""The encoder in NumPy: its layer is PyTorch's, its pieces are WordPiece's."""

import numpy as np
import torch
from benchmarks import encoder


def _weights(layer):
    """A PyTorch encoder layer's weights under BERT's names."""
    w = {name: value.detach().numpy() for name, value in layer.state_dict().items()}
    names = {"attention.output.dense": "self_attn.out_proj", "output.dense": "linear2"}
    names |= {"intermediate.dense": "linear1", "attention.output.LayerNorm": "norm1"}
    names["output.LayerNorm"] = "norm2"
    found = {}
    for kind in ("weight", "bias"):
        parts = np.split(w[f"self_attn.in_proj_{kind}"], 3)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            found[f"encoder.layer.0.attention.self.{name}.{kind}"] = part
        for ours, theirs in names.items():
            found[f"encoder.layer.0.{ours}.{kind}"] = w[f"{theirs}.{kind}"]
    return found


def test_a_layer_is_that_of_pytorch():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        encoder.DIM, encoder.HEADS, 64, dropout=0.0, activation="gelu", layer_norm_eps=1e-12,
        batch_first=True,
    )  # fmt: skip
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    H = torch.randn(3, 5, encoder.DIM)
    mask = torch.arange(5)[None] < torch.tensor([[5], [3], [1]])
    with torch.no_grad():
        wanted = layer.train()(H, src_key_padding_mask=~mask).numpy()
    found = encoder._layer(_weights(layer), 0, H.numpy(), mask.numpy())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[mask.numpy()], wanted[mask.numpy()], atol=2e-4)


def test_words_fall_into_the_longest_known_pieces():
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "un", "##able", "##aff", "cafe", ",", "a"]
    index = {word: i for i, word in enumerate(words)}
    assert encoder._pieces("Unaffable, Café xyz", index) == [
        "un",
        "##aff",
        "##able",
        ",",
        "cafe",
        "[UNK]",
    ]
    ids, kinds = encoder._tokens("a a a a", "cafe", index, 6)
    assert [words[i] for i in ids] == ["[CLS]", "a", "a", "[SEP]", "cafe", "[SEP]"]
    assert kinds == [0, 0, 0, 0, 1, 1]
    ids, kinds = encoder._tokens("a", "a", index, 7)
    assert words[ids[-1]] == "[PAD]" and len(ids) == len(kinds) == 7


def test_the_shipped_text_has_enough_pairs(monkeypatch):
    monkeypatch.delenv("CONVEXFORMER_MRPC", raising=False)
    assert encoder.text() == "sentences.txt" and len(encoder.pairs()) >= 1000


def test_mrpc_is_read_where_it_is_named(monkeypatch, tmp_path):
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    (tmp_path / "msr_paraphrase_train.txt").write_text(head + '1\t2\t3\tOne " two.\tThree.\n')
    monkeypatch.setenv("CONVEXFORMER_MRPC", str(tmp_path))
    assert encoder.text() == "MRPC" and encoder.pairs() == [('One " two.', "Three.")]
