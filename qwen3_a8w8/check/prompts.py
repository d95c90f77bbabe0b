"""The fixed material of the check: prompts to answer and texts to predict.

Changing a line invalidates all numbers reported before; add a new version of the
set instead. Half Chinese, half English, sixteen prompts: one full batch.
"""

from __future__ import annotations

VERSION = 1
"""Version of the set, in every report and every golden file."""

PROMPTS: tuple[str, ...] = (
    "What is the capital of France? Answer in one word.",
    "What is 17 + 25?",
    "Write one sentence about the sea.",
    "List three colours, separated by commas.",
    "Explain in two sentences why the sky is blue.",
    "Spell the word 'bread' letter by letter.",
    "Sort these numbers from small to large: 9, 2, 7, 4.",
    "Tell a short story about a fox who finds a key.",
    "法国的首都是哪里？请用一个词回答。",
    "三十加十二等于多少？",
    "用一句话描述秋天的森林。",
    "请列出三种水果。",
    "为什么冬天白天比较短？请用两句话解释。",
    "把“谢谢你的帮助”翻译成英文。",
    "一星期有几天？请写出每一天的名称。",
    "讲一个关于小船的短故事。",
)

TEXTS: tuple[str, ...] = (
    "A library is more than a house for books. People come to read the newspaper, to work at a "
    "quiet table, or to ask someone who knows where to look. In the evening the lamps go on one "
    "after the other, and the last readers carry their books to the desk before the doors close.",
    "To bake a simple bread you need flour, water, salt and a little yeast. Mix everything, let "
    "the dough rest until it has doubled, fold it a few times and let it rest again. The oven "
    "should be very hot at first, so that the crust turns brown while the inside stays soft.",
    "图书馆不只是放书的地方。有人来这里看报纸，有人找一张安静的桌子工作，也有人来向管理员请教问题。"
    "傍晚，灯一盏一盏亮起来，最后几位读者把书交到柜台，然后大门慢慢关上。",
    "做一个简单的面包需要面粉、水、盐和少量酵母。把所有材料混合，等面团发到两倍大，折叠几次，再让它休息一会儿。"
    "烤箱一开始要很热，这样外皮会变成金黄色，里面仍然柔软。",
)
