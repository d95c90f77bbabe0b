"""Short stories of 120 to 300 tokens, each determined by what its prompt names.

A hero, a name, a place, an object and a friend choose the sentences; so the
right story is one text and an exact match means something.
"""

from __future__ import annotations

import random

from .dialogue import Dialogue, user
from .lexicon import NAMES, article

_HEROES = {
    "fox": ("clever", "had a bright red tail and loved riddles"),
    "bear": ("sleepy", "was big and soft and always a little hungry"),
    "rabbit": ("shy", "had long ears that heard every sound"),
    "owl": ("wise", "could see in the dark and knew many old songs"),
    "dragon": ("friendly", "was green and breathed warm smoke instead of fire"),
    "robot": ("curious", "was made of iron and wanted to know how everything works"),
    "girl": ("brave", "wore a blue coat with seven pockets"),
    "boy": ("cheerful", "could whistle louder than the wind"),
    "cat": ("proud", "had white paws and never got them wet"),
    "mouse": ("tiny", "was so small that a nut shell was a good bed"),
}
_PLACES = {
    "forest": ("Every day was quiet there, and the old trees whispered to each other.",
               "the path between the trees grew narrow and dark"),
    "castle": ("The castle had a hundred rooms, and nobody had seen them all.",
               "a cold stair went down and down into the stone"),
    "village": ("Smoke rose from the chimneys, and the bakery smelled of fresh bread.",
                "the street was empty and all the windows were closed"),
    "mountain": ("Snow lay on the top all year, and eagles flew around it.",
                 "the way became steep and loose stones rolled down"),
    "garden": ("Roses grew on every wall, and bees hummed from morning to evening.",
               "the hedge was so high that one could not see the house"),
    "island": ("Waves ran up the beach, and shells lay in the sand like coins.",
               "the tide came in and covered half of the beach"),
    "desert": ("The sand was golden by day and silver by night.",
               "a hot wind blew and hid the tracks in the sand"),
    "city": ("Trams rang their bells, and a thousand lights shone at night.",
             "a wrong turn led into a street without any lamps"),
}  # fmt: skip
_OBJECTS = {
    "key": ("It was rusty and heavy and fitted no door.", "the key opened a small gate that led straight home"),
    "lamp": ("It glowed softly although nobody had lit it.", "the lamp shone so brightly that the way was easy to see"),
    "map": ("It was drawn in blue ink and had a cross in one corner.", "the map showed a short way that nobody else knew"),
    "bell": ("It was made of silver and made no sound at all.", "the bell rang by itself, and help came from all sides"),
    "boat": ("It was made of paper, but it was dry and strong.", "the boat grew large and carried them both home"),
    "book": ("Its pages were empty, and yet it felt warm.", "the book wrote the answer on its first page"),
    "stone": ("It was round and smooth and full of tiny stars.", "the stone rolled ahead and showed the right way"),
    "feather": ("It was long and golden and light as air.", "the feather lifted them up and over all danger"),
    "coin": ("It had a laughing face on both sides.", "the coin jumped up, laughed aloud and chased the fear away"),
    "flute": ("It had only three holes and an old crack.", "the flute played a song that made everything calm"),
}  # fmt: skip
_ENDINGS = {
    "fox": "From that day on the fox told the riddle of the {object} to everyone who came by.",
    "bear": "Then the bear ate a whole pot of honey and slept until spring.",
    "rabbit": "After that the rabbit was never quite so shy again.",
    "owl": "The owl made a new song of it and sang it every night.",
    "dragon": "The dragon blew a ring of smoke for joy, and everybody clapped.",
    "robot": "The robot wrote it all down, and now it knew one thing more.",
    "girl": "The girl put the {object} into her seventh pocket and kept it for ever.",
    "boy": "The boy whistled all the way home, and the birds joined in.",
    "cat": "The cat washed its paws and said that it had known it all along.",
    "mouse": "The mouse fell asleep in its nut shell and dreamed of the next journey.",
}


def story_text(hero: str, name: str, place: str, thing: str, friend: str, is_long: bool) -> str:
    """The one story of these parameters."""
    adjective, trait = _HEROES[hero]
    setting, danger = _PLACES[place]
    look, rescue = _OBJECTS[thing]
    where = "on the" if place in ("mountain", "island") else "in the"
    paragraphs = [
        f"Once upon a time there was {article(adjective)} {hero} named {name} who lived {where} "
        f"{place}. {name} {trait}. {setting}",
        f'One morning {name} found {article(thing)}. {look} "What a strange {thing}," said {name} '
        f"and ran to show it to {friend}.",
    ]
    if is_long:
        paragraphs.append(
            f'{friend} looked at the {thing} for a long time. "I have heard of it," said {friend}. '
            f'"It helps only those who help each other. Let us find out where it comes from." So '
            f"{name} and {friend} packed some bread and cheese and set out together."
        )
    paragraphs.append(
        f"But on their way {danger}, and {friend} was afraid. {name} held up the {thing}, and at "
        f"once {rescue}."
    )
    if is_long:
        paragraphs.append(
            f'When they were safe again, {friend} laughed and said: "Thank you, {name}. You are the '
            f'best {hero} that I know." And they shared the last piece of bread.'
        )
    paragraphs.append(f"{_ENDINGS[hero].format(object=thing)} The end.")
    return "\n\n".join(paragraphs)


def stories(rng: random.Random) -> Dialogue:
    """A story whose prompt names hero, name, place, object and friend."""
    hero, place, thing = (
        rng.choice(list(_HEROES)),
        rng.choice(list(_PLACES)),
        rng.choice(list(_OBJECTS)),
    )
    name, friend = rng.sample(NAMES, 2)
    is_long = rng.random() < 0.4
    size = "long" if is_long else "short"
    where = "on the" if place in ("mountain", "island") else "in the"
    prompt = rng.choice(
        (
            f"Tell me a {size} story about {article(hero)} named {name} who finds {article(thing)} "
            f"{where} {place}, with a friend named {friend}.",
            f"Write a {size} story: {article(hero)} called {name} and a friend called {friend} find "
            f"{article(thing)} {where} {place}.",
            f"Please tell a {size} story. Hero: {name} the {hero}. Friend: {friend}. Place: {place}. "
            f"Object: {thing}.",
        )
    )
    answer = story_text(hero, name, place, thing, friend, is_long)
    thinking = f"A {size} story: {name} the {hero}, {friend}, {article(thing)}, {where} {place}."
    key = f"{hero}|{name}|{place}|{thing}|{friend}|{size}"
    return Dialogue("stories", key, (user(prompt),), answer, thinking)
