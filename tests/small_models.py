"""Small models with random weights, and tokenizers of a few words: nothing is downloaded."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["the", "cat", "dog", "saw", "a", "big", "red", "house", "under", "old", "trees"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCABULARY = {word: i for i, word in enumerate([*SPECIAL, *WORDS, "and", "slept"])}
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}


def make_tokenizer(special=True, types=None):
    types = special if types is None else types
    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        core.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", VOCABULARY["[CLS]"]), ("[SEP]", VOCABULARY["[SEP]"])],
        )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"} if special else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        eos_token=None if special else "[SEP]",
        model_input_names=["input_ids", "attention_mask", *["token_type_ids"] * types],
        **names,
    )


def _spread(model):
    """Weights large enough that attention is far from uniform."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def make_bert():
    """Three layers of four heads, and its tokenizer."""
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY), intermediate_size=32, max_position_embeddings=20, **SIZES
    )
    config._attn_implementation = "eager"
    return _spread(transformers.BertModel(config)), make_tokenizer()


def make_gpt2():
    """A decoder of the same size; its tokenizer knows no padding."""
    config = transformers.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=24, n_layer=3, n_head=4, n_positions=20
    )
    config._attn_implementation = "eager"
    return _spread(transformers.GPT2Model(config)), make_tokenizer(special=False)


def save(pair, folder):
    """Write a model and its tokenizer as `from_pretrained` reads them."""
    for part in pair:
        part.save_pretrained(folder)
    return folder
