"""Reading API keys, recognising them, and counting what each one asks for."""

import pytest

from deployments.http.api_keys import ApiKeys, KeyLimits
from deployments.settings import SecuritySettings
from qwen3_a8w8.errors import ConfigError, RateLimitError


def test_no_file_and_no_variable_give_no_keys():
    assert ApiKeys.from_settings(SecuritySettings(), {}) is None


def test_keys_come_from_file_and_environment_together(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# team a\nfirst-key\n\n  second-key  \n")
    settings = SecuritySettings(api_key_file=str(path))
    keys = ApiKeys.from_settings(settings, {"QWEN3_A8W8_API_KEY": "third-key, fourth-key"})
    known = [b"first-key", b"second-key", b"third-key", b"fourth-key"]
    assert [keys.identify(key) for key in known] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "key", [b"", b"first", b"first-keyy", b"FIRST-KEY", b"# team a", b"first-key ", b"\xff"]
)
def test_other_strings_are_no_keys(key):
    assert ApiKeys(["first-key"]).identify(key) is None


def test_variable_can_be_named_and_then_the_default_one_is_not_read():
    settings = SecuritySettings(api_key_env="TEAM_KEY")
    environ = {"TEAM_KEY": "right-key", "QWEN3_A8W8_API_KEY": "wrong-key"}
    keys = ApiKeys.from_settings(settings, environ)
    assert keys.identify(b"right-key") == 0
    assert keys.identify(b"wrong-key") is None


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_file_without_a_key_is_refused(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ConfigError, match="has no key"):
        ApiKeys.from_settings(SecuritySettings(api_key_file=str(path)), {})


def test_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no_such.*can't be read"):
        ApiKeys.from_settings(SecuritySettings(api_key_file=str(tmp_path / "no_such")), {})
    path = tmp_path / "keys"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="isn't ASCII"):
        ApiKeys.from_settings(SecuritySettings(api_key_file=str(path)), {})


def test_named_variable_that_is_not_set_is_refused():
    with pytest.raises(ConfigError, match="TEAM_KEY"):
        ApiKeys.from_settings(SecuritySettings(api_key_env="TEAM_KEY"), {})


@pytest.mark.parametrize("value", ["", "  ", "good-key,,other", "good-key,with space", "kéy"])
def test_empty_or_unsendable_key_in_the_variable_is_refused_without_showing_it(value):
    with pytest.raises(ConfigError) as caught:
        ApiKeys.from_settings(SecuritySettings(), {"QWEN3_A8W8_API_KEY": value})
    assert "good-key" not in str(caught.value)


def test_concurrent_requests_of_a_key_are_limited_and_keys_do_not_share():
    limits = KeyLimits(2, None)
    limits.start(0)
    limits.start(0)
    with pytest.raises(RateLimitError, match="2 running requests"):
        limits.start(0)
    limits.start(1)
    limits.end(0)
    limits.start(0)


def test_requests_per_minute_are_limited_in_a_sliding_window():
    now_s = [100.0]
    limits = KeyLimits(None, 2, clock_s=lambda: now_s[0])
    for begin_s in (100.0, 130.0):
        now_s[0] = begin_s
        limits.start(0)
        limits.end(0)
    now_s[0] = 150.0
    with pytest.raises(RateLimitError, match="2 requests in the last 60 s") as caught:
        limits.start(0)
    assert caught.value.retry_after_s == 10.0
    limits.start(1)
    now_s[0] = 160.0
    limits.start(0)  # the one of 100.0 has left the window
    with pytest.raises(RateLimitError):
        limits.start(0)


def test_request_refused_for_concurrency_does_not_count_for_the_minute():
    limits = KeyLimits(1, 2, clock_s=lambda: 0.0)
    limits.start(0)
    for _ in range(5):
        with pytest.raises(RateLimitError, match="1 running requests"):
            limits.start(0)
    limits.end(0)
    limits.start(0)
