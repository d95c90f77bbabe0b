import functools

import pytest
import torch

from qwen3_a8w8.kernels.ops import SAMPLE_CONTROLS
from qwen3_a8w8.kernels.reference_sampling import philox4x32, uniform
from tests.kernels.single_op import SENTINEL, assert_close, reference, run_ops

FLOATS = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
INTS = {"top_k": 0, "positions": 0, "num_logprobs": -1}


def sample(backend, logits, num_active=None, biases=None, history=None, allowed=None, **settings):
    """Samples every row with `settings` (a value or one per row); the others are by row."""
    num_rows = logits.shape[0]

    def column(value, dtype):
        values = value if isinstance(value, list) else [value] * num_rows
        return torch.tensor(values, dtype=dtype)

    per_row = {"logits": logits}
    for name, default in FLOATS.items():
        per_row[name] = column(settings.pop(name, default), torch.float32)
    for name, default in INTS.items():
        per_row[name] = column(settings.pop(name, default), torch.int32)
    per_row["seeds"] = column(settings.pop("seeds", 0), torch.int64)
    assert not settings
    others = {}
    for prefix, rows, columns in (
        ("bias", biases or {}, (("ids", torch.int32), ("values", torch.float32))),
        ("history", history or {}, (("ids", torch.int32), ("counts", torch.int32))),
    ):
        ranges, flat = [], []
        for row in range(num_rows):
            entries = list(rows.get(row, {}).items())
            ranges.append([len(flat), len(flat) + len(entries)])
            flat += entries
        per_row[f"{prefix}_range"] = torch.tensor(ranges, dtype=torch.int32)
        flat = flat or [(0, 0)]
        for i, (name, dtype) in enumerate(columns):
            others[f"{prefix}_{name}"] = torch.tensor([entry[i] for entry in flat], dtype=dtype)
    starts, words = [], []
    for row in range(num_rows):
        starts.append(len(words) if row in (allowed or {}) else -1)
        if starts[-1] >= 0:
            words += _words(allowed[row], logits.shape[1])
    per_row["allowed_start"] = torch.tensor(starts, dtype=torch.int32)
    others["allowed_words"] = torch.tensor(words or [0], dtype=torch.int64).int()
    outs = {
        "sampled_ids": torch.full((num_rows, 8), SENTINEL, dtype=torch.int32),
        "logprobs": torch.full((num_rows,), float(SENTINEL)),
        "top_ids": torch.full((num_rows, 20), SENTINEL, dtype=torch.int32),
        "top_logprobs": torch.full((num_rows, 20), float(SENTINEL)),
    }

    def fn(ops, refs):
        controls = {name: refs[name] for name in SAMPLE_CONTROLS}
        ops.sample(refs["logits"], controls, *(refs[name] for name in outs))
        return ()

    run_ops(backend, fn, {**per_row, **outs}, others, updated=tuple(outs), num_active=num_active)
    return outs


