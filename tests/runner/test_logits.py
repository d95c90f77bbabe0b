"""Our logits against transformers' Qwen3 in float32, on the same (dequantised) weights."""

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from qwen3_a8w8.checkpoint import names
from qwen3_a8w8.checkpoint.checkpoint import open_checkpoint
from qwen3_a8w8.checkpoint.reader import FloatLinear
from qwen3_a8w8.kernels.cpu.backend import CpuBackend
from qwen3_a8w8.kernels.reference import ReferenceBackend
from tests.support.checkpoints import make_compressed_qwen3, make_random_qwen3
from tests.support.modelslim import make_modelslim_qwen3
from tests.support.runners import all_logits, make_runner


def dequantised_twin(path):
    """transformers' model with the weights that our reader gives, in float32."""
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(path)).float().eval()
    state = {}
    with open_checkpoint(path) as checkpoint:
        for name in names.float_tensors(checkpoint.config):
            state[name] = checkpoint.tensor(name).float()
        for layer in range(checkpoint.config.num_layers):
            for name in names.LINEAR_NAMES:
                linear = checkpoint.linear(layer, name)
                if isinstance(linear, FloatLinear):
                    weight = linear.weight.float()
                else:
                    weight = linear.w_q.float() * linear.w_scale[:, None]
                state[f"{names.linear_module(layer, name)}.weight"] = weight
        if checkpoint.config.tie_word_embeddings:
            state[names.LM_HEAD] = state[names.EMBED_TOKENS]
    model.load_state_dict(state)
    return model


MIXED = {
    "model.layers.0.mlp.down_proj": "FLOAT",
    "model.layers.0.self_attn.k_proj": "FLOAT",
    "model.layers.1.self_attn.o_proj": "FLOAT",
    "model.layers.1.mlp.up_proj": "FLOAT",
}


@pytest.fixture(scope="module", params=["tied", "untied", "mixed"])
def model_path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    options = {"seed": 3, "initializer_range": 0.015}
    if request.param == "mixed":
        make_modelslim_qwen3(path, MIXED, **options)
    else:
        make_random_qwen3(path, tied=request.param == "tied", **options)
    return path


@pytest.fixture(scope="module")
def truth(model_path):
    twin = dequantised_twin(model_path)
    ids = torch.randint(0, twin.config.vocab_size, (1, 50), generator=torch.manual_seed(5))
    with torch.no_grad():
        return ids[0].tolist(), twin(ids).logits[0]


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_logits_without_activation_quantisation_equal_transformers(model_path, truth):
    ids, expected = truth
    runner = make_runner(model_path, ReferenceBackend(is_exact=True))
    assert relative_error(all_logits(runner, ids), expected) < 1e-4
    runner.close()


def test_logits_with_yarn_equal_transformers_beyond_the_native_context(tmp_path):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    make_random_qwen3(tmp_path, seed=3, initializer_range=0.015, rope_scaling=yarn)
    twin = dequantised_twin(tmp_path)
    ids = torch.randint(0, 512, (1, 100), generator=torch.manual_seed(7))
    with torch.no_grad():
        expected = twin(ids).logits[0]
    runner = make_runner(tmp_path, ReferenceBackend(is_exact=True))
    assert relative_error(all_logits(runner, ids[0].tolist()), expected) < 1e-4
    runner.close()


@pytest.mark.parametrize("backend", [ReferenceBackend, CpuBackend])
def test_logits_in_a8w8_stay_close_to_transformers(model_path, truth, backend):
    ids, expected = truth
    runner = make_runner(model_path, backend())
    assert relative_error(all_logits(runner, ids), expected) < 2e-2
    runner.close()


def test_logits_of_a_compressed_tensors_checkpoint_stay_close_to_their_own(tmp_path):
    twin = make_compressed_qwen3(tmp_path, seed=3, initializer_range=0.015).float()
    ids = torch.randint(0, 512, (1, 50), generator=torch.manual_seed(6))
    with torch.no_grad():
        expected = twin(ids).logits[0]
    runner = make_runner(tmp_path, CpuBackend())
    assert relative_error(all_logits(runner, ids[0].tolist()), expected) < 2e-2
    runner.close()
