"""The page's Markdown in a real browser, against an independent implementation of CommonMark."""

import html
import json
import re

import pytest
import pytest_asyncio
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from markdown_it import MarkdownIt

from deployments.http.page_routes import add_page_routes
from tests.support.browser import chromium, needs_chromium, open_page
from tests.support.listening import listening

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

TEXTS = [
    "A paragraph with *emphasis*, **strong**, ***both***, `code` and ~~gone~~.\nSecond line.",
    "# One\n## Two ##\n### Three `x`\n#### Four\n##### Five\n###### Six\n####### seven",
    "- one\n- two\n  - nested\n  - again\n    - deeper\n- three",
    "1. first\n2. second\n   continued\n3. third\n\n   second paragraph",
    "3. starts\n4. at three",
    "* a\n\n* b\n\n* c",
    "- item\n\n  ```python\n  def f():\n\n      return 1\n  ```\n- next",
    "```python\nprint('<b>')\n```\nafter",
    "~~~\nplain ``` inside\n~~~",
    "```\nnever closed\n  indented",
    "| a | b |\n|---|:-:|\n| 1 | `x` |\n| 2 | **y** \\| z |\n\nafter",
    "> quoted *text*\n> more\nlazy\n\n> > nested",
    "before\n\n---\n\nafter\n***\nend",
    "Title\n=====\n\nOther\n-----\ntext",
    "    indented\n    code\n\ntext",
    '[link](https://example.com/a_b?c=1&d=2 "title") and <https://example.com/x>',
    "[with **strong**](https://example.com/(a)) ![image](https://example.com/i.png)",
    "snake_case_name and 2*3*4 and **bold**text and _word_",
    "\\*not emphasis\\* \\# \\`x\\`",
    "**unclosed and *also unclosed",
    "``code with ` inside`` and `` ` ``",
    "&lt;b&gt; &amp; &copy &#65; &#x42;",
    "line with two spaces  \nnext\\\nlast",
    "<b>not bold</b> <script>alert(1)</script>",
    "<div>\n<p>block</p>\n</div>",
    "**Note:** text\n- list right after\n- two\n\n1. numbers",
    "Some text\n1. list right after\n2. two",
    "a * b * c, a ** b, **a*b**, *a**b*",
    "中文**强调**。 Ünïcödé *ß*",
    "***strong** in em*, *em **strong***",
    "[brackets] without target, ] [",
    "- [ ] task\n- [x] done",
    "text\n# heading right after\ntext",
    "> ```\n> code in quote\n> ```\n> after",
    "+ plus\n+ list\n- another list",
]

HOSTILE = [
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x) [y](file:///etc/passwd) [z](//evil.example)",
    "![x](javascript:alert(1))",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    '[x](https://a.example/"onmouseover="alert(1))',
    "```<script>\nalert(1)\n```",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <svg onload=alert(1)> |",
    "&#106;avascript:alert(1) [x](&#106;avascript:alert(1))",
    "# <style>*{display:none}</style>",
]


@pytest.fixture(scope="module")
def reference():
    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True})
    return markdown.enable(["table", "strikethrough"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page():
    app = FastAPI()
    add_page_routes(app)
    app.get("/v1/models")(lambda: JSONResponse({"data": [{"id": "tiny"}]}))
    async with chromium() as browser, listening(app) as url, open_page(browser, url) as page:
        yield page


RENDER = """async (texts) => {
  const { MarkdownView } = await import("/page/markdown.js");
  return texts.map((steps) => {
    const box = document.createElement("div");
    const view = new MarkdownView(box);
    for (const text of steps) view.update(text);
    return box.innerHTML;
  });
}"""


def normal(text):
    """HTML without what only one of both has: attributes of ours, the copy button, white space."""
    text = re.sub(r'<div class="code-block"><div class="code-head">.*?</div>', "", text)
    text = re.sub(r'<div class="table" tabindex="0">(.*?)</div>', r"\1", text, flags=re.DOTALL)
    text = re.sub(r"</pre></div>", "</pre>", text)
    text = re.sub(r'<img src="([^"]*)" alt="([^"]*)" ?/?>', r'<a href="\1">\2</a>', text)
    text = re.sub(r' style="text-align:(\w+)"', r' class="\1"', text)
    text = re.sub(r' (?:rel|target|tabindex|title)="[^"]*"', "", text)
    text = re.sub(r'<code class="language-\w+">', "<code>", text)
    text = re.sub(r' class="left"', "", text)
    text = text.replace("<s>", "<del>").replace("</s>", "</del>").replace("<br />", "<br>")
    text = text.replace("<hr />", "<hr>").replace("\n</code>", "</code>")
    text = re.sub(
        r"\s*(</?(?:p|ul|ol|li|h\d|blockquote|table|thead|tbody|tr|th|td|hr|br|pre)\b[^>]*>)\s*",
        r"\1",
        text,
    )
    return html.unescape(text).strip()


async def test_blocks_and_inlines_are_those_of_commonmark(page, reference):
    rendered = await page.evaluate(RENDER, [[text] for text in TEXTS])
    for text, ours in zip(TEXTS, rendered, strict=True):
        assert normal(ours) == normal(reference.render(text)), text


async def test_growing_text_ends_as_the_whole_one(page):
    steps = [[text[:end] for end in range(len(text) + 1)] for text in TEXTS + HOSTILE]
    whole = await page.evaluate(RENDER, [[text] for text in TEXTS + HOSTILE])
    assert await page.evaluate(RENDER, steps) == whole


async def test_hostile_text_stays_text(page):
    rendered = await page.evaluate(RENDER, [[text] for text in HOSTILE])
    inspect = """(all) => all.map((each) => {
      const box = document.createElement("template");
      box.innerHTML = each;
      return [...box.content.querySelectorAll("*")].map((e) => [
        e.tagName.toLowerCase(), ...[...e.attributes].map((a) => `${a.name}=${a.value}`)]);
    })"""
    allowed = {"p", "a", "div", "span", "button", "pre", "code", "h1", "br"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    for elements in await page.evaluate(inspect, rendered):
        for name, *attributes in elements:
            assert name in allowed, elements
            for attribute in attributes:
                key, value = attribute.split("=", 1)
                assert key in ("class", "href", "rel", "target", "tabindex", "type"), attribute
                assert key != "href" or value.startswith("https://"), attribute
    links = [
        e for elements in await page.evaluate(inspect, rendered) for e in elements if e[0] == "a"
    ]
    assert all(any(a.startswith("rel=noopener") for a in link) for link in links)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "*a " * 50_000,
        "**" * 50_000 + "a" + "**" * 50_000,
        "`" * 1 + "``" * 20_000 + "a`" * 20_000,
        "> " * 20_000 + "a",
        "- " * 20_000 + "a",
        "[a](" * 20_000,
        "&" * 100_000,
        "<https://" * 20_000,
        "|" * 50_000 + "\n" + "|-" * 50_000,
        "\\" * 100_000,
        "$$a" * 20_000,
        "http://" * 20_000,
    ],
    ids=lambda text: json.dumps(text[:8]),
)
async def test_degenerate_text_is_rendered(page, text):
    (rendered,) = await page.evaluate(RENDER, [[text]])
    assert rendered