def _words(allowed, vocab):
    """A bit per token, 32 in a word; bits past the vocabulary are set, nobody may look at them."""
    words = [0] * -(-vocab // 32)
    for token_id in [*allowed, *range(vocab, 32 * len(words))]:
        words[token_id // 32] |= 1 << (token_id % 32)
    return [word - 2**32 if word >= 2**31 else word for word in words]


def _logits(num_rows, vocab, spread=3.0, seed=0):
    return torch.randn(num_rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def test_philox_zero_key_and_counter_gives_the_published_words():
    # Random123, kat_vectors: philox4x32-10 of zeros.
    words = philox4x32((0, 0, 0, 0), (0, 0))
    assert words == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)


def test_sample_uniform_logits_show_the_published_random_words(backend):
    # Over 2^16 equal weights the token is the first 16 bits of the first word.
    drawn = sample(backend, torch.zeros(1, 65536))
    assert drawn["sampled_ids"].tolist() == [[0x6627, *[0] * 7]]


def test_sample_uniform_logits_draw_from_seed_and_position(backend):
    seeds = [0, 1, 2**31, 2**32 + 5, 2**63 - 1, -1, 12345, 99]
    positions = [0, 1, 2, 3, 2**31 - 1, 5, 40959, 7]
    drawn = sample(backend, torch.zeros(8, 4096), seeds=seeds, positions=positions)
    want = [int(uniform(s, p) * 4096) for s, p in zip(seeds, positions, strict=True)]
    assert drawn["sampled_ids"][:, 0].tolist() == want


def test_sample_greedy_takes_the_lowest_id_among_equals(backend):
    logits = torch.zeros(3, 1000)
    logits[0, [13, 700]] = 5.0
    logits[2, 999] = 1e-3
    drawn = sample(backend, logits, temperature=0.0)
    assert drawn["sampled_ids"][:, 0].tolist() == [13, 0, 999]


FILTERS = [
    {},
    {"top_k": 20},
    {"top_k": 1},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.0},
    {"top_k": 500, "top_p": 0.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 500, "top_p": 0.5, "min_p": 0.001},
    {"top_p": 0.999, "temperature": 2.0},
    {"temperature": 0.1},
    {"temperature": 30.0, "top_k": 900},
]


@pytest.mark.parametrize("settings", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [37, 1003, 20000])
def test_sample_filters_draw_as_the_reference(backend, vocab, settings):
    for spread in (0.0, 1.0, 6.0):
        got = _draw_filtered(backend, vocab, spread, settings)
        assert torch.equal(got, _want_filtered(vocab, spread, tuple(settings.items())))


def _draw_filtered(backend, vocab, spread, settings):
    controls = {"seeds": list(range(16)), "positions": list(range(100, 116)), **settings}
    return sample(backend, _logits(16, vocab, spread), **controls)["sampled_ids"]


@functools.cache
def _want_filtered(vocab, spread, settings):
    """The reference's draws: the same for every path, and slow."""
    return _draw_filtered(reference(), vocab, spread, dict(settings))


def test_sample_many_ties_keep_the_lower_ids(backend):
    logits = torch.zeros(64, 300)
    logits[:, 250:] = 1.0
    drawn = sample(backend, logits, top_k=60, seeds=list(range(64)), temperature=0.7)
    ids = set(drawn["sampled_ids"][:, 0].tolist())
    assert ids <= {*range(10), *range(250, 300)}
    assert len(ids) > 20


def test_sample_frequencies_follow_the_softmax(backend):
    probabilities = torch.tensor([0.5, 0.25, 0.125, 0.125])
    num_draws = 4000
    logits = probabilities.log().repeat(num_draws, 1)
    drawn = sample(backend, logits, seeds=7, positions=list(range(num_draws)))
    counts = torch.bincount(drawn["sampled_ids"][:, 0], minlength=4)
    # Pearson's statistic; 21.1 is the 0.9999 quantile with 3 degrees of freedom.
    expected = probabilities * num_draws
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1


def test_sample_biases_and_penalties_draw_as_the_reference(backend):
    logits = _logits(4, 500)
    biases = {0: {3: 100.0}, 1: {5: float("-inf"), 6: -2.5}, 3: {499: 7.25}}
    history = {0: {3: 2, 9: 0}, 1: {7: 1}, 2: {i: i % 3 for i in range(100)}, 3: {499: 60}}
    penalties = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
    }
    for temperature in (0.0, 1.0):
        for seed in range(20):
            controls = {"temperature": temperature, "seeds": seed, **penalties}
            got, want = (
                sample(b, logits, biases=biases, history=history, **controls)
                for b in (backend, reference())
            )
            assert torch.equal(got["sampled_ids"], want["sampled_ids"])


def test_sample_barred_token_is_never_drawn(backend):
    logits = torch.zeros(200, 3)
    biases = {row: {1: float("-inf")} for row in range(200)}
    drawn = sample(backend, logits, biases=biases, seeds=list(range(200)))
    assert set(drawn["sampled_ids"][:, 0].tolist()) == {0, 2}


