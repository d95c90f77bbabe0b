"""Names that scripts outside the repository rely on; changing one is a breaking change."""

import dataclasses
import inspect
import subprocess
from pathlib import Path

import pytest
import typer

import qwen3_a8w8
from deployments.app import APPLICATION_NAME, build_app
from deployments.ingress.deployment import Ingress
from deployments.settings import AppSettings, EngineSettings
from qwen3_a8w8 import LLM, SamplingParams
from qwen3_a8w8.cli.main import app
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.llm import GenerationOutput

ROOT = Path(qwen3_a8w8.__file__).parents[1]

COMMANDS = {
    "serve",
    "generate",
    "chat",
    "quantize",
    "synth",
    "inspect",
    "check",
    "bench",
    "doctor",
}

SETTINGS = {
    "device": "auto",
    "decode_batch_sizes": (1, 16),
    "block_size": 32,
    "num_kv_blocks": None,
    "kv_cache_bytes": None,
    "kv_cache_dtype": "int8",
    "max_model_len": None,
    "prefill_chunk_tokens": 512,
    "enable_prefix_caching": True,
    "lookahead": 1,
    "num_threads": None,
    "isa": None,
    "enable": (),
}


def parameters_of(function):
    return set(inspect.signature(function).parameters)


def test_llm_and_its_outputs():
    assert {"prompts", "sampling_params"} <= parameters_of(LLM.generate)
    assert all(hasattr(LLM, name) for name in ("close", "__enter__", "__exit__", "stream"))
    names = ("prompt_token_ids", "token_ids", "text", "finish_reason", "logprobs")
    fields = {field.name for field in dataclasses.fields(GenerationOutput)}
    assert all(name in fields or hasattr(GenerationOutput, name) for name in names)
    assert SamplingParams(temperature=0, max_tokens=1).max_tokens == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_have_their_names_and_defaults_in_python_and_yaml(name):
    assert getattr(EngineConfig(), name) == SETTINGS[name]
    assert getattr(EngineSettings(), name) == SETTINGS[name]


def test_application_and_handle_methods():
    assert APPLICATION_NAME == "qwen3-a8w8"
    (settings,) = inspect.signature(build_app).parameters.values()
    assert settings.annotation is AppSettings
    options = {"priority", "timeout_s", "cache_salt"}
    for name in ("generate", "generate_stream"):
        assert {"prompt", "sampling"} | options <= parameters_of(getattr(Ingress, name))
    assert {"prompts", "sampling"} | options <= parameters_of(Ingress.generate_batch)


def options_of(command):
    return {option for param in command.params for option in param.opts}


def test_commands_and_the_option_for_an_instruction_path():
    commands = typer.main.get_command(app).commands
    assert set(commands) >= COMMANDS
    bench = commands["bench"].commands
    assert set(bench) >= {"kernels", "engine", "serve"}
    with_isa = [commands[name] for name in ("generate", "serve", "check")]
    for command in (*with_isa, bench["kernels"], bench["engine"]):
        assert "--isa" in options_of(command), command.name


@pytest.mark.parametrize("target", ["install", "demo", "check", "test", "bench", "format"])
def test_make_target(target):
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)


def test_markers(pytestconfig):
    names = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    assert {"serve", "chaos", "npu_contract", "clients", "gpu", "slow"} <= names
