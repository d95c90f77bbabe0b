"""Settings that every test needs."""

import pytest
import torch

from qwen3_a8w8.text.tokenizer import Tokenizer
from tests.support.text_fixtures import write_tokenizer_files


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory):
    """A directory with a small tokenizer and what belongs to it."""
    return write_tokenizer_files(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir):
    return Tokenizer.from_directory(tokenizer_dir)


# Tensors here are tiny: splitting them over threads only costs, on a busy machine a lot.
torch.set_num_threads(1)


def pytest_addoption(parser):
    parser.addoption(
        "--http-proxy",
        choices=("haproxy", "python"),
        help="what stands before the applications of serve and chaos tests; default: the server's",
    )
    parser.addoption(
        "--make-clients",
        action="store_true",
        help="install the clients of tests/clients that aren't in .cache/clients yet",
    )


def pytest_configure(config):
    """Tolerates what Ray does in this process; every other warning stays an error."""
    for line in (
        "ignore:Using extra keyword arguments on `Field`:DeprecationWarning",
        "ignore:subprocess .* is still running:ResourceWarning",
        "ignore:unclosed:ResourceWarning",
    ):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def application(tmp_path_factory, request):
    """The application on a local cluster: one for the whole run, because it takes a while."""
    # Imported here: most runs of a single test need no Ray.
    from tests.support.cluster import running_application

    http_proxy = request.config.getoption("--http-proxy")
    with running_application(tmp_path_factory.mktemp("tiny"), http_proxy) as running:
        yield running
