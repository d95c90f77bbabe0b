"""The demo model's corpus: seeded dialogues of ten tasks, made and split by code.

Start with ``mixture.py``. ``python -m demo_data`` in ``tools/`` prints samples.
"""

from .dialogue import Dialogue
from .mixture import TASKS, draw, draw_training, held_out

__all__ = ["TASKS", "Dialogue", "draw", "draw_training", "held_out"]
