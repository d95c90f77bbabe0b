"""`qwen3-a8w8 generate`: complete one prompt on the terminal, streamed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli import options


@options.expanded
def generate(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The prompt.")],
    model: options.Model = "demo",
    is_raw: Annotated[
        bool, typer.Option("--raw", help="Complete the plain prompt, without chat template.")
    ] = False,
    *,
    engine: options.EngineOptions,
    answer: options.SamplingOptions,
) -> None:
    """Complete one prompt; the output goes to stdout, a summary to stderr."""
    from qwen3_a8w8.llm import LLM  # torch takes seconds; --help shouldn't

    with LLM(model, **engine.settings()) as llm:
        sampling = answer.over(llm.default_sampling_params())
        has_template = llm.chat_template is not None and not is_raw
        ids = (
            llm.chat_prompt([{"role": "user", "content": prompt}], enable_thinking=answer.thinking)
            if has_template
            else llm.tokenizer.encode(prompt)
        )
        num_tokens = 0
        finish_reason = None
        for delta in llm.stream(ids, sampling):
            typer.echo(delta.text, nl=False)
            num_tokens += len(delta.token_ids)
            finish_reason = delta.finish_reason
        typer.echo()
        Console(stderr=True).print(
            f"{len(ids)} prompt tokens, {num_tokens} generated, finish_reason {finish_reason}",
            style="dim",
        )
