"""Text models: decoders, encoders, both, and a mixture of experts."""

from functools import partial
from typing import Any

import torch

from models.measure import SIZE, TRANSLATOR, VOCABULARY, Batch, Family, model

SIZE = {**SIZE, "max_position_embeddings": 32}
DECODER = {**SIZE, "num_key_value_heads": 1, "head_dim": 16}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 32}
T5 = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2}
T5["decoder_start_token_id"] = 0
BART = {**TRANSLATOR, "max_position_embeddings": 32, "decoder_start_token_id": 2}
OPT = {**SIZE, "word_embed_proj_dim": 32, "ffn_dim": 48}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "conv_kernel": 4}
MAMBA2 = {**MAMBA, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
INTO_KERNELS = "weights that go into fused kernels without a call of their layer"


def sentences(seed: int, count: int, length: int, low: int, high: int) -> Batch:
    """Tokens from `low` to `high`, with random tokens as labels."""
    draw = torch.Generator().manual_seed(seed)
    tokens, labels = (torch.randint(low, high, (count, length), generator=draw) for _ in range(2))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def family(name: str, kind: str, config: str, refused: str = "", /, **settings: Any) -> Family:
    make = model(kind, config, **VOCABULARY, **settings)
    old, new = partial(sentences, 0, 2, 5, 3, 40), partial(sentences, 1, 4, 8, 20, 60)
    return Family(name, make, old, new, refused)


def text_families() -> list[Family]:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    routed = {"num_local_experts": 4, "intermediate_size_mlp": 48}
    ends = {"cls_token_id": 1, "sep_token_id": 2}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    return [
        family("GPT-2", "GPT2LMHeadModel", "GPT2Config", **GPT2),
        family("Llama", "LlamaForCausalLM", "LlamaConfig", **DECODER),
        family("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", **DECODER),
        family("Gemma", "GemmaForCausalLM", "GemmaConfig", **DECODER),
        family("OPT", "OPTForCausalLM", "OPTConfig", **OPT),
        family("Mixtral", "MixtralForCausalLM", "MixtralConfig", **DECODER, **experts),
        family("GPT-OSS", "GptOssForCausalLM", "GptOssConfig", **DECODER, **experts, **rotary),
        family("Llama 4", "Llama4ForCausalLM", "Llama4TextConfig", **DECODER, **routed),
        family("T5", "T5ForConditionalGeneration", "T5Config", **T5),
        family("BART", "BartForConditionalGeneration", "BartConfig", **BART),
        family("BERT", "BertForMaskedLM", "BertConfig", **SIZE),
        family("ModernBERT", "ModernBertForMaskedLM", "ModernBertConfig", **SIZE, **ends),
        family("Mamba", "MambaForCausalLM", "MambaConfig", INTO_KERNELS, **MAMBA),
        family("Mamba 2", "Mamba2ForCausalLM", "Mamba2Config", INTO_KERNELS, **MAMBA2),
    ]
