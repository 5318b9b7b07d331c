"""Small random checkpoints, written to disk by transformers as a user's would be."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 320


def save_tokenizer(directory: Path) -> None:
    """One token a byte, and the special ones after them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "bos_token": "<|endoftext|>",
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


def save_model(model: PreTrainedModel, directory: Path) -> Path:
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def save_tiny_llama(directory: Path, seed: int = 0, **fields: object) -> Path:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    config = LlamaConfig(
        **(sizes | fields), initializer_range=0.3, bos_token_id=256, eos_token_id=256, tie_word_embeddings=False
    )
    return save_model(LlamaForCausalLM(config), directory)


def save_tiny_gemma(directory: Path) -> Path:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        sliding_window=24,
        query_pre_attn_scalar=16,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=256,
        pad_token_id=257,
    )
    return save_model(Gemma3ForCausalLM(config), directory)


def save_tiny_gpt2(directory: Path) -> Path:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=2,
        n_head=8,
        n_positions=512,
        initializer_range=0.3,
        bos_token_id=256,
        eos_token_id=256,
    )
    return save_model(with_random_norms(GPT2LMHeadModel(config)), directory)


def save_tiny_opt(directory: Path) -> Path:
    """As the 350m model is: norms after the residual, and an embedding of another width."""
    torch.manual_seed(0)
    config = OPTConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=2,
        num_attention_heads=8,
        max_position_embeddings=512,
        word_embed_proj_dim=32,
        do_layer_norm_before=False,
        init_std=0.3,
        bos_token_id=256,
        eos_token_id=256,
    )
    return save_model(with_random_norms(OPTForCausalLM(config)), directory)


def with_random_norms(model: PreTrainedModel) -> PreTrainedModel:
    """Norms and biases are random too, where transformers starts them at 1 and 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model


BERT_VOCAB_SIZE = 64
BERT_CONTEXT = 48


def save_word_pieces(directory: Path) -> None:
    """[PAD] [UNK] [CLS] [SEP], then every lower-case letter as a word and as the rest of one, a few words, marks."""
    letters = [chr(ord("a") + i) for i in range(26)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    pieces = [*special, *letters, *(f"##{letter}" for letter in letters), "cat", ".", ",", "?"]
    tokenizer = Tokenizer(models.WordPiece(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(special)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))


def save_sentence_transformer(directory: Path, *, mode: str, normalize: bool, max_tokens: int) -> None:
    """The files that say how to pool, as sentence-transformers writes them."""
    steps = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{step}" if i else "", "type": f"sentence_transformers.models.{step}"}
        for i, step in enumerate(steps)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{kind}": kind == mode for kind in ("cls_token", "mean_tokens", "max_tokens")}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | modes))
    (directory / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))


def save_tiny_bert(directory: Path, seed: int = 0, **fields: object) -> PreTrainedModel:
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": BERT_VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": BERT_CONTEXT,
        "initializer_range": 0.3,
    }
    model = with_random_norms(BertModel(BertConfig(**(sizes | fields))).eval())
    model.save_pretrained(directory)
    save_word_pieces(directory)
    return model
