// Markdown blocks as DOM nodes, and a view that follows a text while it grows.
//
// Blocks are CommonMark's, with GitHub's tables; HTML is text. The view keeps the nodes of blocks
// that haven't changed, so that a long answer costs a frame no more than its last block, and a
// selection in an earlier one stays.

import { copyButton } from "./copy.js";
import { renderInline } from "./markdown_inline.js";

const MAX_DEPTH = 12; // of quotes and lists; what nests deeper is shown as text
const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)(?=\S)|[ \t]*$)/;
const UNDERLINE = /^ {0,3}(={2,}|-{2,})[ \t]*$/; // two at least: a list may be about to begin
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/** A container's content, as the Markdown of a text that grows. */
export class MarkdownView {
  constructor(container) {
    this._container = container;
    this._sources = [];
  }

  /** Shows `text`; blocks with the same source as before keep their nodes. */
  update(text) {
    const blocks = parseBlocks(text.replaceAll("\r\n", "\n").replaceAll("\t", "    ").split("\n"), 0);
    let first = 0;
    while (first < blocks.length && this._sources[first] === blocks[first].source) first += 1;
    for (const node of [...this._container.childNodes].slice(first)) node.remove();
    this._container.append(...blocks.slice(first).map((block) => block.render()));
    this._sources = blocks.map((block) => block.source);
  }
}

/** Top-level blocks of some lines: `{source, render}`, `render` giving one node. */
function parseBlocks(lines, depth) {
  const blocks = [];
  for (let start = 0; start < lines.length; ) {
    if (!lines[start].trim()) {
      start += 1;
      continue;
    }
    const { end, render } = parseBlock(lines, start, depth);
    blocks.push({ source: lines.slice(start, end).join("\n"), render });
    start = end;
  }
  return blocks;
}

function parseBlock(lines, start, depth) {
  const line = lines[start];
  let found;
  if ((found = isFence(line))) return fence(lines, start, found);
  if (line.startsWith("    ")) return indentedCode(lines, start);
  if ((found = HEADING.exec(line))) {
    const [, marks, text = ""] = found;
    return { end: start + 1, render: () => block(`h${marks.length}`, text) };
  }
  if (RULE.test(line)) return { end: start + 1, render: () => document.createElement("hr") };
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, start, depth);
  if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, start, depth);
  if (isTable(lines, start)) return table(lines, start);
  return paragraph(lines, start);
}

function isFence(line) {
  const found = FENCE.exec(line);
  return found && !(found[2][0] === "`" && found[3].includes("`")) ? found : null;
}

function fence(lines, start, [, indent, marks, info]) {
  const closing = new RegExp(`^ {0,3}${marks[0] === "`" ? "`" : "~"}{${marks.length},}[ \\t]*$`);
  let end = start + 1;
  while (end < lines.length && !closing.test(lines[end])) end += 1;
  const code = lines.slice(start + 1, end).map((line) => line.replace(new RegExp(`^ {0,${indent.length}}`), ""));
  return { end: Math.min(end + 1, lines.length), render: () => codeBlock(code.join("\n"), info.trim().split(/\s/)[0]) };
}

function indentedCode(lines, start) {
  let end = start;
  for (let next = start; next < lines.length && (lines[next].startsWith("    ") || !lines[next].trim()); next += 1) {
    if (lines[next].trim()) end = next + 1;
  }
  const code = lines.slice(start, end).map((line) => line.slice(4));
  return { end, render: () => codeBlock(code.join("\n"), "") };
}

function quote(lines, start, depth) {
  const inner = [];
  let end = start;
  for (; end < lines.length; end += 1) {
    if (QUOTE.test(lines[end])) inner.push(lines[end].replace(QUOTE, ""));
    else if (inner.at(-1)?.trim() && isLazy(lines[end]) && !isCode(inner)) inner.push(lines[end]);
    else break;
  }
  return {
    end,
    render: () => {
      const node = document.createElement("blockquote");
      node.append(...parseBlocks(inner, depth + 1).map((each) => each.render()));
      return node;
    },
  };
}

/** Whether the last of these lines is in an open fence. */
function isCode(lines) {
  let open = null;
  for (const line of lines) {
    const found = FENCE.exec(line);
    if (!found) continue;
    if (open === null) open = found[2];
    else if (found[2][0] === open[0] && found[2].length >= open.length && !found[3]) open = null;
  }
  return open !== null;
}

