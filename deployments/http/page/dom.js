// Small helpers over the DOM. Text always goes in as text.

/** An element with a class, children (nodes or strings) and attributes. */
export function h(name, className = "", children = [], attributes = {}) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...[children].flat());
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

/** An SVG element with attributes. */
export function svg(name, attributes = {}, children = []) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...[children].flat());
  return node;
}

/** A button that calls `onClick`. */
export function button(label, onClick, className = "small") {
  const node = h("button", className, label, { type: "button" });
  node.addEventListener("click", onClick);
  return node;
}

/** Sets a text only where it has changed, so that selections stay. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const WHOLE = new Intl.NumberFormat("en");

/** 12345 as "12,345". */
export const count = (value) => WHOLE.format(value);

/** "1 token", "2 tokens". */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Seconds with a unit that suits them. */
export function duration(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(0)} s`;
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const ms = seconds * 1000;
  return `${ms >= 10 ? ms.toFixed(0) : ms.toFixed(1)} ms`;
}
