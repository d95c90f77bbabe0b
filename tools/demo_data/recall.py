"""Tasks of copying from the prompt: memory over turns, and JSON extraction."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from .dialogue import Dialogue, Message, assistant, user
from .lexicon import (
    ANIMALS,
    CITIES,
    COLOURS,
    DAYS,
    DRINKS,
    FOODS,
    ITEMS,
    NAMES,
    PLACES_IN_TOWN,
    SPORTS,
    any_name,
)  # fmt: skip

# Facts of a user: topic -> (values, ways to state it, reply, ways to ask, answer, short name).
_TOPICS: dict[
    str, tuple[Callable[[random.Random], str], tuple[str, ...], str, tuple[str, ...], str]
] = {
    "name": (
        lambda rng: any_name(rng, 0.3),
        (
            "My name is {}.",
            "I am {}.",
            "Hi, I'm {}.",
            "Hello, my name is {}.",
            "You can call me {}.",
        ),
        "Nice to meet you, {}!",
        ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?"),
        "Your name is {}.",
    ),
    "city": (
        lambda rng: rng.choice(CITIES),
        ("I live in {}.", "My home is in {}.", "I am from {}."),
        "{} is a fine city. I will remember it.",
        ("Where do I live?", "Which city do I live in?", "Where is my home?"),
        "You live in {}.",
    ),
    "pet": (
        lambda rng: any_name(rng, 0.3),
        ("My pet is called {}.", "I have a pet named {}.", "The name of my pet is {}."),
        "{} is a lovely name for a pet.",
        ("What is my pet called?", "What is the name of my pet?", "Do you remember my pet?"),
        "Your pet is called {}.",
    ),
    "age": (
        lambda rng: str(rng.randint(6, 99)),
        ("I am {} years old.", "My age is {}.", "I'm {} years old."),
        "You are {}. I will remember it.",
        ("How old am I?", "What is my age?", "Do you remember my age?"),
        "You are {} years old.",
    ),
}
for _thing, _values in (
    ("colour", COLOURS), ("food", FOODS), ("drink", DRINKS), ("animal", ANIMALS), ("sport", SPORTS),
    ("day", DAYS),
):  # fmt: skip
    _TOPICS[_thing] = (
        lambda rng, values=_values: rng.choice(values),  # type: ignore[misc]
        (f"My favourite {_thing} is {{}}.", f"My favorite {_thing} is {{}}.",
         f"The {_thing} that I like best is {{}}."),
        "{} is a good choice. I will remember it.",
        (f"What is my favourite {_thing}?", f"Which {_thing} do I like best?",
         f"Do you remember my favourite {_thing}?"),
        f"Your favourite {_thing} is {{}}.",
    )  # fmt: skip


def _reply(topic: str, value: str) -> str:
    text = _TOPICS[topic][2].format(value)
    return text[0].upper() + text[1:]


def memory(rng: random.Random, filler: Callable[[random.Random], tuple[Message, ...]]) -> Dialogue:
    """Reply to a stated fact, and answer a question about it some turns later."""
    topics = rng.sample(list(_TOPICS), rng.choices((1, 2, 3), weights=(5, 4, 3))[0])
    if "name" not in topics and rng.random() < 0.4:
        topics[0] = "name"
    values = {topic: _TOPICS[topic][0](rng) for topic in topics}
    told = {topic: rng.choice(_TOPICS[topic][1]).format(values[topic]) for topic in topics}
    form = rng.choices(("tell", "ask", "one_turn", "unknown"), weights=(3, 8, 3, 2))[0]
    if form == "tell":
        topic = topics[0]
        thinking = f"The user tells me a {topic}: {values[topic]}."
        return Dialogue(
            "memory", told[topic], (user(told[topic]),), _reply(topic, values[topic]), thinking
        )
    asked = rng.choice(topics)
    question = rng.choice(_TOPICS[asked][3])
    answer = _TOPICS[asked][4].format(values[asked])
    thinking = f"The user told me the {asked}: {values[asked]}."
    if form == "one_turn":
        prompt = " ".join((*told.values(), question))
        return Dialogue("memory", prompt, (user(prompt),), answer, thinking)
    if form == "unknown":
        told.pop(asked)
        answer = "You have not told me that yet."
        thinking = f"The user has not told me the {asked}."
    messages: list[Message] = []
    for topic, text in told.items():
        messages += [user(text), assistant(_reply(topic, values[topic]))]
        if rng.random() < 0.25:
            messages += filler(rng)
    key = " ".join((*told.values(), question))
    is_pinned = not told
    return Dialogue(
        "memory", key, (*messages, user(question)), answer, thinking, is_pinned=is_pinned
    )


# Schema -> (fields with their values, sentences).
_SCHEMAS: tuple[tuple[dict[str, Callable[[random.Random], object]], tuple[str, ...]], ...] = (
    (
        {
            "name": lambda rng: rng.choice(NAMES),
            "age": lambda rng: rng.randint(6, 99),
            "city": lambda rng: rng.choice(CITIES),
        },
        (
            "{name} is {age} years old and lives in {city}.",
            "{name} lives in {city} and is {age} years old.",
            "In {city} lives {name}, who is {age}.",
            "My friend {name} from {city} is {age} years old.",
        ),
    ),
    (
        {
            "name": lambda rng: rng.choice(NAMES),
            "item": lambda rng: rng.choice(ITEMS),
            "count": lambda rng: rng.randint(2, 30),
            "price": lambda rng: rng.randint(2, 99),
        },
        (
            "{name} bought {count} {item} for {price} euros.",
            "For {price} euros {name} got {count} {item}.",
            "{name} paid {price} euros for {count} {item}.",
        ),
    ),
    (
        {
            "name": lambda rng: rng.choice(NAMES),
            "place": lambda rng: rng.choice(PLACES_IN_TOWN),
            "day": lambda rng: rng.choice(DAYS),
            "hour": lambda rng: rng.randint(1, 12),
        },
        (
            "{name} comes to the {place} on {day} at {hour}.",
            "On {day} at {hour} we meet {name} at the {place}.",
            "The meeting with {name} is on {day} at {hour} in the {place}.",
        ),
    ),
    (
        {
            "animal": lambda rng: rng.choice(ANIMALS),
            "name": lambda rng: rng.choice(NAMES),
            "colour": lambda rng: rng.choice(COLOURS),
            "food": lambda rng: rng.choice(FOODS),
        },
        (
            "{name} is a {colour} {animal} that eats {food}.",
            "The {colour} {animal} {name} likes {food}.",
            "A {animal} called {name} is {colour} and loves {food}.",
        ),
    ),
)


def extraction(rng: random.Random) -> Dialogue:
    """A sentence to a JSON object with the requested fields, in their order."""
    makers, sentences = rng.choice(_SCHEMAS)
    values = {name: make(rng) for name, make in makers.items()}
    sentence = rng.choice(sentences).format(**values)
    fields = rng.sample(list(values), rng.randint(2, len(values)))
    if rng.random() < 0.4:
        fields = list(values)
    names = ", ".join(fields)
    prompt = rng.choice(
        (
            f"Extract {names} as JSON: {sentence}",
            f"{sentence} Give {names} as JSON.",
            f"Write a JSON object with {names} from this sentence: {sentence}",
            f"Read: {sentence} Return JSON with {names}.",
        )
    )
    answer = json.dumps({name: values[name] for name in fields})
    thinking = f"The object needs {names}."
    return Dialogue("extraction", f"{names}|{sentence}", (user(prompt),), answer, thinking)
