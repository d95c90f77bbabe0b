"""Scores the demo model per task: greedy exact match on held-out dialogues.

Three engines: ``bf16`` (transformers), ``simulated`` (A8W8 simulated in
transformers) and ``a8w8`` (this project's own engine). A score counts the whole
last assistant turn, including the thinking block.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from demo_model import load_model
from demo_tokenizer import encode_dialogues
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from demo_data import TASKS, Dialogue, held_out

ROOT = Path(__file__).resolve().parent.parent
MAX_TOKENS = 360
BATCH_SIZE = 32

# Prompts in, token ids of the completions out, both in the same order.
Generate = Callable[[Sequence[list[int]]], list[list[int]]]


def transformers_engine(directory: Path, is_a8w8: bool) -> Generate:
    """Greedy generation with transformers, in bfloat16 or with simulated A8W8."""
    model = load_model(directory, is_a8w8)
    pad_id = model.generation_config.pad_token_id
    end_ids = set(model.generation_config.eos_token_id)

    def generate(prompts: Sequence[list[int]]) -> list[list[int]]:
        completions: list[list[int]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        for start in range(0, len(by_length), BATCH_SIZE):
            members = by_length[start : start + BATCH_SIZE]
            longest = max(len(prompts[index]) for index in members)
            rows = [[pad_id] * (longest - len(prompts[i])) + prompts[i] for i in members]
            mask = [[0] * (longest - len(prompts[i])) + [1] * len(prompts[i]) for i in members]
            with torch.inference_mode():
                out = model.generate(
                    torch.tensor(rows),
                    attention_mask=torch.tensor(mask),
                    max_new_tokens=MAX_TOKENS,
                    do_sample=False,
                    temperature=None, top_k=None, top_p=None,
                )  # fmt: skip
            for index, row in zip(members, out[:, longest:].tolist(), strict=True):
                end = next((i for i, token in enumerate(row) if token in end_ids), len(row))
                completions[index] = row[: end + 1]
        return completions

    return generate


def a8w8_engine(directory: Path) -> Generate:
    """Greedy generation with this project's engine."""
    from qwen3_a8w8 import LLM, SamplingParams

    llm = LLM(str(directory))
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def generate(prompts: Sequence[list[int]]) -> list[list[int]]:
        return [list(output.token_ids) for output in llm.generate(list(prompts), params)]

    return generate


def score(
    generate: Generate,
    tokenizer: PreTrainedTokenizerBase,
    dialogues: Sequence[Dialogue],
    num_misses_shown: int,
) -> tuple[int, int]:
    """Numbers of turns that match completely, and by their answer after the thinking block."""
    encoded = encode_dialogues(tokenizer, dialogues)
    completions = generate([prompt for prompt, _ in encoded])
    end_ids = set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    num_exact = num_answers = 0
    for dialogue, token_ids in zip(dialogues, completions, strict=True):
        shown = [token for token in token_ids if token not in end_ids]
        text = tokenizer.decode(shown, clean_up_tokenization_spaces=False)
        is_exact = text == dialogue.completion
        num_exact += is_exact
        num_answers += text.split("</think>\n\n")[-1] == dialogue.answer
        if not is_exact and num_misses_shown > 0:
            num_misses_shown -= 1
            print(f"  asked    {dialogue.messages[-1]['content']!r}")
            print(f"  expected {dialogue.completion!r}\n  got      {text!r}")
    return num_exact, num_answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=ROOT / "qwen3_a8w8" / "demo")
    parser.add_argument("--engine", choices=("bf16", "simulated", "a8w8"), action="append")
    parser.add_argument("--task", choices=list(TASKS), action="append")
    parser.add_argument("--count", type=int, default=200, help="dialogues of each task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--misses", type=int, default=0, help="misses to print for each task")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tasks: dict[str, dict[str, float]] = {task: {} for task in args.task or TASKS}
    results = {"count": args.count, "seed": args.seed, "tasks": tasks}
    engines = args.engine or ["bf16", "simulated"]
    for engine in engines:
        began = time.monotonic()
        generate = (
            a8w8_engine(args.model)
            if engine == "a8w8"
            else transformers_engine(args.model, is_a8w8=engine == "simulated")
        )
        for task in tasks:
            dialogues = held_out(task, args.count, args.seed)
            exact, answers = score(generate, tokenizer, dialogues, args.misses)
            tasks[task][engine] = round(100 * exact / args.count, 2)
            tasks[task][f"{engine}_answer"] = round(100 * answers / args.count, 2)
            print(f"{engine} {task}: {tasks[task][engine]}", flush=True)
        print(f"{engine}: {time.monotonic() - began:.0f} s")

    print(f"\n{'exact match, %':14}" + "".join(f"{engine:>12}{'answer':>9}" for engine in engines))
    for task, scores in tasks.items():
        cells = (f"{scores[engine]:12.1f}{scores[f'{engine}_answer']:9.1f}" for engine in engines)
        print(f"{task:14}" + "".join(cells))
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
