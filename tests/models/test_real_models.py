"""The real models against transformers, on the same dequantized weights."""

from __future__ import annotations

import pytest
import torch
from tests.models.paged_run import all_logits, load
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, PreTrainedConfig
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from quire.checkpoint.checkpoint import open_checkpoint
from quire.checkpoint.reference import resolve_model

SMOLLM2 = LlamaConfig(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    tie_word_embeddings=True,
)
GEMMA3 = Gemma3TextConfig(
    vocab_size=262144,
    hidden_size=640,
    intermediate_size=2048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    max_position_embeddings=32768,
    sliding_window=512,
    query_pre_attn_scalar=256,
)


def oracle_logprobs(reference: str, config: PreTrainedConfig, token_ids: list[int], num_last: int) -> torch.Tensor:
    """float32 [num_last, V], with quire's dequantized weights in transformers' model."""
    with no_init_weights():  # Random ones take seconds, and each is replaced.
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    source = open_checkpoint(reference).open_weights()
    state = {name: torch.from_numpy(source.read(name, 0, source.info(name).shape[0])) for name in source.names()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    source.close()
    with torch.inference_mode():
        return model(torch.tensor([token_ids]), logits_to_keep=num_last).logits[0].log_softmax(-1)


@pytest.mark.real
@pytest.mark.parametrize("backend", [pytest.param("reference", marks=pytest.mark.nightly), "torch"])
@pytest.mark.parametrize(
    ("fixture", "config", "length"),
    # Gemma's window of 512 tokens must close over the last positions.
    [("smollm2", SMOLLM2, 300), ("gemma3", GEMMA3, 560)],
)
def test_logprobs_match_transformers(
    fixture: str, config: PreTrainedConfig, length: int, backend: str, request: pytest.FixtureRequest
) -> None:
    reference = request.getfixturevalue(fixture)
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(3, config.vocab_size, (length,), generator=generator).tolist()
    expected = oracle_logprobs(reference, config, token_ids, num_last=40)
    found = all_logits(load(reference, backend=backend), [token_ids], [128])[0][-40:].log_softmax(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.real
@pytest.mark.nightly
@pytest.mark.parametrize(("fixture", "config"), [("smollm2", SMOLLM2), ("gemma3", GEMMA3)])
def test_weights_match_transformers_own_reading(
    fixture: str, config: PreTrainedConfig, request: pytest.FixtureRequest
) -> None:
    """Names, dequantization, head order and norm offsets, as transformers' GGUF reader has them."""
    reference = request.getfixturevalue(fixture)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    path = str(resolve_model(reference).path)
    expected = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    source = open_checkpoint(reference).open_weights()
    assert set(source.names()) == set(expected)
    for name in source.names():
        whole = torch.from_numpy(source.read(name, 0, source.info(name).shape[0]))
        torch.testing.assert_close(whole, expected[name], rtol=0, atol=0)
    source.close()
