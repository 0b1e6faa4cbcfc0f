"""Every causal language model of Transformers, as tiny as its config allows, with random weights that have opinions."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

MODEL_TYPES = sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 30_000_000
"""So many parameters are no longer tiny: some setting was not found."""

WIDTH, HEADS, VOCABULARY = 64, 4, 104

TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "is_decoder": True,
    "is_encoder_decoder": False,
    "max_position_embeddings": 256,
    "n_positions": 256,
    "max_seq_len": 256,
    "context_length": 256,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("lru_width", "mamba_d_ssm", "attention_hidden_size", "backbone_hidden_size"), WIDTH),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 2 * WIDTH),
    **dict.fromkeys(("ffn_hidden_size", "d_inner", "intermediate_size_mlp"), 2 * WIDTH),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), HEADS),
    **dict.fromkeys(("encoder_attention_heads", "mamba_n_heads", "mamba_num_heads", "num_ln_in_parallel_attn"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(
        ("head_dim", "mamba_d_head", "mamba_head_dim", "kv_channels", "v_head_dim", "query_pre_attn_scalar"), 16
    ),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "index_n_heads"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(
        ("n_group", "topk_group", "n_shared_experts", "num_shared_experts", "mamba_n_groups", "n_groups"), 1
    ),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size", "mamba_chunk_size", "chunk_size"), 8),
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    "axial_pos_embds_dim": (32, 32),
    "axial_pos_shape": (16, 16),
}

SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_expand": 1, "attn_layer_indices": [1]},
    "granitemoehybrid": {"mamba_expand": 1, "layer_types": ["mamba", "attention"]},
    "mamba2": {"expand": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"num_hidden_layers": 4, "mamba_dt_rank": 4},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "n_mamba_heads": 4, "adapter_rank": 4},
    "longcat_flash": {"expert_ffn_hidden_size": 32, "zero_expert_num": 2},
    "xlstm": {"chunk_size": 64, "qk_dim_factor": 1.0},
    **{name: {"num_key_value_heads": HEADS} for name in ("axk2", "deepseek_v32", "glm_moe_dsa")},
    "rembert": {"output_embedding_size": WIDTH, "input_embedding_size": WIDTH},
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
}
"""What single configs insist on."""


def build(model_type: str) -> PreTrainedModel | str:
    """The network, ready to compare, or why it cannot be built tiny."""
    reasons = []
    torch.manual_seed(0)
    for layers in (2, 4, 6):
        for extra in ({}, {"head_dim": None}, {"head_dim": 8, "qk_head_dim": 16}):
            try:
                config = tiny_config(CONFIG_MAPPING[model_type], layers, extra | SPECIAL.get(model_type, {}))
                with torch.device("meta"):
                    size = AutoModelForCausalLM.from_config(config).num_parameters()
                if size > LARGEST:
                    reasons.append(f"{size:,} parameters")
                    continue
                network = with_opinions(AutoModelForCausalLM.from_config(config))
                with torch.no_grad():
                    network(input_ids=torch.arange(5, 45)[None])
                return network
            except Exception as error:  # a config raises whatever it likes
                reasons.append(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    return reasons[0]


def tiny_config(config_class: type[PretrainedConfig], layers: int, extra: dict[str, Any]) -> PretrainedConfig:
    depth = dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), layers)
    wanted = TINY | depth | {"encoder_layers": layers, "num_blocks": layers} | extra
    known = inspect.signature(config_class.__init__).parameters
    settings = {name: value for name, value in wanted.items() if name in known and value is not None}
    default = config_class() if config_class.sub_configs else None
    for name in config_class.sub_configs:
        part = getattr(default, name, None)
        if name in known and isinstance(part, PretrainedConfig):
            settings[name] = tiny_config(type(part), layers, extra)
    return config_class(**settings)


def with_opinions(network: PreTrainedModel) -> PreTrainedModel:
    """Moves all weights from where they were initialised, so that no part of the network is without effect."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.is_floating_point():
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return network.float().eval()
