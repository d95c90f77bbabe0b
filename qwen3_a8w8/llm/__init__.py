"""The in-process API: `LLM(model).generate(prompts, params)`.

The same engine, scheduler and runner as in the deployment, without Ray. This
package only joins them with the text side.
"""

from qwen3_a8w8.llm.llm import LLM, Message, Prompt
from qwen3_a8w8.text.outputs import Completion, GenerationOutput

__all__ = ["LLM", "Completion", "GenerationOutput", "Message", "Prompt"]
