"""What `/openapi.json` says of responses that aren't JSON."""


async def test_metrics_are_described_as_text(http):
    schema = (await http.get("/openapi.json")).json()
    content = schema["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    assert list(content) == ["text/plain"]
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
