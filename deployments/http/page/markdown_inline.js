// Inline Markdown (CommonMark's, with GitHub's strikethrough and bare links) as DOM nodes.
//
// Model text becomes text nodes only, never markup. Time is linear in the text but for emphasis,
// whose delimiters are limited. Images are shown as links, since the page loads nothing.

const MAX_DELIMITERS = 400; // of emphasis in one block, which also limits how deep it nests
const MAX_RUN = 8; // characters of one
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };
const BARE_LINK = /https?:\/\/[^\s<>"]+/iy;
const AUTOLINK = /<(https?:\/\/[^\s<>]*)>/iy;
const ENTITY = /&(?:#x([0-9a-f]{1,6})|#([0-9]{1,7})|([a-z]{2,5}));/iy;
const DESTINATION = /\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'|\([^()]*\)))?\s*\)/y;
const MATH = /\\\(.+?\\\)|\\\[[\s\S]+?\\\]|\$\$[\s\S]+?\$\$/y; // shown as it is written
const ORDINARY = /[^\\`*_~[\]!<&$h\n]+/y;

/** Whether a link may be followed: http and https only. */
export function isSafeLink(href) {
  if (!/^https?:\/\//i.test(href)) return false;
  try {
    return ["http:", "https:"].includes(new URL(href).protocol);
  } catch {
    return false;
  }
}

/** The nodes of a block's text. */
export function renderInline(text) {
  const out = document.createDocumentFragment();
  const parts = parse(text);
  processEmphasis(parts, 0);
  out.append(...parts.filter((part) => part.node).map((part) => part.node));
  return out;
}

/** A list of parts, each with a `node`; delimiters and brackets have text nodes, for now. */
function parse(text) {
  const parts = [];
  const brackets = [];
  const unclosed = new Set(); // lengths of backtick runs that nothing closes any more
  let numDelimiters = 0;
  let position = 0;

  // Text is collected and becomes one node: growing a node costs its whole length each time.
  let plainText = "";
  const flush = () => {
    if (plainText) parts.push({ node: document.createTextNode(plainText) });
    plainText = "";
  };
  const push = (part) => {
    flush();
    parts.push(part);
  };
  const add = (node) => push({ node });
  const addText = (value) => {
    plainText += value;
  };
  const match = (pattern) => {
    pattern.lastIndex = position;
    return pattern.exec(text);
  };

  while (position < text.length) {
    const plain = match(ORDINARY);
    if (plain) {
      addText(plain[0]);
      position += plain[0].length;
      continue;
    }
    const character = text[position];
    let found;
    if ((character === "\\" || character === "$") && (found = match(MATH))) {
      add(element("span", found[0], "math"));
      position += found[0].length;
    } else if (character === "\\" && ESCAPABLE.test(text[position + 1] ?? "")) {
      addText(text[position + 1]);
      position += 2;
    } else if (character === "\n" || (character === "\\" && text[position + 1] === "\n")) {
      plainText = plainText.trimEnd();
      add(document.createElement("br"));
      position += character === "\n" ? 1 : 2;
      while (text[position] === " ") position += 1;
    } else if (character === "`") {
      position = codeSpan(text, position, unclosed, add, addText);
    } else if ("*_~".includes(character)) {
      const length = runLength(text, position);
      if (numDelimiters < MAX_DELIMITERS && length <= MAX_RUN && (character !== "~" || length === 2)) {
        numDelimiters += 1;
        push(delimiter(text, position, length));
      } else {
        addText(character.repeat(length));
      }
      position += length;
    } else if (character === "[" || (character === "!" && text[position + 1] === "[")) {
      const opening = character === "[" ? "[" : "![";
      flush();
      brackets.push(parts.length);
      push({ node: document.createTextNode(opening) });
      position += opening.length;
    } else if (character === "]") {
      flush();
      position = closeBracket(text, position, parts, brackets, addText);
    } else if (character === "<" && (found = match(AUTOLINK))) {
      add(link(found[1], [document.createTextNode(found[1])]));
      position += found[0].length;
    } else if (character === "&" && (found = match(ENTITY)) && entity(found) !== null) {
      addText(entity(found));
      position += found[0].length;
    } else if (character === "h" && !brackets.length && (found = bareLink(text, position))) {
      add(link(found, [document.createTextNode(found)]));
      position += found.length;
    } else {
      addText(character);
      position += 1;
    }
  }
  flush();
  return parts;
}

/** Adds the code span that begins at `position`, or its backticks; gives the place after. */
function codeSpan(text, position, unclosed, add, addText) {
  const length = runLength(text, position);
  const start = position + length;
  for (let end = start; !unclosed.has(length); ) {
    end = text.indexOf("`", end);
    if (end < 0) {
      unclosed.add(length);
      break;
    }
    const closing = runLength(text, end);
    if (closing === length) {
      let code = text.slice(start, end).replaceAll("\n", " ");
      if (code.startsWith(" ") && code.endsWith(" ") && code.trim()) code = code.slice(1, -1);
      add(element("code", code));
      return end + length;
    }
    end += closing;
  }
  addText("`".repeat(length));
  return start;
}

