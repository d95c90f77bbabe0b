"""`qwen3-a8w8 chat` with lines from a pipe."""

from typer.testing import CliRunner

from qwen3_a8w8.cli.main import app


def test_piped_lines_get_their_answers_and_nothing_else():
    lines = "Hello!\n\n/new\nHello!\n"
    options = ["--max-tokens", "4", "--temperature", "0"]
    result = CliRunner().invoke(app, ["chat", *options], input=lines)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    first, second = result.stdout.splitlines()
    # Each answers the same conversation, as /new has started a new one.
    assert first == second != ""
