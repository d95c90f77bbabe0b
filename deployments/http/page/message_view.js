// How one message looks, and what its buttons ask for. Decides nothing; see chat.js.

import { copyButton } from "./copy.js";
import { button, count, counted, duration, h, setText } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** A user's message, which can be edited. `actions`: edit(text). */
export function userView(message, actions) {
  const text = h("div", "text", message.content);
  const edit = button("Edit", () => openEditor());
  const node = h("article", "message user", [text, h("footer", "", [edit, copyButton(() => message.content)])], {
    "aria-label": "You",
  });

  function openEditor() {
    if (actions.isBusy()) return;
    const area = h("textarea", "", [], { rows: 3, "aria-label": "Edit message" });
    area.value = message.content;
    const form = h("form", "editor", [
      area,
      h("div", "row", [button("Cancel", close, ""), h("button", "primary", "Send again", { type: "submit" })]),
    ]);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (area.value.trim()) actions.edit(area.value);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === area) form.requestSubmit();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    function close() {
      form.replaceWith(text);
      node.classList.remove("editing");
      edit.focus();
    }
    node.classList.add("editing");
    text.replaceWith(form);
    area.focus();
  }

  return { node, update() {}, openEditor };
}

/** The result of a tool, as it was sent. */
export function toolView(message, name) {
  const details = h("details", "fold", [h("summary", "", `Result of ${name}`), h("pre", "", message.content)]);
  return { node: h("article", "message tool", details, { "aria-label": "Tool result" }), update() {} };
}

/**
 * An assistant's message, which may still grow: call `update` after each change.
 * `actions`: retry(), sendResults(results by call id), isLast().
 */
export function assistantView(message, actions) {
  const thinkingText = h("div", "md");
  const thinkingTitle = h("summary");
  const thinking = h("details", "fold thinking", [thinkingTitle, thinkingText]);
  const content = h("div", "md content");
  const calls = h("div", "calls");
  const state = h("p", "state");
  const error = h("p", "error", [], { role: "alert" });
  const stats = h("span", "stats");
  const retry = button("Retry", () => actions.retry());
  const copy = copyButton(() => message.content);
  const buttons = h("span", "buttons", [copy, retry]);
  const footer = h("footer", "", [buttons, stats]);
  const node = h("article", "message assistant", [thinking, content, calls, state, error, footer], {
    "aria-label": "Answer",
  });
  const thinkingView = new MarkdownView(thinkingText);
  const contentView = new MarkdownView(content);
  let callViews = [];

  // Folded thinking is rendered when it is opened: it may be long, and mostly isn't looked at.
  thinking.addEventListener("toggle", () => thinking.open && thinkingView.update(message.reasoning));

  /** `isRunning`: more may come; `waiting`: what it waits for, or "". */
  function update({ isRunning = false, waiting = "" } = {}) {
    const isThinking = isRunning && !message.content && !message.toolCalls.length;
    thinking.hidden = !message.reasoning.trim();
    setText(thinkingTitle, isThinking ? "Thinking …" : "Thinking");
    thinking.classList.toggle("active", isThinking);
    if (thinking.open) thinkingView.update(message.reasoning);
    contentView.update(message.content);
    updateCalls(isRunning);
    setText(state, waiting || (isRunning && thinking.hidden && isThinking ? "…" : ""));
    state.classList.toggle("lost", Boolean(waiting));
    state.hidden = !state.textContent;
    setText(error, message.error ?? "");
    error.hidden = !message.error;
    setText(stats, statistics(message));
    buttons.hidden = isRunning;
    copy.hidden = !message.content;
    node.classList.toggle("running", isRunning);
  }

  function updateCalls(isRunning) {
    while (callViews.length < message.toolCalls.length) {
      const view = callView();
      callViews.push(view);
      calls.append(view.node);
    }
    callViews.forEach((view, index) => view.update(message.toolCalls[index]));
    const wantsResults = !isRunning && actions.isLast() && message.toolCalls.length > 0 && !message.error;
    callViews.forEach((view) => (view.result.hidden = !wantsResults));
    let send = calls.querySelector(".send-results");
    if (wantsResults && !send) {
      send = h("form", "send-results row", h("button", "primary", "Send results", { type: "submit" }));
      send.addEventListener("submit", (event) => {
        event.preventDefault();
        actions.sendResults(callViews.map((view, index) => [message.toolCalls[index].id, view.area.value]));
      });
      calls.append(send);
    } else if (!wantsResults) send?.remove();
  }

  return { node, update };
}

function callView() {
  const name = h("code", "call-name");
  const args = h("pre", "", [], { tabindex: 0 });
  const area = h("textarea", "code", [], { rows: 2, placeholder: "What the tool returned", spellcheck: "false" });
  const result = h("label", "result", ["Result", area]);
  const node = h("section", "call", [h("div", "call-head", ["Tool call ", name]), args, result]);
  return {
    node,
    area,
    result,
    update(call) {
      setText(name, call.name);
      setText(args, prettyJson(call.args));
    },
  };
}

/** Arguments with line breaks, or as they are while they aren't complete. */
function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function statistics({ usage, timing, finishReason, isStopped }) {
  const parts = [];
  if (usage) {
    parts.push(counted(usage.output, "token"));
    if (timing?.tokensPerS) parts.push(`${timing.tokensPerS.toFixed(1)} tokens/s`);
    if (timing) parts.push(`first after ${duration(timing.ttftS)}`);
    const cached = usage.cached ? `, ${count(usage.cached)} cached` : "";
    parts.push(`prompt ${count(usage.prompt)}${cached}`);
  }
  if (isStopped) parts.push("stopped");
  else if (finishReason === "length") parts.push("cut at its length");
  return parts.join(" · ");
}