/** Makes a link of what is between the last open bracket and this one, if a target follows. */
function closeBracket(text, position, parts, brackets, addText) {
  const opening = brackets.pop();
  DESTINATION.lastIndex = position + 1;
  const found = opening === undefined ? null : DESTINATION.exec(text);
  if (!found) {
    addText("]");
    return position + 1;
  }
  const inner = parts.splice(opening + 1);
  processEmphasis(inner, 0);
  const nodes = inner.filter((part) => part.node).map((part) => part.node);
  const href = (found[1] ?? found[2] ?? "").replace(/\\([!-/:-@[-`{-~])/g, "$1");
  const isImage = parts[opening].node.data === "![";
  if (isSafeLink(href)) {
    parts[opening] = { node: link(href, nodes.length ? nodes : [document.createTextNode(href)]) };
    if (!isImage) brackets.length = 0; // links don't nest
  } else {
    // A target that isn't followed is shown, so that nothing of the answer is hidden.
    parts.splice(opening, 1, ...inner, { node: document.createTextNode(` (${href})`) });
  }
  return position + 1 + found[0].length;
}

function bareLink(text, position) {
  if (position > 0 && /[\p{L}\p{N}/]/u.test(text[position - 1])) return null;
  BARE_LINK.lastIndex = position;
  const found = BARE_LINK.exec(text);
  if (!found) return null;
  let url = found[0].replace(/[*_~`]+$/, "");
  for (;;) {
    const last = url.at(-1);
    const closes = last === ")" && url.split(")").length > url.split("(").length;
    if (!closes && !"?!.,:;'*_~]".includes(last)) break;
    url = url.slice(0, -1);
  }
  return url.length > "https://".length ? url : null;
}

function delimiter(text, position, length) {
  const before = position ? text.slice(Math.max(0, position - 2), position).match(/.$/su)[0] : " ";
  const after = text.slice(position + length, position + length + 2).match(/^./su)?.[0] ?? " ";
  const isOpen = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
  const isClose = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
  const character = text[position];
  const isWord = character === "_"; // which doesn't work inside words
  return {
    node: document.createTextNode(character.repeat(length)),
    character,
    length,
    originalLength: length,
    canOpen: isOpen && (!isWord || !isClose || PUNCTUATION.test(before)),
    canClose: isClose && (!isWord || !isOpen || PUNCTUATION.test(after)),
  };
}

/** Pairs the delimiters of `parts` from `start` on, as CommonMark's appendix does. */
function processEmphasis(parts, start) {
  for (let index = start; index < parts.length; index += 1) {
    const closer = parts[index];
    if (!closer.canClose) continue;
    const openerIndex = findOpener(parts, index, start);
    if (openerIndex < 0) continue;
    const opener = parts[openerIndex];
    const used = closer.character === "~" || (opener.length >= 2 && closer.length >= 2) ? 2 : 1;
    const name = closer.character === "~" ? "del" : used === 2 ? "strong" : "em";
    const wrapped = document.createElement(name);
    wrapped.append(...parts.slice(openerIndex + 1, index).map((part) => part.node));
    shorten(opener, used);
    shorten(closer, used);
    const kept = [opener, { node: wrapped }, closer].filter((part) => part.length !== 0);
    parts.splice(openerIndex, index - openerIndex + 1, ...kept);
    // Again from the closer if some of it is left, else from what comes after it.
    index = openerIndex + kept.length - 1 - (closer.length ? 1 : 0);
  }
}

function findOpener(parts, closerIndex, start) {
  const closer = parts[closerIndex];
  for (let index = closerIndex - 1; index >= start; index -= 1) {
    const opener = parts[index];
    if (!opener.canOpen || opener.character !== closer.character) continue;
    // Runs that could be both ends pair up only if their lengths aren't a sum of three.
    const isAmbiguous = (opener.canClose || closer.canOpen) && closer.character !== "~";
    const sum = opener.originalLength + closer.originalLength;
    const areThirds = opener.originalLength % 3 === 0 && closer.originalLength % 3 === 0;
    if (!isAmbiguous || sum % 3 !== 0 || areThirds) return index;
  }
  return -1;
}

function shorten(part, count) {
  part.length -= count;
  part.node.data = part.character.repeat(part.length);
}

function runLength(text, position) {
  let end = position;
  while (text[end] === text[position]) end += 1;
  return end - position;
}

function entity(found) {
  if (found[3]) return ENTITIES[found[3].toLowerCase()] ?? null;
  const code = found[1] ? parseInt(found[1], 16) : parseInt(found[2], 10);
  return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
}

function link(href, nodes) {
  const anchor = document.createElement("a");
  anchor.href = href;
  anchor.rel = "noopener noreferrer nofollow";
  anchor.target = "_blank";
  anchor.append(...nodes);
  return anchor;
}

function element(name, text, className) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}
