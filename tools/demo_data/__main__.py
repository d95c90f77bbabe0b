"""Prints dialogues of every task: ``python -m demo_data [COUNT] [SEED]``."""

import json
import random
import sys

from . import TASKS, draw

count, seed = (int(argument) for argument in (*sys.argv[1:], "2", "0")[:2])
rng = random.Random(seed)
for task in TASKS:
    for _ in range(count):
        dialogue = draw(rng, task, is_held_out=False)
        print(f"--- {task}")
        print(json.dumps([*dialogue.tools, *dialogue.messages], ensure_ascii=False))
        print(dialogue.completion)
