"""The application on a real local Ray Serve with fake runners, over HTTP and by handle."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qwen3_a8w8.engine.sampling_params import SamplingParams
from qwen3_a8w8.errors import InvalidRequestError, UnsupportedBatchSizeError
from tests.support.cluster import DEADLINE_S, open_connection, wait_until
from tests.support.fake_deployment import expected_tokens

pytestmark = pytest.mark.serve

SEED = 11


@pytest.fixture
def client(application):
    with application.client() as client:
        yield client


@pytest.fixture
def http(application):
    with application.http() as client:
        yield client


def expected_texts(application, prompt, *, max_tokens, n=1, seed=SEED):
    tokenizer = application.tokenizer
    sampling = SamplingParams(max_tokens=max_tokens, n=n, seed=seed, ignore_eos=True)
    outputs = expected_tokens(application.capabilities, tokenizer.encode(prompt), sampling)
    return [tokenizer.decode(ids) for ids in outputs]


def complete(client, prompt, **fields):
    fields = {"seed": SEED, "extra_body": {"ignore_eos": True}} | fields
    return client.completions.create(model="tiny", prompt=prompt, **fields)


def test_chat_streamed_and_whole_give_the_same_message(client):
    request = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 20,
        "seed": SEED,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks].count("length") == 1
    assert whole.usage.completion_tokens == 20


def test_completion_gives_the_runners_tokens(client, application):
    answer = complete(client, "the fox", max_tokens=30)
    assert [answer.choices[0].text] == expected_texts(application, "the fox", max_tokens=30)


def test_stream_arrives_token_by_token(client, application):
    texts = [expected_texts(application, "the fox", max_tokens=count)[0] for count in range(1, 31)]
    # A token that may end within a character keeps it back until the next one.
    readable = [
        count
        for count, text in enumerate(texts, 1)
        if not text.endswith("\N{REPLACEMENT CHARACTER}")
    ]
    assert len(readable) > 10
    text = ""
    with application.gate.closed(0):
        stream = complete(client, "the fox", max_tokens=30, stream=True)
        for count in readable:
            application.gate.close(count)
            while len(text) < len(texts[count - 1]):
                text += next(stream).choices[0].text
            assert text == texts[count - 1]


def test_twenty_concurrent_requests_each_get_their_own_answer(client, application):
    prompts = [f"the fox and {i} dogs" for i in range(20)]
    with ThreadPoolExecutor(len(prompts)) as pool, application.gate.closed(0):
        answers = pool.map(lambda p: complete(client, p, max_tokens=24), prompts)
        application.wait_for_sequences(len(prompts))
        application.gate.open()
        answers = list(answers)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [answer.choices[0].text] == expected_texts(application, prompt, max_tokens=24)
    application.wait_until_idle()
    counters = [report.stats.counters for report in application.reports()]
    assert any(16 in counter.decode_batches for counter in counters)


def test_n_two_gives_two_different_answers(client, application):
    answer = complete(client, "the fox", n=2, max_tokens=16)
    texts = [choice.text for choice in answer.choices]
    assert texts == expected_texts(application, "the fox", max_tokens=16, n=2)
    assert texts[0] != texts[1]


def test_stop_string_ends_the_sequence_in_the_engine(client, application):
    (text,) = expected_texts(application, "the fox", max_tokens=100)
    stop = text[8:11]
    answer = complete(client, "the fox", max_tokens=100, stop=stop)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    application.wait_until_idle()


def num_aborted(application):
    return sum(r.stats.num_finished.get("abort", 0) for r in application.reports())


def test_disconnect_mid_stream_frees_every_block(http, application):
    body = {"prompt": "the fox", "max_tokens": 200, "stream": True, "ignore_eos": True, "n": 2}
    num_before = num_aborted(application)
    with application.gate.closed(20):
        with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            next(response.iter_text())
        wait_until(lambda: num_aborted(application) == num_before + 2, "both are aborted")
    application.wait_until_idle()


def test_disconnect_while_waiting_for_the_whole_answer_frees_every_block(application):
    num_before = num_aborted(application)
    body = json.dumps({"prompt": "the fox", "max_tokens": 200, "ignore_eos": True})
    headers = {"Content-Type": "application/json"}
    with application.gate.closed(20):
        with open_connection(application) as connection:
            connection.request("POST", "/v1/completions", body, headers)
            application.wait_for_sequences(1)
        wait_until(lambda: num_aborted(application) == num_before + 1, "the sequence is aborted")
    application.wait_until_idle()


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ("{", 400, "JSON"),
        ('{"prompt": ""}', 400, "prompt"),
        (json.dumps({"prompt": [5] * 400}), 400, "400 tokens"),
        ('{"prompt": "x", "max_tokens": -1}', 400, "max_tokens"),
        ('{"prompt": "x", "temperature": NaN}', 400, "temperature"),
        ('{"prompt": "x", "model": "other"}', 404, "other"),
    ],
)
def test_bad_request_gets_an_openai_error_and_the_server_continues(
    http, application, body, status, named
):
    answer = http.post("/v1/completions", content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    good = http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    assert good.status_code == 200
    application.wait_until_idle()


def test_models_health_and_unknown_routes_answer_in_shape(http):
    assert [card["id"] for card in http.get("/v1/models").json()["data"]] == ["tiny"]
    assert http.get("/health").status_code == 200
    missing = http.get("/v1/nothing")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "not_found"


def test_metrics_have_all_replicas(http, application):
    ids = {report.replica_id for report in application.reports()}

    def replicas_of(name):
        families = text_string_to_metric_families(http.get("/metrics").text)
        (family,) = [family for family in families if family.name == f"qwen3_a8w8_{name}"]
        return {sample.labels["replica"] for sample in family.samples}

    for name in ("num_requests_running", "kv_blocks_in_use", "steps"):
        # The ingress hears a little later than this process of a replica that is new.
        wait_until(lambda name=name: replicas_of(name) == ids, f"{name} of all replicas")


def test_ready_and_version_answer(http):
    assert http.get("/ready").json() == {"status": "ready", "model": "tiny"}
    assert http.get("/version").json()["device"] == {"device": "fake"}


def test_response_is_continued_by_its_id(client, application):
    request = {"model": "tiny", "max_output_tokens": 8, "extra_body": {"ignore_eos": True}}
    first = client.responses.create(input="hi", **request)
    second = client.responses.create(input="go on", previous_response_id=first.id, **request)
    assert second.usage.input_tokens > first.usage.total_tokens
    with client.responses.stream(input="hi", **request) as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"
    application.wait_until_idle()


def test_handle_generate_gives_ids_and_text(application):
    sampling = {"max_tokens": 12, "seed": SEED, "ignore_eos": True}
    output = application.handle.generate.remote("the fox", sampling).result(timeout_s=DEADLINE_S)
    assert [output.text] == expected_texts(application, "the fox", max_tokens=12)
    assert output.prompt_token_ids == tuple(application.tokenizer.encode("the fox"))
    assert len(output.token_ids) == 12
    assert output.finish_reason == "length"


def test_handle_generate_stream_yields_the_same_text(application):
    sampling = SamplingParams(max_tokens=12, seed=SEED, ignore_eos=True)
    stream = application.handle.options(stream=True).generate_stream.remote("the fox", sampling)
    deltas = list(stream)
    assert ["".join(delta.text for delta in deltas)] == expected_texts(
        application, "the fox", max_tokens=12
    )
    assert deltas[-1].finish_reason == "length"


@pytest.mark.parametrize("num_prompts", [1, 16])
def test_handle_generate_batch_answers_in_the_order_of_the_prompts(application, num_prompts):
    prompts = [f"the dog {i}" for i in range(num_prompts)]
    sampling = {"max_tokens": 6, "seed": SEED, "ignore_eos": True}
    outputs = application.handle.generate_batch.remote(prompts, sampling).result(
        timeout_s=DEADLINE_S
    )
    assert [output.text for output in outputs] == [
        expected_texts(application, prompt, max_tokens=6)[0] for prompt in prompts
    ]


@pytest.mark.parametrize("num_prompts", [0, 2, 15, 17])
def test_handle_generate_batch_of_another_size_is_refused(application, num_prompts):
    # None is no prompt: the size is looked at before anything else.
    response = application.handle.generate_batch.remote([None] * num_prompts)
    with pytest.raises(UnsupportedBatchSizeError, match="1 or 16"):
        response.result(timeout_s=DEADLINE_S)


def test_handle_generate_with_an_unknown_setting_names_the_valid_ones(application):
    response = application.handle.generate.remote("x", {"temprature": 1})
    with pytest.raises(InvalidRequestError, match=r"temprature.*temperature"):
        response.result(timeout_s=DEADLINE_S)


def test_form_is_looked_at_by_the_actor_before_the_request_is_admitted(http, client, application):
    body = {"prompt": "the fox", "guided_regex": "[a-z]+"}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == ("guided_regex", "a fake runner has no grammars")
    answer = complete(client, "the fox", max_tokens=5)
    assert [answer.choices[0].text] == expected_texts(application, "the fox", max_tokens=5)
