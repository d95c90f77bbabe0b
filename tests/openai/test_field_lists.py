"""Each request field of OpenAI, vLLM, SGLang and llama.cpp is supported, refused or ignored.

OpenAI's are read from its client's types; the others stand here as their servers declare them.
"""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from qwen3_a8w8.errors import InvalidRequestError
from qwen3_a8w8.openai.chat.request import ChatRequest
from qwen3_a8w8.openai.completions.request import CompletionRequest
from qwen3_a8w8.openai.foreign_fields import IGNORED, REFUSED
from qwen3_a8w8.openai.request import validate_request
from qwen3_a8w8.openai.responses.request import ResponsesRequest

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()

VLLM_COMMON = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty response_format seed
stop stream stream_options temperature top_p user use_beam_search top_k min_p repetition_penalty
watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo add_special_tokens
structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
ec_transfer_params vllm_xargs repetition_detection stream_interval thinking_token_budget
"""
VLLM_CHAT = (
    VLLM_COMMON
    + """
messages top_logprobs max_completion_tokens tools tool_choice reasoning_effort include_reasoning
parallel_tool_calls add_generation_prompt continue_final_message documents chat_template
chat_template_kwargs media_io_kwargs mm_processor_kwargs return_prompt_text
"""
)
VLLM_TEXT = VLLM_COMMON + "prompt suffix prompt_embeds"
SGLANG = """
regex ebnf json_schema min_tokens repetition_penalty stop_token_ids stop_regex no_stop_trim
ignore_eos continue_final_message skip_special_tokens lora_path session_params separate_reasoning
stream_reasoning chat_template_kwargs custom_logit_processor custom_params rid extra_key
cache_salt priority custom_labels bootstrap_host bootstrap_port bootstrap_room data_parallel_rank
return_hidden_states return_routed_experts input_ids structural_tag top_k min_p
"""
LLAMA_CPP = """
grammar json_schema cache_prompt dry_allowed_length dry_base dry_multiplier dry_penalty_last_n
dry_sequence_breakers dynatemp_exponent dynatemp_range grammar_lazy id_slot ignore_eos logit_bias
lora min_keep min_p mirostat mirostat_eta mirostat_tau n_discard n_indent n_keep n_predict n_probs
parse_tool_calls post_sampling_probs reasoning_format repeat_last_n repeat_penalty response_fields
return_progress return_tokens samplers seed stop t_max_predict_ms thinking_budget_tokens
thinking_forced_open timings_per_token top_n_sigma typical_p xtc_probability xtc_threshold
"""


def names_of(*sources):
    """Of the typed dicts that the client declares for a request, or of a list."""
    names = set()
    for source in sources:
        names |= set(source.split()) if isinstance(source, str) else set(get_type_hints(source))
    return names


CHAT = names_of(chat_create_params.CompletionCreateParamsBase, VLLM_CHAT, SGLANG, LLAMA_CPP)
TEXT = names_of(completion_create_params.CompletionCreateParamsBase, VLLM_TEXT)
RESPONSES = names_of(response_create_params.ResponseCreateParamsBase)


@pytest.mark.parametrize(
    ("model", "names"),
    [(ChatRequest, CHAT), (CompletionRequest, TEXT), (ResponsesRequest, RESPONSES)],
)
def test_every_field_is_supported_refused_or_ignored(model, names):
    supported = set(model.model_fields)
    unknown = names - supported - set(REFUSED) - IGNORED
    assert unknown == set()


def test_no_field_is_in_two_lists():
    assert set(REFUSED) & IGNORED == set()
    both_kinds = set(ChatRequest.model_fields) & set(CompletionRequest.model_fields)
    assert both_kinds & (set(REFUSED) | IGNORED) == set()


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest, ResponsesRequest])
def test_documentation_names_every_field(model):
    named = set(re.findall(r"`([a-z_]+)`", DOCS))
    assert set(model.model_fields) - named == set()
    assert (set(REFUSED) | IGNORED) - named == set()


@pytest.mark.parametrize("name", sorted(set(REFUSED) - set(ChatRequest.model_fields)))
def test_refusal_names_field_and_remedy(name):
    neutral, remedy = REFUSED[name]
    body = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(InvalidRequestError, match=re.escape(remedy)) as caught:
        validate_request(ChatRequest, body | {name: {"some": "value"}})
    assert caught.value.param == name
    for value in (None, *neutral):
        validate_request(ChatRequest, body | {name: value})


def test_true_is_not_one():
    body = {"messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(InvalidRequestError, match="typical_p is true"):
        validate_request(ChatRequest, body | {"typical_p": True})
