"""Options that commands share: their groups on the command line, and what comes of them."""

import io

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from qwen3_a8w8.check.report import CheckReport, TextsReport
from qwen3_a8w8.cli import options
from qwen3_a8w8.cli.check import _print
from qwen3_a8w8.config import EngineConfig
from qwen3_a8w8.engine.sampling_params import SamplingParams


def run(*arguments):
    """What a command with both groups gets."""
    seen = []
    app = typer.Typer()

    @app.command()
    @options.expanded
    def command(
        model: options.Model = "demo",
        *,
        engine: options.EngineOptions,
        answer: options.SamplingOptions,
    ) -> None:
        """Says hello."""
        seen.append((model, engine, answer))

    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return seen[0] if seen else result.output


def test_groups_without_options_are_the_defaults():
    model, engine, answer = run()
    assert (model, engine, answer) == ("demo", options.EngineOptions(), options.SamplingOptions())
    assert EngineConfig(**engine.settings()) == EngineConfig()
    own = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    assert answer.over(own) == SamplingParams(
        temperature=0.6, top_p=0.95, top_k=20, max_tokens=answer.max_tokens
    )


def test_options_reach_engine_and_sampling():
    model, engine, answer = run(
        *("-m", "x", "--device", "cpu", "--num-kv-blocks", "9", "--packed-cache-dir", "none"),
        "--no-mmap",
        *("--enable", "a", "--enable", "b", "--temperature", "0", "--seed", "3", "--thinking"),
    )
    assert model == "x"
    assert engine.settings() == {
        "device": "cpu",
        "num_threads": None,
        "isa": None,
        "max_model_len": None,
        "num_kv_blocks": 9,
        "packed_cache_dir": None,
        "use_mmap": False,
        "enable": ("a", "b"),
    }
    assert answer.thinking
    params = answer.over(SamplingParams(temperature=0.6, top_k=20))
    assert (params.temperature, params.top_k, params.seed) == (0.0, 20, 3)


def test_help_names_every_option_and_keeps_the_docstring():
    text = run("--help")
    assert "Says hello." in text
    for name in ("--num-threads", "--packed-cache-dir", "--top-p", "--no-thinking"):
        assert name in text


@pytest.mark.parametrize(
    ("reference", "shown"), [(None, "3.500 (no limit without a reference)"), (3.25, "3.500")]
)
def test_check_says_whether_perplexity_has_a_limit(reference, shown):
    agreed = None if reference is None else 1.0
    texts = TextsReport(9, 3.5, reference, agreed, None if reference is None else 0.0)
    report = CheckReport("m", "f", "w8a8", (), {}, 1, (), (), texts, {})
    console = Console(file=io.StringIO(), width=100)
    _print(report, console)
    (line,) = (row for row in console.file.getvalue().splitlines() if "of the texts" in row)
    assert [cell.strip() for cell in line.strip("│").split("│")][-1] == shown
