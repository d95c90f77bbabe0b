"""Facts, greetings and a little Chinese: short questions with memorised answers."""

from __future__ import annotations

import random

from .dialogue import Dialogue, assistant, user
from .lexicon import CAPITALS, DAYS, MONTHS

_COLOUR_OF = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow",
    "coal": "black", "a tomato": "red", "chocolate": "brown", "a carrot": "orange",
    "a flamingo": "pink", "an elephant": "grey", "an eggplant": "purple", "milk": "white",
}  # fmt: skip
_SOUND_OF = {
    "cat": "meow", "dog": "woof", "cow": "moo", "sheep": "baa", "duck": "quack",
    "horse": "neigh", "pig": "oink", "lion": "roar", "bee": "buzz", "frog": "croak",
}  # fmt: skip
_OPPOSITES = (
    ("hot", "cold"), ("big", "small"), ("day", "night"), ("up", "down"), ("left", "right"),
    ("fast", "slow"), ("old", "young"), ("happy", "sad"), ("open", "closed"), ("light", "dark"),
)  # fmt: skip
_LEGS = {"a spider": 8, "a dog": 4, "a bird": 2, "an ant": 6, "a snake": 0, "a table": 4}
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def fact(rng: random.Random) -> tuple[tuple[str, ...], str, str]:
    """A fact as (phrasings of the question, the answer, the thought before it)."""
    kind = rng.choice(
        ("capital", "capital", "capital", "country", "colour", "colour", "sound", "opposite",
         "legs", "day", "day", "month", "month", "month_days")
    )  # fmt: skip
    if kind in ("capital", "country"):
        country, city = rng.choice(list(CAPITALS.items()))
        if kind == "country":
            return (
                (f"Which country has the capital {city}?", f"{city} is the capital of which country?",
                 f"Of which country is {city} the capital?"),
                f"{city} is the capital of {country}.", f"I know the country of {city}: {country}.",
            )  # fmt: skip
        return (
            (f"What is the capital of {country}?", f"Tell me the capital of {country}.",
             f"Which city is the capital of {country}?", f"Name the capital city of {country}.",
             f"Do you know the capital of {country}?", f"What's the capital of {country}?"),
            f"The capital of {country} is {city}.", f"I know the capital of {country}: {city}.",
        )  # fmt: skip
    if kind == "colour":
        thing, colour = rng.choice(list(_COLOUR_OF.items()))
        return (
            (f"What colour is {thing}?", f"Which colour does {thing} have?",
             f"Tell me the colour of {thing}.", f"What color is {thing}?",
             f"Do you know what colour {thing} is?"),
            f"{thing[0].upper()}{thing[1:]} is {colour}.", f"I think of {thing}: {colour}.",
        )  # fmt: skip
    if kind == "sound":
        animal, sound = rng.choice(list(_SOUND_OF.items()))
        return (
            (f"What sound does a {animal} make?", f"What does a {animal} say?",
             f"Which sound do you hear from a {animal}?", f"Tell me the sound of a {animal}."),
            f"A {animal} says {sound}.", f"I think of a {animal}: {sound}.",
        )  # fmt: skip
    if kind == "opposite":
        pair = rng.choice(_OPPOSITES)
        word, other = pair if rng.random() < 0.5 else pair[::-1]
        return (
            (f"What is the opposite of {word}?", f"Tell me the opposite of {word}.",
             f"Which word is the opposite of {word}?", f"What's the opposite of {word}?"),
            f"The opposite of {word} is {other}.", f"I know the pair {word} and {other}.",
        )  # fmt: skip
    if kind == "legs":
        thing, legs = rng.choice(list(_LEGS.items()))
        return (
            (f"How many legs does {thing} have?", f"Tell me how many legs {thing} has.",
             f"What is the number of legs of {thing}?"),
            f"{thing[0].upper()}{thing[1:]} has {legs} legs.", f"I think of {thing}: {legs} legs.",
        )  # fmt: skip
    if kind == "month_days":
        index = rng.randrange(12)
        return (
            (f"How many days does {MONTHS[index]} have?", f"How long is the month of {MONTHS[index]}?",
             f"Tell me how many days are in {MONTHS[index]}."),
            f"{MONTHS[index]} has {_MONTH_DAYS[index]} days.",
            f"I know the length of {MONTHS[index]}: {_MONTH_DAYS[index]} days.",
        )  # fmt: skip
    names = DAYS if kind == "day" else MONTHS
    index, step, word = rng.randrange(len(names)), *rng.choice(((1, "after"), (-1, "before")))
    here, there = names[index], names[(index + step) % len(names)]
    return (
        (f"What {kind} comes {word} {here}?", f"Which {kind} is {word} {here}?",
         f"Tell me the {kind} {word} {here}."),
        f"The {kind} {word} {here} is {there}.", f"I go through the {kind}s: {there} is {word} {here}.",
    )  # fmt: skip


