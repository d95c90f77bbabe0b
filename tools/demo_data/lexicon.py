"""The words of the demo corpus: small on purpose, so that a small model knows them all."""

from __future__ import annotations

import random

NAMES = (
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Maria Noah Olga Paul "
    "Rosa Sam Tina Victor Wendy Adam Bella Carl Diana Eric Fiona George Hannah Ivan Julia "
    "Kevin Laura Martin Nina Oscar Peter Ruth Simon Tom Alice Bob Lucy Max Mia Yusuf Zoe Wei"
).split()

_ONSETS = "B D F G K L M N P R S T V Z Br Dr Kr Tr".split()
_MIDDLES = "a e i o u".split()
_CODAS = "lan ron mir ta ko vin sa dor li nus rek ma".split()

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Portugal": "Lisbon", "Japan": "Tokyo", "China": "Beijing", "Russia": "Moscow",
    "England": "London", "Egypt": "Cairo", "Greece": "Athens", "Poland": "Warsaw",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Austria": "Vienna",
    "Canada": "Ottawa", "Cuba": "Havana", "Kenya": "Nairobi", "Peru": "Lima",
    "India": "New Delhi", "Ireland": "Dublin", "Hungary": "Budapest", "Denmark": "Copenhagen",
}  # fmt: skip
CITIES = tuple(CAPITALS.values())

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
COLOURS = "red blue green yellow orange purple pink brown black white grey gold".split()
FOODS = "pizza soup rice bread pasta salad cheese cake fish honey".split()
DRINKS = "tea coffee milk water juice cocoa".split()
ANIMALS = "cat dog horse rabbit fox bear owl duck mouse tiger wolf frog".split()
SPORTS = "tennis football chess swimming running hockey golf rowing".split()
ITEMS = "apples books pens cups chairs lamps shirts eggs tickets bags".split()
PLACES_IN_TOWN = "library museum park school office station cafe hotel".split()

SPELLING_WORDS = (
    "apple banana cherry lemon melon grape peach pear plum berry strawberry carrot potato "
    "tomato onion pepper garlic bread butter cheese coffee sugar honey water river ocean "
    "mountain valley forest garden flower tree leaf grass stone sand cloud rain snow wind "
    "storm summer winter spring autumn morning evening night moon star planet rocket engine "
    "train bicycle letter pencil paper book table chair window door kitchen mirror bottle "
    "basket hammer needle button pocket jacket shirt shoe ring silver gold copper iron rabbit "
    "horse sheep goat tiger lion zebra monkey parrot eagle pigeon turtle lizard spider bee "
    "butterfly dolphin whale salmon school teacher doctor farmer baker sailor pilot king queen "
    "castle bridge tower island village city street market music violin guitar piano drum "
    "dance color number seven eleven happy little yellow purple green hello"
).split()

SORTING_WORDS = (
    "ant bag cat dog egg fan gate hat ink jar key lamp map nest owl pen queen road sun tent "
    "urn van web yak zoo apple bread chair drum eagle fish grass house iron jelly kite lemon "
    "mouse night ocean plate river stone table uncle voice water"
).split()


def made_up_name(rng: random.Random) -> str:
    """A name outside ``NAMES``, so that copying by pieces is learned too."""
    return rng.choice(_ONSETS) + rng.choice(_MIDDLES) + rng.choice(_CODAS)


def any_name(rng: random.Random, made_up_share: float = 0.2) -> str:
    """A common name, or now and then a made-up one."""
    return made_up_name(rng) if rng.random() < made_up_share else rng.choice(NAMES)


def article(noun: str) -> str:
    """``noun`` with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
