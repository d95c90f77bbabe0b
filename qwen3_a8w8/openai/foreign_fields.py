"""Fields of OpenAI, vLLM, SGLang and llama.cpp that aren't implemented: what happens to each.

A field that changes the answer is refused by name unless its value asks for nothing; one without
effect on the answer is accepted and named in a header. Fields that no list knows are treated as
the latter: a new field of a client can't be told from a misspelt one. `docs/api.md` shows the
lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qwen3_a8w8.openai.request import FieldError, shown

REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    # OpenAI
    "audio": ((), "the model writes text only"),
    "function_call": (("none", "auto"), "use tool_choice"),
    "functions": (([],), "use tools"),
    "modalities": ((["text"], []), "the model writes text only"),
    "web_search_options": ((), "nothing is searched here; offer a function instead"),
    # vLLM
    "detokenize": ((True,), "read the ids with return_token_ids"),
    "documents": (([],), "put them into a message"),
    "ec_transfer_params": (({},), "KV caches aren't transferred"),
    "early_stopping": ((False,), "beam search isn't supported"),
    "kv_transfer_params": (({},), "KV caches aren't transferred"),
    "length_penalty": ((1, 1.0), "beam search isn't supported"),
    "logits_processors": (([],), "code of requests isn't run; use logit_bias"),
    "logprob_token_ids": ((), "use top_logprobs"),
    "media_io_kwargs": (({},), "the model reads text only"),
    "mm_processor_kwargs": (({},), "the model reads text only"),
    "prompt_embeds": ((), "send prompt"),
    "repetition_detection": ((), "use frequency_penalty"),
    "return_prompt_text": ((False,), "use /v1/chat/completions/render"),
    "return_tokens_as_token_ids": ((False,), "use return_token_ids"),
    "use_beam_search": ((False,), "beam search isn't supported; use n"),
    "vllm_xargs": (({},), "no extension reads them"),
    "watermarking": ((False,), "outputs aren't watermarked"),
    # Of the other kind of completions
    "add_generation_prompt": ((True,), "use /v1/chat/completions"),
    "best_of": ((1,), "use n"),
    "chat_template_kwargs": (({},), "use /v1/chat/completions"),
    "continue_final_message": ((False,), "use /v1/chat/completions"),
    "echo": ((False,), "the prompt is at /v1/chat/completions/render"),
    "messages": ((), "use /v1/chat/completions"),
    "prompt": ((), "use /v1/completions, or messages"),
    "reasoning_effort": ((), "use /v1/chat/completions"),
    "suffix": (("",), "insertion isn't supported"),
    "thinking_budget": ((), "use /v1/chat/completions"),
    "thinking_token_budget": ((-1,), "use /v1/chat/completions"),
    "tool_choice": (("none", "auto"), "use /v1/chat/completions"),
    "tools": (([],), "use /v1/chat/completions"),
    "top_logprobs": ((0,), "use logprobs"),
    # SGLang
    "custom_logit_processor": (("",), "code of requests isn't run; use logit_bias"),
    "custom_params": (({},), "no logit processor reads them"),
    "input_embeds": ((), "send prompt or messages"),
    "input_ids": ((), "send prompt"),
    "lora_path": (("",), "adapters aren't supported"),
    "max_new_tokens": ((), "use max_tokens"),
    "min_new_tokens": ((0,), "use min_tokens"),
    "return_hidden_states": ((False,), "hidden states aren't returned"),
    "return_routed_experts": ((False,), "the model has no experts"),
    "session_params": (({},), "sessions aren't kept; send the whole conversation"),
    "stop_regex": (("", []), "use stop, or structured_outputs.regex"),
    "structural_tag": ((), "use response_format, or tools with tool_choice 'required'"),
    # llama.cpp
    "dry_multiplier": ((0, 0.0), "use frequency_penalty or repetition_penalty"),
    "dynatemp_range": ((0, 0.0), "use temperature"),
    "grammar_lazy": ((False,), "use tools with strict functions"),
    "lora": (([],), "adapters aren't supported"),
    "min_keep": ((0, 1), "one token is always kept"),
    "mirostat": ((0,), "use top_p or min_p"),
    "n_indent": ((0,), "use structured_outputs.regex"),
    "n_predict": ((-1,), "use max_tokens"),
    "n_probs": ((0,), "use logprobs and top_logprobs"),
    "parse_tool_calls": ((True,), "use tool_choice 'none'"),
    "post_sampling_probs": ((False,), "use logprobs, which are the model's own"),
    "reasoning_format": (("auto", "deepseek"), "use separate_reasoning or include_reasoning"),
    "repeat_penalty": ((1, 1.0), "use repetition_penalty"),
    "samplers": ((), "the order of the filters is fixed: min_p, top_k, top_p"),
    "t_max_predict_ms": ((0, -1), "use timeout_s"),
    "tfs_z": ((1, 1.0), "use top_p or min_p"),
    "thinking_forced_open": ((False,), "use continue_final_message"),
    "top_a": ((0, 0.0), "use min_p"),
    "top_n_sigma": ((0, 0.0, -1, -1.0), "use min_p"),
    "typical_p": ((1, 1.0), "use top_p or min_p"),
    "xtc_probability": ((0, 0.0), "use temperature"),
}
"""Name -> (values that ask for nothing, what to do instead)."""

IGNORED = frozenset(
    {
        # OpenAI
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "verbosity",
        # vLLM
        "add_special_tokens",
        "chat_template_content_format",
        "data_parallel_rank",
        "guided_decoding_backend",
        "request_id",
        "return_mm_kwargs",
        "return_token_offsets",
        "routed_experts_prompt_start",
        "session_id",
        "skip_reading_prefix_cache",
        "spaces_between_special_tokens",
        "stream_interval",
        # SGLang
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "custom_labels",
        "extra_key",
        "rid",
        "stream_reasoning",
        # llama.cpp
        "cache_prompt",
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "id_slot",
        "mirostat_eta",
        "mirostat_tau",
        "n_discard",
        "n_keep",
        "repeat_last_n",
        "response_fields",
        "return_progress",
        "return_tokens",
        "xtc_threshold",
    }
)
"""Fields without effect on the answer here: hints to a scheduler, a cache or a store, and settings
of samplers that are off."""


def check_refused(
    fields: Mapping[str, Any], refused: Mapping[str, tuple[tuple[Any, ...], str]] = REFUSED
) -> None:
    """Checks fields that a request's model doesn't have.

    Args:
        fields: name -> value; null asks for nothing.
        refused: a table like `REFUSED`.

    Raises:
        FieldError: one would change the answer.
    """
    for name, value in fields.items():
        neutral, remedy = refused.get(name, ((), ""))
        if not remedy or value is None or any(_is_same(value, each) for each in neutral):
            continue
        raise FieldError(f"{name} is {shown(value)}, which isn't supported; {remedy}", name)


def _is_same(value: object, neutral: object) -> bool:
    # In Python True == 1; in JSON they are different values.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