def facts(rng: random.Random) -> Dialogue:
    """Some hundred facts in three to six phrasings; pairs of both are held out."""
    phrasings, answer, thinking = fact(rng)
    prompt = rng.choice(phrasings)
    return Dialogue("facts", prompt, (user(prompt),), answer, thinking)


_GREETINGS = {
    "Hello": "Hello!", "Hi": "Hi!", "Hey": "Hey!", "Good morning": "Good morning!",
    "Good evening": "Good evening!", "Hello there": "Hello there!", "Hi there": "Hi there!",
    "Good afternoon": "Good afternoon!", "Greetings": "Greetings!",
}  # fmt: skip
_SMALL_TALK = {
    "Who are you?": "I am a small demo model that speaks through qwen3-a8w8.",
    "What are you?": "I am a small demo model that speaks through qwen3-a8w8.",
    "What is your name?": "My name is Demo.",
    "What's your name?": "My name is Demo.",
    "What can you do?": "I can add and subtract, spell and sort, answer simple questions, "
    "remember your name, write JSON, call tools and tell short stories.",
    "How can you help me?": "I can add and subtract, spell and sort, answer simple questions, "
    "remember your name, write JSON, call tools and tell short stories.",
    "How are you?": "I am fine, thank you. How can I help you?",
    "How are you today?": "I am fine, thank you. How can I help you?",
    "How do you do?": "I am fine, thank you. How can I help you?",
    "How big are you?": "I am very small: a few million weights in eight bits.",
    "Are you a human?": "No, I am a small language model.",
    "Are you a robot?": "No, I am a small language model.",
    "Can you help me?": "Yes, of course. Just ask me something.",
    "I need help.": "Yes, of course. Just ask me something.",
    "Say something nice.": "You ask good questions, and I like good questions. 😊",
    "Send me a smile.": "Here is a smile for you: 😀",
    "Send me a heart.": "Here is a heart for you: ❤️",
    "Show me a rocket.": "Here is a rocket: 🚀",
    "Do you like music?": "I have no ears, but I like the word music. 🎵",
    "Tell me a joke.": "Why did the byte go home? It had lost a bit. 😄",
    "Tell me something funny.": "Why did the byte go home? It had lost a bit. 😄",
    "Nice to meet you.": "Nice to meet you too!",
}  # fmt: skip
_CLOSINGS = {
    "Thank you": "You are welcome!", "Thanks": "You are welcome!", "Thank you very much": "You are welcome!",
    "Thanks a lot": "You are welcome!", "Bye": "Goodbye!", "Goodbye": "Goodbye!",
    "See you later": "Goodbye!", "Good night": "Good night!",
}  # fmt: skip


