"""What a YAML may say, and what happens with the rest."""

from dataclasses import fields

import pytest
import yaml
from pydantic import ValidationError

from deployments.settings import AppSettings, EngineSettings
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError


def test_defaults_are_those_of_the_engine_config():
    assert AppSettings().engine.to_config() == EngineConfig()


@pytest.mark.parametrize(
    ("section", "key"),
    [("engine", "kv_cache_dtyp"), ("replicas", "num_replica"), ("http", "port"), (None, "modell")],
)
def test_unknown_key_is_named_with_the_valid_ones(section, key):
    values = {key: 1} if section is None else {section: {key: 1}}
    with pytest.raises(ValidationError) as caught:
        AppSettings.model_validate(values)
    message = str(caught.value)
    assert repr(key) in message
    model = AppSettings if section is None else AppSettings.model_fields[section].annotation
    for name in model.model_fields:
        assert name in message


def test_near_miss_is_told_what_was_meant():
    with pytest.raises(ValidationError, match=r"did you mean 'block_size'\?"):
        EngineSettings.model_validate({"blok_size": 16})


def test_engine_section_has_the_fields_and_defaults_of_the_engine_config():
    assert EngineSettings().to_config() == EngineConfig()
    assert set(EngineSettings.model_fields) == {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"block_size": 17}, "block_size is 17"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"decode_batch_sizes": [1, 8]}, "decode_batch_sizes"),
    ],
)
def test_engine_value_out_of_range_names_field_and_value(values, named):
    with pytest.raises(ConfigError, match=named):
        EngineSettings.model_validate(values).to_config()


@pytest.mark.parametrize(
    "values",
    [
        {"actor_num_npus": 0.5},
        {"actor_num_npus": 2},
        {"actor_resources": {"NPU": 1}},
        {"actor_resources": {"DEV": 0}},
        {"num_replicas": 0},
    ],
)
def test_resources_that_cant_be_isolated_or_counted_are_refused(values):
    with pytest.raises(ValidationError):
        AppSettings.model_validate({"replicas": values})


def test_actor_that_reserves_nothing_is_refused():
    with pytest.raises(ValidationError, match="reserves nothing"):
        AppSettings.model_validate({"replicas": {"actor_num_cpus": 0}})


@pytest.mark.parametrize("name", ["local", "ascend"])
def test_shipped_cluster_configs_are_valid(name, request):
    path = request.config.rootpath / "cluster_configs" / f"{name}.yaml"
    (application,) = yaml.safe_load(path.read_text())["applications"]
    assert application["name"] == "qwen3-a8w8"
    assert application["import_path"] == "deployments.app:build_app"
    AppSettings.model_validate(application["args"]).engine.to_config()


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"model": "/models/Qwen3-14B/"}, "Qwen3-14B"),
        ({"model": "Qwen/Qwen3-0.6B"}, "Qwen3-0.6B"),
        ({"model": "demo", "served_model_name": "small"}, "small"),
    ],
)
def test_public_name_is_the_last_part_of_the_model(values, name):
    assert AppSettings.model_validate(values).public_name == name
