"""Tool calls in Qwen3's format, and answers from tool results.

Tool names and parameter names vary, so that they must be read from the system
section. The definitions are what an OpenAI client sends.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .dialogue import Dialogue, Message, user
from .facts import fact
from .lexicon import CITIES, DAYS, FOODS, NAMES

Arguments = dict[str, Any]


@dataclass(frozen=True)
class _Family:
    """Tools of one purpose under several names."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]  # (names, JSON type) of each
    values: Callable[[random.Random], tuple[Any, ...]]
    questions: tuple[str, ...]
    result: Callable[[random.Random, tuple[Any, ...]], Arguments]
    answer: str  # from the values v0, v1 and the result's fields
    can_pair: bool = False  # asked for two values at once


_SKIES = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]
_TASKS = ["buy milk", "call mom", "water the plants", "feed the cat", "read a book", "wash the car"]
_LANGUAGES = ["French", "German", "Spanish", "Italian", "Chinese"]
_WORDS = ["cat", "dog", "house", "bread", "water", "tree", "book", "sun"]
_ROOMS = ["kitchen", "bedroom", "bathroom", "garden", "hall", "office"]
_TEXTS = ["see you soon", "dinner is ready", "happy birthday", "I am late", "good luck"]
_TOPICS = ["history", "music", "cooking", "science", "animals", "art"]

