"""`qwen3-a8w8 chat`: a conversation on the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from qwen3_a8w8.cli import options

_HELP = "/new starts a new conversation, /quit or Ctrl-D ends"


@options.expanded
def chat(
    model: options.Model = "demo",
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    *,
    engine: options.EngineOptions,
    answer: options.SamplingOptions,
) -> None:
    """Talk with a model; the history is kept until /new.

    Lines may come from a pipe: then only the outputs are written.
    """
    from qwen3_a8w8.errors import InvalidRequestError
    from qwen3_a8w8.llm import LLM  # torch takes seconds; --help shouldn't

    console = Console(stderr=True)
    with LLM(model, **engine.settings()) as llm:
        sampling = answer.over(llm.default_sampling_params())
        opening = [{"role": "system", "content": system}] if system is not None else []
        messages = list(opening)
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            console.print(_HELP, style="dim")
        while True:
            try:
                line = input("> " if is_terminal else "").strip()
            except (EOFError, KeyboardInterrupt):
                if is_terminal:
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
            text = ""
            try:
                ids = llm.chat_prompt(messages, enable_thinking=answer.thinking)
                for delta in llm.stream(ids, sampling):
                    text += delta.text
                    typer.echo(delta.text, nl=False)
            except InvalidRequestError as error:
                messages.pop()
                console.print(
                    f"{error}  (/new starts a new conversation)", style="red", markup=False
                )
                continue
            except KeyboardInterrupt:
                console.print(" (stopped)", style="dim")
            typer.echo()
            messages.append({"role": "assistant", "content": text})
