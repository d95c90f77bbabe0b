"""Trains the demo model from scratch on CPUs and writes it to ``qwen3_a8w8/demo``.

One seeded run: corpus, tokenizer, model, 23 million tokens with the padding, less
than an hour on two cores with AMX. Two processes of one thread each share every step;
under other load they wait less for each other than two threads would. An interrupted
run continues from the last checkpoint in ``--work-dir``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from demo_model import demo_config, hidden_states
from demo_tokenizer import encode_dialogues, save_tokenizer, train_tokenizer
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from demo_data import draw_training

ROOT = Path(__file__).resolve().parent.parent

# Rows are padded to one of these lengths, so that few shapes have to be compiled.
ROW_LENGTHS = (48, 72, 112, 256, 384, 1536)
TOKENS_PER_BATCH = 4096
NUM_PROCESSES = 2  # one batch of each makes a step
NUM_DIALOGUES = (73_000, 36_000, 18_000, 23_000)  # of each part of the mixture
PEAK_LR = 2e-3
WARMUP_STEPS = 100
CHECKPOINT_EVERY_S = 180


@dataclass(frozen=True)
class Batch:
    """Rows of one length. ``targets`` has -1 where nothing is learned."""

    token_ids: Tensor  # [B, T] int64
    targets: Tensor  # [B, T] int64, the next token


def _encode_part(
    tokenizer: PreTrainedTokenizerBase, part: int, seed: int
) -> Iterator[tuple[list[int], list[int]]]:
    rng = random.Random(seed)
    for start in range(0, NUM_DIALOGUES[part], 10_000):
        count = min(10_000, NUM_DIALOGUES[part] - start)
        yield from encode_dialogues(tokenizer, [draw_training(rng, part) for _ in range(count)])


def make_corpus(path: Path, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    """Save all ids end to end, the end of each dialogue, and the length of each prompt."""
    rows = [
        row
        for part in range(len(NUM_DIALOGUES))
        for row in _encode_part(tokenizer, part, seed + part)
    ]
    np.savez(
        path,
        ids=np.fromiter((i for pair in rows for half in pair for i in half), np.int16),
        ends=np.cumsum([len(prompt) + len(completion) for prompt, completion in rows]),
        prompts=np.array([len(prompt) for prompt, _ in rows], np.int32),
    )


def batches(ids: np.ndarray, ends: np.ndarray, prompts: np.ndarray) -> Iterator[Batch]:
    """The corpus once, in order, in batches of rows of similar length."""
    waiting: dict[int, list[int]] = {length: [] for length in ROW_LENGTHS}
    starts = np.concatenate(([0], ends[:-1]))
    for index in range(len(ends)):
        length = int(ends[index] - starts[index])
        row_length = next((fit for fit in ROW_LENGTHS if fit >= length), None)
        if row_length is None:
            continue
        rows = waiting[row_length]
        rows.append(index)
        if len(rows) < TOKENS_PER_BATCH // row_length:
            continue
        token_ids = torch.zeros(len(rows), row_length, dtype=torch.int64)
        targets = torch.full((len(rows), row_length), -1, dtype=torch.int64)
        for row, member in enumerate(rows):
            own = torch.from_numpy(ids[starts[member] : ends[member]].astype(np.int64))
            first = max(int(prompts[member]) - 1, 0)
            token_ids[row, : len(own)] = own
            targets[row, first : len(own) - 1] = own[first + 1 :]
        rows.clear()
        yield Batch(token_ids, targets)


def learning_rate(step: int, num_steps: int) -> float:
    """Linear warm-up, then a cosine down to a fiftieth."""
    if step < WARMUP_STEPS:
        return PEAK_LR * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(num_steps - WARMUP_STEPS, 1)
    return PEAK_LR * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0))))


def optimisers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding and norms.

    Muon needs about half of the steps that AdamW alone needs here.
    """
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    return [
        torch.optim.Muon(
            matrices, lr=PEAK_LR, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def save_checkpoint(
    path: Path, model: Qwen3ForCausalLM, opts: list[torch.optim.Optimizer], step: int
) -> None:
    state = {
        "model": model.state_dict(),
        "optimisers": [o.state_dict() for o in opts],
        "step": step,
    }
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def write_model(model: Qwen3ForCausalLM, directory: Path) -> None:
    """Write weights in bfloat16 and the two configs in the format of Qwen3's checkpoints."""
    directory.mkdir(parents=True, exist_ok=True)
    config: Qwen3Config = model.config
    copy = Qwen3ForCausalLM(config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(directory)
    fields = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": config.pad_token_id,
        "eos_token_id": config.eos_token_id,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.max_position_embeddings,
        "max_window_layers": config.num_hidden_layers,
        "model_type": "qwen3",
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "num_key_value_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": config.vocab_size,
    }
    generation = {
        "bos_token_id": config.pad_token_id,
        "do_sample": True,
        "eos_token_id": [config.eos_token_id, config.pad_token_id],
        "pad_token_id": config.pad_token_id,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
    }
    (directory / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def prepare(args: argparse.Namespace) -> None:
    """Create tokenizer and corpus in the working directory unless they exist."""
    args.work_dir.mkdir(parents=True, exist_ok=True)
    tokenizer_dir = args.work_dir / "tokenizer"
    if not (tokenizer_dir / "tokenizer.json").exists():
        save_tokenizer(train_tokenizer(seed=args.seed), tokenizer_dir)
    if not (args.work_dir / "corpus.npz").exists():
        began = time.monotonic()
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
        make_corpus(args.work_dir / "corpus.npz", tokenizer, args.seed)
        print(f"made the corpus in {time.monotonic() - began:.0f} s", flush=True)


def _supervised(batch: Batch) -> tuple[Tensor, Tensor]:
    """Flat positions to learn from and their targets, padded to a multiple of 256.

    Without the padding every step would be a new shape, for which oneDNN
    compiles and keeps new kernels.
    """
    targets = batch.targets.flatten()
    positions = torch.nonzero(targets >= 0)[:, 0]
    num_missing = -len(positions) % 256
    return (
        functional.pad(positions, (0, num_missing)),
        functional.pad(targets[positions], (0, num_missing), value=-1),
    )


def _sum_gradients(model: Qwen3ForCausalLM) -> None:
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(flat)
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def train(rank: int, args: argparse.Namespace) -> None:
    """The training loop of one of the processes; rank 0 prints and writes."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{args.work_dir}/rendezvous",
        rank=rank,
        world_size=NUM_PROCESSES,
    )
    torch.manual_seed(args.seed)
    torch._dynamo.config.recompile_limit = 2 * len(ROW_LENGTHS)  # a graph for each
    tokenizer = AutoTokenizer.from_pretrained(args.work_dir / "tokenizer")
    end_id, pad_id = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model = Qwen3ForCausalLM(demo_config(len(tokenizer), end_id, pad_id))
    opts = optimisers(model)
    checkpoint = args.work_dir / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        for opt, opt_state in zip(opts, state["optimisers"], strict=True):
            opt.load_state_dict(opt_state)
        step = state["step"]
    corpus = np.load(args.work_dir / "corpus.npz")
    stream = batches(corpus["ids"], corpus["ends"], corpus["prompts"])
    for _ in range(step * NUM_PROCESSES):
        next(stream)

    began = last_saved = last_shown = time.monotonic()
    shown = torch.zeros(3)  # tokens, loss, targets since the last line
    while step < args.steps:
        shares = [batch for _, batch in zip(range(NUM_PROCESSES), stream, strict=False)]
        if len(shares) < NUM_PROCESSES:
            print(f"the corpus ends at step {step} of {args.steps}", flush=True)
            break
        num_targets = sum(int((share.targets >= 0).sum()) for share in shares)
        own = shares[rank]
        positions, targets = _supervised(own)
        hidden = hidden_states(model, own.token_ids).flatten(0, 1)[positions]
        logits = functional.linear(hidden, model.model.embed_tokens.weight.bfloat16())
        loss = functional.cross_entropy(logits.float(), targets, ignore_index=-1, reduction="sum")
        (loss / num_targets).backward()
        _sum_gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            for group in opt.param_groups:
                group["lr"] = learning_rate(step, args.steps)
            opt.step()
            opt.zero_grad(set_to_none=True)
        step += 1
        now = time.monotonic()
        shown += torch.tensor([own.token_ids.numel(), loss.item(), (targets >= 0).sum().item()])
        if step % 25 == 0:
            distributed.all_reduce(shown)
            if rank == 0:
                rate = shown[0].item() / (now - last_shown)
                mean_loss = (shown[1] / shown[2]).item()
                print(
                    f"step {step} loss {mean_loss:.4f} {rate:.0f} tokens/s {now - began:.0f} s",
                    flush=True,
                )
            last_shown = now
            shown.zero_()
        if rank == 0 and now - last_saved > CHECKPOINT_EVERY_S:
            save_checkpoint(checkpoint, model, opts, step)
            last_saved = now
    if rank == 0:
        save_checkpoint(checkpoint, model, opts, step)
        write_model(model, args.output)
        save_tokenizer(tokenizer.backend_tokenizer, args.output)
        print(f"wrote {args.output} after {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work-dir", type=Path, default=ROOT / ".cache" / "train_demo")
    parser.add_argument("--output", type=Path, default=ROOT / "qwen3_a8w8" / "demo")
    args = parser.parse_args()
    prepare(args)
    (args.work_dir / "rendezvous").unlink(missing_ok=True)
    multiprocessing.spawn(train, (args,), nprocs=NUM_PROCESSES)


if __name__ == "__main__":
    main()