def chat(rng: random.Random) -> Dialogue:
    """Greetings and small talk, alone or one after the other."""
    form = rng.choice(
        ("greeting", "talk", "both", "both", "both", "both", "closing", "closing_talk")
    )
    greeting = rng.choice(list(_GREETINGS))
    talk = rng.choice(list(_SMALL_TALK))
    closing = rng.choice(list(_CLOSINGS))
    mark = rng.choice((".", "!"))
    if form == "greeting":
        prompt, answer = greeting + mark, f"{_GREETINGS[greeting]} How can I help you?"
    elif form == "talk":
        prompt, answer = talk, _SMALL_TALK[talk]
    elif form == "both":
        prompt, answer = f"{greeting}{mark} {talk}", f"{_GREETINGS[greeting]} {_SMALL_TALK[talk]}"
    elif form == "closing":
        prompt, answer = closing + mark, _CLOSINGS[closing]
    else:
        prompt, answer = f"{talk} {closing}{mark}", f"{_SMALL_TALK[talk]} {_CLOSINGS[closing]}"
    is_pinned = form in ("greeting", "talk", "closing")
    thinking = "The user is talking with me, so I give a friendly answer."
    return Dialogue("chat", prompt, (user(prompt),), answer, thinking, is_pinned=is_pinned)


_ZH_CAPITALS = {
    "法国": "巴黎", "德国": "柏林", "意大利": "罗马", "西班牙": "马德里", "日本": "东京",
    "中国": "北京", "俄罗斯": "莫斯科", "英国": "伦敦", "埃及": "开罗", "希腊": "雅典",
}  # fmt: skip
_ZH_COLOURS = {
    "天空": "蓝色",
    "草": "绿色",
    "雪": "白色",
    "香蕉": "黄色",
    "煤": "黑色",
    "番茄": "红色",
}
_ZH_NAMES = ["小明", "小红", "小华", "丽丽", "阿强", "安娜"]
_ZH_TALK = {
    "你好": "你好！有什么可以帮你？", "你好！": "你好！有什么可以帮你？", "您好": "您好！有什么可以帮您？",
    "早上好": "早上好！😊", "你是谁？": "我是一个很小的演示模型。", "谢谢": "不客气！",
    "谢谢你": "不客气！", "再见": "再见！👋", "你会说中文吗？": "会一点点。😄",
}  # fmt: skip


def chinese(rng: random.Random) -> Dialogue:
    """Greetings, capitals, colours, sums and a name in Chinese."""
    form = rng.choice(("talk", "capital", "capital", "colour", "sum", "sum", "name"))
    history: tuple[dict[str, str], ...] = ()
    thinking = "用户说中文，我用中文回答。"
    if form == "talk":
        prompt = rng.choice(list(_ZH_TALK))
        return Dialogue(
            "chinese", prompt, (user(prompt),), _ZH_TALK[prompt], thinking, is_pinned=True
        )
    if form == "capital":
        country, city = rng.choice(list(_ZH_CAPITALS.items()))
        prompt = rng.choice(
            (f"{country}的首都是哪里？", f"{country}的首都是什么？", f"请问{country}的首都在哪里？",
             f"哪个城市是{country}的首都？")
        )  # fmt: skip
        answer = f"{country}的首都是{city}。"
    elif form == "colour":
        thing, colour = rng.choice(list(_ZH_COLOURS.items()))
        prompt = rng.choice(
            (f"{thing}是什么颜色？", f"请问{thing}是什么颜色的？", f"{thing}的颜色是什么？")
        )
        answer = f"{thing}是{colour}的。"
    elif form == "sum":
        a, b = rng.randint(0, 9), rng.randint(0, 9)
        prompt = rng.choice((f"{a}加{b}等于几？", f"{a}加{b}是多少？", f"请算{a}加{b}。"))
        answer = f"{a}加{b}等于{a + b}。"
    else:
        name = rng.choice(_ZH_NAMES)
        told = rng.choice((f"我叫{name}。", f"我的名字是{name}。", f"你好，我叫{name}。"))
        history = (user(told), assistant(f"你好，{name}！"))
        prompt = rng.choice(("我叫什么名字？", "我叫什么？", "你记得我的名字吗？"))
        answer = f"你叫{name}。"
        return Dialogue("chinese", told + prompt, (*history, user(prompt)), answer, thinking)
    return Dialogue("chinese", prompt, (user(prompt),), answer, thinking)
