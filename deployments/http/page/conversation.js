// The conversation: its messages, kept by the browser, and what of them is sent.
//
// A message is {role, content} and, for an assistant's, also {reasoning, toolCalls, usage, timing,
// finishReason, error, isStopped}; for a tool's {toolCallId}. Nothing here is shown; see chat.js.

const KEY = "qwen3-a8w8.conversation";
const ROLES = ["user", "assistant", "tool"];

export class Conversation {
  constructor() {
    this.messages = load();
    this.isKept = true; // whether the browser has room for it
  }

  /** Adds a message and gives it. */
  add(message) {
    this.messages.push(message);
    this.save();
    return message;
  }

  /** Removes the messages from `index` on and gives them. */
  cutFrom(index) {
    const removed = this.messages.splice(index);
    this.save();
    return removed;
  }

  save() {
    try {
      localStorage.setItem(KEY, JSON.stringify(this.messages));
      this.isKept = true;
    } catch {
      this.isKept = false;
    }
  }

  /** Messages of a request. */
  requestMessages(systemPrompt) {
    const sent = this.messages.filter((message) => message.role !== "assistant" || hasOutput(message)).map(asSent);
    return systemPrompt ? [{ role: "system", content: systemPrompt }, ...sent] : sent;
  }

  /** Ids of the last answer's tool calls that have no result yet. */
  openToolCalls() {
    const last = this.messages.findLastIndex((message) => message.role === "assistant");
    if (last < 0) return [];
    const answered = this.messages.slice(last + 1).map((message) => message.toolCallId);
    return (this.messages[last].toolCalls ?? []).map((call) => call.id).filter((id) => !answered.includes(id));
  }
}

function asSent(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.toolCallId, content: message.content };
  if (message.role === "user") return { role: "user", content: message.content };
  const sent = { role: "assistant", content: message.content };
  if (message.reasoning) sent.reasoning_content = message.reasoning;
  if (message.toolCalls?.length) {
    sent.tool_calls = message.toolCalls.map(({ id, name, args }) => ({
      id,
      type: "function",
      function: { name, arguments: args },
    }));
  }
  return sent;
}

function hasOutput(message) {
  return Boolean(message.content || message.toolCalls?.length);
}

function load() {
  try {
    const messages = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return messages.filter((message) => ROLES.includes(message?.role) && typeof message.content === "string");
  } catch {
    return [];
  }
}
