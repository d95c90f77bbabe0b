"""Valid settings, and how invalid and deprecated ones are handled."""

import runpy
from dataclasses import fields

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from deployments.settings import (
    DEPRECATED_KEYS_END,
    AppSettings,
    EngineSettings,
    FailoverSettings,
    ReplicaSettings,
    StrictSettings,
)
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.errors import ConfigError
from qwen3_a8w8.version import __version__


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


def test_near_miss_names_the_closest_key():
    with pytest.raises(ValidationError, match=r"did you mean 'block_size'\?"):
        EngineSettings.model_validate({"blok_size": 16})


DEPRECATED = [
    (FailoverSettings, "max_deaths", "max_engine_crashes", 5),
    (ReplicaSettings, "router_num_cpus", "batch_router_num_cpus", 2.0),
]


@pytest.mark.parametrize(("section", "old", "new", "value"), DEPRECATED)
def test_deprecated_key_sets_the_new_one_with_a_warning(section, old, new, value, caplog):
    with pytest.warns(DeprecationWarning, match=new) as warned:
        settings = section.model_validate({old: value})
    assert settings == section.model_validate({new: value})
    expected = (
        f"the key {old!r} in {section.__name__} is deprecated and is removed in version "
        f"{DEPRECATED_KEYS_END}; rename it to {new!r}"
    )
    assert [str(warning.message) for warning in warned] == [expected]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", expected)
    ]


@pytest.mark.parametrize(("section", "old", "new", "value"), DEPRECATED)
def test_deprecated_key_beside_the_new_one_is_an_error_that_names_both(section, old, new, value):
    with pytest.raises(ValidationError, match=f"has both '{old}' and '{new}'.*remove '{old}'"):
        section.model_validate({old: value, new: value})


def test_deprecated_key_works_in_a_section_of_the_application():
    with pytest.warns(DeprecationWarning, match="max_engine_crashes"):
        settings = AppSettings.model_validate({"failover": {"max_deaths": 7}})
    assert settings.failover.max_engine_crashes == 7


def test_deprecated_value_out_of_range_is_refused_under_the_new_name():
    with (
        pytest.warns(DeprecationWarning, match="max_deaths"),
        pytest.raises(ValidationError, match="max_engine_crashes"),
    ):
        FailoverSettings.model_validate({"max_deaths": -1})


def test_deprecated_keys_name_fields_and_end_after_this_version():
    def numbers(version):
        return tuple(map(int, version.split(".")))

    assert numbers(__version__) < numbers(DEPRECATED_KEYS_END)
    for section in StrictSettings.__subclasses__():
        assert set(section.deprecated_keys.values()) <= section.model_fields.keys()
        assert not section.deprecated_keys.keys() & section.model_fields.keys()


def test_values_of_the_caller_are_not_changed_by_a_deprecated_key():
    values = {"max_deaths": 3, "max_resumes": 1}
    with pytest.warns(DeprecationWarning, match="max_deaths"):
        FailoverSettings.model_validate(values)
    assert values == {"max_deaths": 3, "max_resumes": 1}


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


def check_application(config):
    (application,) = config["applications"]
    assert application["name"] == "qwen3-a8w8"
    assert application["import_path"] == "deployments.app:build_app"
    settings = AppSettings.model_validate(application["args"])
    settings.engine.to_config()
    return settings


@pytest.mark.parametrize("name", ["local", "cpu_node", "ascend_node", "ascend_cluster"])
def test_shipped_cluster_configs_are_valid(name, request):
    path = request.config.rootpath / "cluster_configs" / f"{name}.yaml"
    config = yaml.safe_load(path.read_text())
    check_application(config)
    # Serve's own model of the file: it knows the keys beside `args`.
    ServeDeploySchema.model_validate(config)


def test_ray_service_has_room_for_what_its_application_reserves(request):
    path = request.config.rootpath / "cluster_configs" / "kuberay" / "rayservice.yaml"
    objects = {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}
    service = objects["RayService"]
    assert service["apiVersion"] == "ray.io/v1"
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    ServeDeploySchema.model_validate(config)
    settings = check_application(config)
    cluster = service["spec"]["rayClusterConfig"]
    (workers,) = cluster["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    cpus = float(worker["resources"]["limits"]["cpu"])
    replica = settings.replicas.actor_num_cpus + settings.replicas.batch_router_num_cpus
    assert workers["replicas"] >= settings.replicas.num_replicas
    assert cpus >= replica + settings.http.num_cpus
    # Packed weights outlive a pod: they lie in the volume that the settings name.
    mounts = {mount["name"]: mount["mountPath"] for mount in worker["volumeMounts"]}
    volumes = {volume["name"] for volume in workers["template"]["spec"]["volumes"]}
    assert set(mounts) <= volumes
    assert settings.engine.packed_cache_dir.startswith(mounts["models"])
    assert settings.model.startswith(mounts["models"])
    (claim,) = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in workers["template"]["spec"]["volumes"]
        if volume["name"] == "models"
    ]
    assert objects["PersistentVolumeClaim"]["metadata"]["name"] == claim


def test_configuration_reference_is_that_of_the_settings(request):
    path = request.config.rootpath / "tools" / "configuration_doc.py"
    program = runpy.run_path(str(path))
    assert program["PATH"].read_text() == program["text"]()


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
