"""`qwen3-a8w8 chat`: a conversation on the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli import options

_HELP = "/new begins anew, /quit or Ctrl-D ends"


def chat(
    model: options.Model = "demo",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    thinking: options.Thinking = False,
    max_tokens: options.MaxTokens = 512,
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
    """Talk with a model; the history is kept until /new."""
    from qwen3_a8w8.errors import InvalidRequestError
    from qwen3_a8w8.llm import LLM  # torch takes seconds; --help shouldn't

    console = Console(stderr=True)
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
        opening = [{"role": "system", "content": system}] if system is not None else []
        messages = list(opening)
        console.print(_HELP, style="dim")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                typer.echo()
                return
            if line == "/quit":
                return
            if line == "/new":
                messages = list(opening)
                continue
            if not line:
                continue
            messages.append({"role": "user", "content": line})
            answer = ""
            try:
                ids = llm.chat_prompt(messages, enable_thinking=thinking)
                for delta in llm.stream(ids, sampling):
                    answer += delta.text
                    typer.echo(delta.text, nl=False)
            except InvalidRequestError as error:
                messages.pop()
                console.print(f"{error}  (/new begins anew)", style="red", markup=False)
                continue
            except KeyboardInterrupt:
                console.print(" (stopped)", style="dim")
            typer.echo()
            messages.append({"role": "assistant", "content": answer})
