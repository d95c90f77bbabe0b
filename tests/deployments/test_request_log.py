"""What a replica's log says of requests that it refuses."""

import logging

import pytest

from deployments.replicas.refusal_log import RefusalFilter
from qwen3_a8w8.errors import (
    CapacityError,
    ContextLengthError,
    EngineDeadError,
    InvalidRequestError,
)


@pytest.fixture
def logger(caplog):
    """A logger to which a replica has added its filter; Serve's way to log a failure uses it."""
    logger, refusals = logging.getLogger("tests.request_log"), RefusalFilter()
    logger.addFilter(refusals)
    yield logger
    logger.removeFilter(refusals)


def log_failure(logger, error):
    try:
        raise error
    except Exception:
        logger.exception("Request failed.")


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (InvalidRequestError("the grammar\nisn't one"), logging.INFO),
        (ContextLengthError("the grammar isn't one"), logging.INFO),
        (CapacityError("the grammar isn't one", retry_after_s=1.0), logging.WARNING),
    ],
)
def test_refused_request_is_one_line_below_error(logger, caplog, error, level):
    caplog.set_level(logging.INFO)
    log_failure(logger, error)
    (record,) = caplog.records
    assert record.levelno == level
    assert record.levelname == logging.getLevelName(level)
    assert caplog.text.count("\n") == 1
    assert record.getMessage() == "request refused: the grammar isn't one"


def test_fault_of_a_client_is_not_logged_where_only_warnings_are(logger, caplog):
    caplog.set_level(logging.WARNING)
    log_failure(logger, InvalidRequestError("the grammar isn't one"))
    assert not caplog.records


def test_failure_of_the_replica_keeps_its_traceback(logger, caplog):
    log_failure(logger, EngineDeadError("the actor is gone"))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "Traceback" in caplog.text