function list(lines, start, depth) {
  const first = ITEM.exec(lines[start]);
  const marker = first[2].at(-1);
  const items = [];
  let isLoose = false;
  let hasBlank = false;
  let indent = 0;
  let end = start;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (!line.trim()) {
      hasBlank = true;
      items.at(-1).push("");
      continue;
    }
    const leading = line.length - line.trimStart().length;
    const found = items.length && leading >= indent ? null : ITEM.exec(line);
    if (found && found[2].at(-1) === marker && !RULE.test(line)) {
      isLoose ||= hasBlank;
      const spaces = found[3]?.length ?? 1;
      indent = found[1].length + found[2].length + (spaces > 4 ? 1 : spaces);
      items.push([line.slice(indent)]);
    } else if (leading >= indent && items.length) {
      // A blank line between two blocks of an item makes the list loose, one inside of code doesn't.
      if (hasBlank && leading === indent && !isCode(items.at(-1))) isLoose = true;
      items.at(-1).push(line.slice(indent));
    } else if (!hasBlank && items.length && isLazy(line) && !isCode(items.at(-1))) {
      items.at(-1).push(line.trimStart());
    } else {
      break;
    }
    hasBlank = false;
  }
  const number = parseInt(first[2], 10);
  return { end, render: () => listNode(items, number, isLoose, depth) };
}

function listNode(items, number, isLoose, depth) {
  const node = document.createElement(Number.isNaN(number) ? "ul" : "ol");
  if (node.tagName === "OL" && number !== 1) node.start = number;
  for (const lines of items) {
    const item = document.createElement("li");
    for (const each of parseBlocks(lines, depth + 1)) {
      const child = each.render();
      if (child.tagName !== "P" || isLoose) item.append(child);
      else item.append(...child.childNodes);
    }
    node.append(item);
  }
  return node;
}

function isTable(lines, start) {
  return (
    lines[start].includes("|") &&
    start + 1 < lines.length &&
    TABLE_RULE.test(lines[start + 1]) &&
    cells(lines[start]).length === cells(lines[start + 1]).length
  );
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, start) {
  const head = cells(lines[start]);
  const sides = cells(lines[start + 1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : ""));
  let end = start + 2;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end += 1;
  const rows = lines.slice(start + 2, end).map(cells);
  return {
    end,
    render: () => {
      const node = document.createElement("table");
      node.createTHead().append(tableRow("th", head, sides));
      if (rows.length) node.createTBody().append(...rows.map((row) => tableRow("td", row, sides)));
      const box = document.createElement("div");
      box.className = "table";
      box.tabIndex = 0; // it may be wider than the page, and is then scrolled by keys
      box.append(node);
      return box;
    },
  };
}

function tableRow(name, row, sides) {
  const node = document.createElement("tr");
  sides.forEach((side, index) => {
    const cell = block(name, row[index] ?? "");
    if (side) cell.className = side;
    node.append(cell);
  });
  return node;
}

function paragraph(lines, start) {
  let end = start + 1;
  while (end < lines.length && continuesParagraph(lines, end)) {
    const under = UNDERLINE.exec(lines[end]);
    if (under) {
      const text = lines.slice(start, end).map((line) => line.trimStart()).join("\n").trimEnd();
      return { end: end + 1, render: () => block(under[1][0] === "=" ? "h1" : "h2", text) };
    }
    end += 1;
  }
  const text = lines.slice(start, end).map((line) => line.trimStart()).join("\n").trimEnd();
  return { end, render: () => block("p", text) };
}

function continuesParagraph(lines, index) {
  const line = lines[index];
  if (!line.trim()) return false;
  if (UNDERLINE.test(line)) return true;
  return !startsBlock(line) && !isTable(lines, index);
}

/** Whether a line goes on with a paragraph of a quote or an item although it has no marker. */
function isLazy(line) {
  return line.trim() !== "" && !startsBlock(line);
}

/** Whether a line begins a block although a paragraph comes right before it. */
function startsBlock(line) {
  if (isFence(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  const item = ITEM.exec(line);
  return item !== null && item[3] !== undefined && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1);
}

function block(name, text) {
  const node = document.createElement(name);
  node.append(renderInline(text));
  return node;
}

function codeBlock(code, language) {
  const node = document.createElement("div");
  node.className = "code-block";
  const head = document.createElement("div");
  head.className = "code-head";
  const label = document.createElement("span");
  label.textContent = language;
  head.append(label, copyButton(() => code));
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  const inner = document.createElement("code");
  inner.textContent = code;
  pre.append(inner);
  node.append(head, pre);
  return node;
}