_FAMILIES = (
    _Family(
        ("get_weather", "weather", "get_current_weather", "lookup_weather"),
        ("Get the weather of a city.", "Get the current weather.", "Current weather in a place."),
        ((("city", "location", "place"), "string"),),
        lambda rng: (rng.choice(CITIES),),
        ("What is the weather in {0}?", "How is the weather in {0}?", "Tell me the weather in {0}.",
         "What's the weather like in {0}?", "Weather in {0}, please."),
        lambda rng, v: {"sky": rng.choice(_SKIES), "temperature": rng.randint(-5, 35)},
        "In {v0} it is {sky} and {temperature} degrees.",
        can_pair=True,
    ),
    _Family(
        ("get_time", "current_time", "clock"),
        ("Get the time in a city.", "The local time of a place."),
        ((("city", "location", "place"), "string"),),
        lambda rng: (rng.choice(CITIES),),
        ("What time is it in {0}?", "Tell me the time in {0}.", "What is the time in {0}?"),
        lambda rng, v: {"time": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"},
        "It is {time} in {v0}.",
        can_pair=True,
    ),
    _Family(
        ("add", "add_numbers", "calculate_sum"),
        ("Add two numbers.", "The sum of two numbers."),
        ((("a", "x", "first"), "integer"), (("b", "y", "second"), "integer")),
        lambda rng: (rng.randint(100, 999), rng.randint(100, 999)),
        ("What is {0} + {1}?", "Add {0} and {1}.", "How much is {0} plus {1}?"),
        lambda rng, v: {"result": v[0] + v[1]},
        "{v0} + {v1} = {result}",
    ),
    _Family(
        ("set_reminder", "add_reminder", "remind"),
        ("Set a reminder.", "Remind the user of a task on a day."),
        ((("task", "text", "what"), "string"), (("day", "when", "date"), "string")),
        lambda rng: (rng.choice(_TASKS), rng.choice(DAYS)),
        ("Remind me to {0} on {1}.", "On {1}, remind me to {0}.", "Set a reminder for {1}: {0}."),
        lambda rng, v: {"ok": True},
        "I will remind you to {v0} on {v1}.",
    ),
    _Family(
        ("translate", "translate_word", "translation"),
        ("Translate a word.", "Translate a word into a language."),
        ((("word", "text"), "string"), (("language", "target"), "string")),
        lambda rng: (rng.choice(_WORDS), rng.choice(_LANGUAGES)),
        ("Translate {0} into {1}.", "What is {0} in {1}?", "How do you say {0} in {1}?"),
        lambda rng, v: {"translation": rng.choice(FOODS)},
        "In {v1}, {v0} is {translation}.",
    ),
    _Family(
        ("switch_light", "set_light", "light"),
        ("Switch the light of a room.", "Turn a light on or off."),
        ((("room", "where"), "string"), (("state", "mode"), "string")),
        lambda rng: (rng.choice(_ROOMS), rng.choice(("on", "off"))),
        ("Turn {1} the light in the {0}.", "Switch the {0} light {1}.", "Light {1} in the {0}, please."),
        lambda rng, v: {"ok": True},
        "The light in the {v0} is now {v1}.",
    ),
    _Family(
        ("send_message", "send_text", "message"),
        ("Send a message to a person.", "Send a text."),
        ((("to", "person", "name"), "string"), (("text", "message", "content"), "string")),
        lambda rng: (rng.choice(NAMES), rng.choice(_TEXTS)),
        ("Tell {0}: {1}.", "Send {0} the message: {1}.", "Write to {0}: {1}."),
        lambda rng, v: {"sent": True},
        "I sent your message to {v0}.",
    ),
    _Family(
        ("search_books", "find_books", "book_search"),
        ("Find books on a topic.", "Search the library."),
        ((("topic", "query", "subject"), "string"),),
        lambda rng: (rng.choice(_TOPICS),),
        ("Find books about {0}.", "Are there books on {0}?", "Search for books about {0}."),
        lambda rng, v: {"count": rng.randint(1, 60)},
        "I found {count} books about {v0}.",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Tool:
    """One family under the names chosen for a dialogue."""

    family: _Family
    name: str
    parameters: tuple[str, ...]
    definition: dict[str, Any]

    def arguments(self, values: tuple[Any, ...]) -> Arguments:
        return dict(zip(self.parameters, values, strict=True))


def _choose_tool(rng: random.Random, family: _Family) -> _Tool:
    name = family.names[0] if rng.random() < 0.4 else rng.choice(family.names)
    style = rng.randrange(6)  # a and b, or x and y, never a and y
    parameters = tuple(names[style % len(names)] for names, _ in family.parameters)
    properties: dict[str, Any] = {
        parameter: {"type": kind}
        for parameter, (_, kind) in zip(parameters, family.parameters, strict=True)
    }
    if rng.random() < 0.3:
        for parameter in parameters:
            properties[parameter]["description"] = f"The {parameter}."
    function: dict[str, Any] = {"name": name}
    if rng.random() < 0.9:
        function["description"] = rng.choice(family.descriptions)
    function["parameters"] = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        function["parameters"]["required"] = list(parameters)
    return _Tool(family, name, parameters, {"type": "function", "function": function})


def _call_text(tool: _Tool, values: tuple[Any, ...]) -> str:
    arguments = json.dumps(tool.arguments(values), ensure_ascii=False)
    return f'<tool_call>\n{{"name": "{tool.name}", "arguments": {arguments}}}\n</tool_call>'


def _call_turn(tool: _Tool, rows: list[tuple[Any, ...]], thinking: str) -> Message:
    turn: Message = {"role": "assistant", "content": ""}
    if thinking:
        turn["reasoning_content"] = thinking
    turn["tool_calls"] = [
        {"type": "function", "function": {"name": tool.name, "arguments": tool.arguments(values)}}
        for values in rows
    ]
    return turn


def tool_use(rng: random.Random) -> Dialogue:
    """Call the tool that fits, answer from its result, or answer without any."""
    families = rng.sample(_FAMILIES, rng.choices((1, 2, 3), weights=(5, 4, 2))[0])
    tools = tuple(_choose_tool(rng, family) for family in families)
    definitions = tuple(tool.definition for tool in tools)
    tool = rng.choice(tools)
    rows = [tool.family.values(rng)]
    question = rng.choice(tool.family.questions).format(*rows[0])
    if tool.family.can_pair and rng.random() < 0.15:
        other = tool.family.values(rng)
        if other != rows[0]:
            question = question.replace(rows[0][0], f"{rows[0][0]} and {other[0]}")
            rows.append(other)
    shown = json.dumps(definitions)
    form = rng.choices(("call", "result", "none"), weights=(5, 4, 1))[0]
    if form == "none":
        phrasings, answer, _ = fact(rng)
        prompt = rng.choice(phrasings)
        thinking = "No tool fits, I can answer this myself."
        return Dialogue("tool_use", prompt + shown, (user(prompt),), answer, thinking, definitions)
    thinking = f"The tool {tool.name} fits."
    if form == "call":
        answer = "\n".join(_call_text(tool, values) for values in rows)
        return Dialogue(
            "tool_use", question + shown, (user(question),), answer, thinking, definitions
        )
    messages = [user(question), _call_turn(tool, rows, thinking if rng.random() < 0.5 else "")]
    answers = []
    for values in rows:
        result = tool.family.result(rng, values)
        messages.append({"role": "tool", "content": json.dumps(result)})
        fields = {f"v{i}": value for i, value in enumerate(values)} | result
        answers.append(tool.family.answer.format(**fields))
    key = shown + json.dumps(messages)
    thinking = f"The tool {tool.name} gave a result."
    return Dialogue("tool_use", key, tuple(messages), " ".join(answers), thinking, definitions)
