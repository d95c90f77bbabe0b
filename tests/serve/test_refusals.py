"""Many requests at once against a short queue: what is refused, and what is answered."""

import asyncio
import contextlib

import httpx
import pytest
from ray import serve

from deployments.app import build_app
from deployments.settings import AppSettings
from qwen3_a8w8.engine.sampling_params import SamplingParams
from tests.support.cluster import DEADLINE_S
from tests.support.fake_deployment import FAKE_RUNNER, expected_tokens
from tests.support.step_gate import StepGate
from tests.support.text_fixtures import write_tokenizer_files

pytestmark = pytest.mark.serve

NAME = "short-queue"
NUM_RUNNING, NUM_QUEUED = 16, 32
NUM_REQUESTS = 100
MAX_TOKENS = 12


@pytest.fixture(scope="module")
def gate(application, tmp_path_factory):
    """One replica with a short queue, beside the other application; holds its steps."""
    directory = write_tokenizer_files(tmp_path_factory.mktemp("short"))
    settings = AppSettings(
        model=str(directory),
        served_model_name="tiny",
        runner_factory=FAKE_RUNNER,
        engine={"max_running_requests": NUM_RUNNING, "max_queued_requests": NUM_QUEUED},
        # The other application has reserved nearly all there is.
        replicas={"batch_router_num_cpus": 0.05, "actor_num_cpus": 0.1},
        http={"num_cpus": 0.05},
    )
    serve.run(build_app(settings), name=NAME, route_prefix=f"/{NAME}")
    try:
        yield StepGate(directory)
    finally:
        serve.delete(NAME)


@contextlib.asynccontextmanager
async def sending(application):
    limits = httpx.Limits(max_connections=NUM_REQUESTS)
    async with httpx.AsyncClient(
        base_url=f"{application.url}/{NAME}", timeout=DEADLINE_S, limits=limits
    ) as client:

        def send(prompt):
            body = {"prompt": prompt, "max_tokens": MAX_TOKENS, "seed": 5, "ignore_eos": True}
            return asyncio.create_task(client.post("/v1/completions", json=body))

        yield send


async def test_refusals_wait_for_no_answer_and_an_idle_server_takes_everything(application, gate):
    prompts = [f"the fox and {i} dogs" for i in range(NUM_REQUESTS)]
    num_accepted = NUM_RUNNING + NUM_QUEUED
    tokenizer = application.tokenizer
    sampling = SamplingParams(max_tokens=MAX_TOKENS, seed=5, ignore_eos=True)

    def expected(prompt):
        (ids,) = expected_tokens(application.capabilities, tokenizer.encode(prompt), sampling)
        return tokenizer.decode(ids)

    async with sending(application) as send:
        for _ in range(2):  # the second time after the first time's refusals
            with gate.closed(1):
                requests = {send(prompt): prompt for prompt in prompts}
                # Nothing is answered before the gate opens, so these are the refusals.
                refused = set()
                while len(refused) < NUM_REQUESTS - num_accepted:
                    done, _ = await asyncio.wait(
                        requests.keys() - refused,
                        timeout=DEADLINE_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    assert done, f"{len(refused)} refusals"
                    refused |= done
            for request in refused:
                answer = request.result()
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "server_overloaded"
                assert int(answer.headers["retry-after"]) >= 1
            accepted = requests.keys() - refused
            assert len(accepted) == num_accepted
            for request in accepted:
                answer = await request
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["text"] == expected(requests[request])
            # All have ended: as many again are taken at once, none is refused by what was true.
            again = [send(prompt) for prompt in prompts[:num_accepted]]
            for answer, prompt in zip(await asyncio.gather(*again), prompts, strict=False):
                assert answer.status_code == 200, answer.text
                assert answer.json()["choices"][0]["text"] == expected(prompt)
