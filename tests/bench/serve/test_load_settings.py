"""Options that can't be used are errors before anything is sent."""

import math

import pytest

from qwen3_a8w8.bench.serve.dataset_settings import DatasetSettings
from qwen3_a8w8.bench.serve.settings import (
    ResultSettings,
    ServeBench,
    ServerSettings,
    TrafficSettings,
)
from qwen3_a8w8.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (DatasetSettings, {"dataset_path": "x.json"}, "choose sharegpt or custom"),
        (DatasetSettings, {"dataset_name": "sharegpt"}, "--dataset-path is None"),
        (DatasetSettings, {"random_range_ratio": "1.0"}, r"'1.0', expected a number in \[0, 1\)"),
        (DatasetSettings, {"random_range_ratio": '{"input": 0.5}'}, "random-range-ratio"),
        (TrafficSettings, {"request_rate": 0.0}, "--request-rate is 0.0, expected more than 0"),
        (TrafficSettings, {"burstiness": math.nan}, "--burstiness is nan"),
        (TrafficSettings, {"extra_body": "[1]"}, "--extra-body is '\\[1\\]', expected a JSON obj"),
        (TrafficSettings, {"ramp_up_start_rps": 1}, "need --ramp-up-strategy"),
        (TrafficSettings, {"ramp_up_strategy": "linear"}, "needs --ramp-up-start-rps"),
        (
            TrafficSettings,
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 5, "ramp_up_end_rps": 4},
            "is 5 and --ramp-up-end-rps 4",
        ),
        (
            TrafficSettings,
            {"ramp_up_strategy": "linear", "request_rate": 2.0},
            "leave --request-rate out",
        ),
        (ResultSettings, {"percentile_metrics": "ttft,latency"}, r"has \['latency'\], expected of"),
        (ResultSettings, {"metric_percentiles": "50,101"}, "numbers from 0 to 100"),
        (ResultSettings, {"goodput": ["itl:5"]}, "'itl:5', expected METRIC:MILLISECONDS"),
        (ResultSettings, {"goodput": ["ttft:fast"]}, "'ttft:fast'"),
        (ResultSettings, {"metadata": ["tp"]}, "--metadata has 'tp', expected KEY=VALUE"),
    ],
)
def test_invalid_option_is_refused_by_name(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(**values)


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/chat/completions"), ("openai-chat", "/generate")]
)
def test_endpoint_of_another_backend_is_refused(backend, endpoint):
    with pytest.raises(ConfigError, match="change --backend"):
        _ = ServerSettings(backend=backend, endpoint=endpoint).path


def test_url_is_the_base_url_or_host_and_port():
    assert ServerSettings(base_url="https://llm.example/api/").url == "https://llm.example/api"
    assert ServerSettings(host="::1", port=80).url == "http://[::1]:80"
    assert ServerSettings(backend="openai-chat").path == "/v1/chat/completions"


def test_general_lengths_take_precedence_over_the_dataset_s_own():
    dataset = DatasetSettings(input_len=5, output_len=6, random_input_len=7, random_output_len=8)
    assert (dataset.input_tokens, dataset.output_tokens) == (5, 6)
    assert DatasetSettings(random_output_len=8).output_tokens == 8
    both = DatasetSettings(random_range_ratio='{"input": 0.1, "output": 0.4}')
    assert both.range_ratios == (0.1, 0.4)
    assert DatasetSettings(random_range_ratio="0.3").range_ratios == (0.3, 0.3)


def test_random_prompts_ignore_eos_and_files_do_so_on_demand(tmp_path):
    path = tmp_path / "x.jsonl"
    path.touch()
    custom = DatasetSettings(dataset_name="custom", dataset_path=path)
    for dataset, traffic, expected in (
        (DatasetSettings(), TrafficSettings(), True),
        (custom, TrafficSettings(), False),
        (custom, TrafficSettings(ignore_eos=True), True),
    ):
        bench = ServeBench(ServerSettings(), dataset, traffic, ResultSettings())
        assert bench.ignores_eos is expected