@pytest.mark.parametrize("vocab", [31, 32, 33, 64, 1003])
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.8}])
def test_sample_masked_rows_draw_allowed_tokens_as_the_reference(backend, vocab, settings):
    logits = _logits(16, vocab)
    generator = torch.Generator().manual_seed(vocab)
    allowed = {
        row: torch.randperm(vocab, generator=generator)[: 3 * row - 2].tolist()
        for row in range(16)
        if row % 4  # the others have no mask
    }
    allowed[15] = list(range(vocab))
    biases = {1: {allowed[1][0]: -100.0}, 2: {allowed[2][0]: float("-inf")}}
    controls = {"allowed": allowed, "biases": biases, "repetition_penalty": 1.2, **settings}
    for seed in range(10):
        got = sample(backend, logits, seeds=seed, **controls)["sampled_ids"]
        assert torch.equal(got, sample(reference(), logits, seeds=seed, **controls)["sampled_ids"])
        assert all(got[row, 0] in ids for row, ids in allowed.items())
        assert got[1, 0] == allowed[1][0], "the only allowed token, whatever its bias"


def test_sample_mask_of_all_tokens_changes_nothing(backend):
    logits = _logits(8, 700)
    allowed = {row: list(range(700)) for row in range(8)}
    for settings in FILTERS:
        plain = sample(backend, logits, seeds=5, **settings)
        masked = sample(backend, logits, seeds=5, allowed=allowed, **settings)
        assert torch.equal(plain["sampled_ids"], masked["sampled_ids"])


def test_sample_masked_row_reports_logprobs_of_the_logits_as_they_came(backend):
    logits = _logits(1, 100)
    drawn = sample(backend, logits, allowed={0: [42]}, num_logprobs=2)
    assert drawn["sampled_ids"][0, 0] == 42
    assert float(drawn["logprobs"]) == pytest.approx(float(logits[0].log_softmax(0)[42]), rel=1e-6)
    assert drawn["top_ids"][0, :2].tolist() == logits[0].topk(2).indices.tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("position", [0, 17, 999])
def test_sample_logits_not_finite_give_minus_one(backend, bad, position):
    logits = _logits(2, 1000)
    logits[0, position] = bad
    drawn = sample(backend, logits, num_logprobs=3)
    assert drawn["sampled_ids"][0].tolist() == [-1, *[0] * 7]
    assert drawn["sampled_ids"][1, 0] >= 0


def test_sample_logprobs_match_reference(backend):
    logits = _logits(5, 3001)
    logits[0, [100, 2000]] = 30.0  # equals: the lower id comes first
    controls = {"num_logprobs": [-1, 0, 1, 5, 20], "seeds": [1, 2, 3, 4, 5]}
    got, want = (sample(b, logits, **controls) for b in (backend, reference()))
    assert torch.equal(got["top_ids"], want["top_ids"])
    for name in ("logprobs", "top_logprobs"):
        assert_close(got[name], want[name], 1e-6)
    ties = sample(backend, logits, num_logprobs=2)
    assert ties["top_ids"][0, :2].tolist() == [100, 2000]


def test_sample_logprobs_are_of_the_logits_as_they_came(backend):
    logits = _logits(1, 100)
    drawn = sample(backend, logits, biases={0: {42: 100.0}}, num_logprobs=0, temperature=0.2)
    assert drawn["sampled_ids"][0, 0] == 42
    assert float(drawn["logprobs"]) == pytest.approx(float(logits[0].log_softmax(0)[42]), rel=1e-6)


def test_sample_more_logprobs_than_tokens_reports_all_tokens(backend):
    drawn = sample(backend, _logits(1, 7), num_logprobs=20)
    assert sorted(drawn["top_ids"][0, :7].tolist()) == list(range(7))
    assert drawn["top_ids"][0, 7:].tolist() == [SENTINEL] * 13


def test_sample_idle_rows_are_left_alone(backend):
    logits = _logits(16, 200)
    drawn = sample(backend, logits, num_active=2, num_logprobs=1)
    assert torch.equal(drawn["sampled_ids"][2:], torch.full((14, 8), SENTINEL).int())
    assert torch.equal(drawn["logprobs"][2:], torch.full((14,), float(SENTINEL)))


def test_sample_row_alone_equals_row_in_batch_with_any_threads(by_threads):
    logits = _logits(16, 5000)
    controls = {"top_p": 0.9, "num_logprobs": 4, "seeds": 3}
    results = [sample(backend, logits, **controls) for backend in by_threads]
    for result in results:
        assert all(torch.equal(result[name], results[0][name]) for name in result)
    for row in range(16):
        alone = sample(by_threads[0], logits[row : row + 1].contiguous(), **controls)
        assert all(torch.equal(alone[name][0], results[0][name][row]) for name in alone)
