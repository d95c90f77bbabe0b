"""`qwen3-a8w8 generate`: answer one prompt on the terminal, streamed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli import options


def generate(
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What to answer.")],
    model: options.Model = "demo",
    is_raw: Annotated[
        bool, typer.Option("--raw", help="Complete the prompt as it is, without chat template.")
    ] = False,
    thinking: options.Thinking = False,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = None,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    device: options.Device = "auto",
    num_threads: options.NumThreads = None,
    max_model_len: options.MaxModelLen = None,
    num_kv_blocks: options.NumKvBlocks = None,
    enable: options.Enable = None,
) -> None:
    """Answer one prompt; the answer goes to stdout, a summary to stderr."""
    from qwen3_a8w8.llm import LLM  # torch takes seconds; --help shouldn't

    settings = options.engine_settings(device, num_threads, max_model_len, num_kv_blocks, enable)
    with LLM(model, **settings) as llm:
        sampling = options.sampling_from(
            llm.default_sampling_params(),
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
        )
        has_template = llm.chat_template is not None and not is_raw
        ids = (
            llm.chat_prompt([{"role": "user", "content": prompt}], enable_thinking=thinking)
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
