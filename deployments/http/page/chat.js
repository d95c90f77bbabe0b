// The conversation on the page: sending, stopping, editing, retrying, results of tools.

import { setText } from "./dom.js";
import { emptyAnswer, generate } from "./generation.js";
import { assistantView, toolView, userView } from "./message_view.js";

const NEAR_END_PX = 80;

export class Chat {
  /**
   * `elements`: messages, form, prompt, send, stop, notice, announce; `askForKey` asks the user for an
   * API key and says whether there is one now.
   */
  constructor(conversation, settings, elements, askForKey) {
    this._conversation = conversation;
    this._settings = settings;
    this._elements = elements;
    this._askForKey = askForKey;
    this._views = [];
    this._abort = null;
    this.model = null;
    const { form, prompt, stop } = elements;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._submit();
    });
    stop.addEventListener("click", () => this.stop());
    prompt.addEventListener("keydown", (event) => this._key(event));
    prompt.addEventListener("input", () => this._fitPrompt());
    this._draw();
  }

  get isBusy() {
    return this._abort !== null;
  }

  /** Ends the answer that is being written. */
  stop() {
    this._abort?.abort();
  }

  /** Starts over; what was there can be had back. */
  clear() {
    this.stop();
    const removed = this._conversation.cutFrom(0);
    this._draw();
    this._elements.prompt.focus();
    if (removed.length) {
      this._notify("The conversation was cleared.", "Undo", () => {
        this.stop();
        this._conversation.cutFrom(0);
        removed.forEach((message) => this._conversation.add(message));
        this._draw();
      });
    }
  }

  _submit() {
    const { prompt } = this._elements;
    const text = prompt.value.trim();
    if (!text || this.isBusy) return;
    if (!this._checkSettings()) return;
    prompt.value = "";
    this._fitPrompt();
    this._append({ role: "user", content: text });
    this._answer();
  }

  _key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !matchMedia("(pointer: coarse)").matches) {
      event.preventDefault();
      this._submit();
    } else if (event.key === "ArrowUp" && !this._elements.prompt.value && !this.isBusy) {
      const last = this._views.findLast((view) => view.openEditor);
      if (!last) return;
      event.preventDefault();
      last.openEditor();
    }
  }

  /** Writes the next answer. */
  async _answer() {
    const message = emptyAnswer();
    let fields;
    try {
      fields = this._settings.requestFields();
    } catch (error) {
      this._notify(error.message);
      return;
    }
    const body = {
      ...fields,
      ...(this.model ? { model: this.model } : {}),
      messages: this._conversation.requestMessages(this._settings.systemPrompt),
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    const abort = new AbortController();
    this._abort = abort;
    this._showBusy();
    const view = this._append(message);
    let waiting = "";
    let frame = 0;
    const show = (isRunning) => {
      frame = 0;
      const keepsEnd = this._isAtEnd();
      view.update({ isRunning, waiting });
      if (keepsEnd) this._scrollToEnd();
    };
    const showSoon = () => (frame ||= requestAnimationFrame(() => show(true)));
    show(true);
    await generate(message, body, abort.signal, {
      onChange: showSoon,
      onState: (state) => {
        if (state === waiting) return;
        waiting = state;
        showSoon();
      },
      onSave: () => this._save(),
    });
    cancelAnimationFrame(frame);
    if (this._abort === abort) this._abort = null; // else the next answer is being written
    if (view.node.isConnected) show(false);
    this._showBusy();
    if (message.status === 401 && (await this._askForKey(message.error))) {
      this._retry(message);
      return;
    }
    setText(this._elements.announce, message.error ?? `The answer has ended after ${message.usage?.output ?? 0} tokens.`);
  }

  _retry(message) {
    const index = this._conversation.messages.indexOf(message);
    if (this.isBusy || index < 0 || !this._checkSettings()) return;
    this._conversation.cutFrom(index);
    this._draw();
    this._answer();
  }

  _edit(message, text) {
    const index = this._conversation.messages.indexOf(message);
    if (this.isBusy || index < 0 || !this._checkSettings()) return;
    this._conversation.cutFrom(index);
    this._draw();
    this._append({ role: "user", content: text.trim() });
    this._answer();
    this._elements.prompt.focus();
  }

  _sendResults(results) {
    if (this.isBusy || !this._checkSettings()) return;
    const open = this._conversation.openToolCalls();
    for (const [id, content] of results) {
      if (open.includes(id)) this._conversation.add({ role: "tool", toolCallId: id, content });
    }
    this._draw();
    this._answer();
  }

  _checkSettings() {
    try {
      this._settings.requestFields();
      return true;
    } catch (error) {
      this._notify(error.message);
      return false;
    }
  }

  _append(message) {
    this._elements.notice.hidden = true;
    this._conversation.add(message);
    const view = this._makeView(message);
    this._views.at(-1)?.update(); // it isn't the last one any more
    this._views.push(view);
    this._elements.messages.append(view.node);
    view.update();
    this._scrollToEnd();
    return view;
  }

  _draw() {
    const { messages } = this._conversation;
    this._views = messages.map((message) => this._makeView(message));
    this._elements.messages.replaceChildren(...this._views.map((view) => view.node));
    this._views.forEach((view) => view.update());
    this._scrollToEnd();
  }

  _makeView(message) {
    const isBusy = () => this.isBusy;
    if (message.role === "user") return userView(message, { edit: (text) => this._edit(message, text), isBusy });
    if (message.role === "tool") return toolView(message, this._toolName(message.toolCallId));
    return assistantView(message, {
      retry: () => this._retry(message),
      sendResults: (results) => this._sendResults(results),
      isLast: () => this._conversation.messages.at(-1) === message,
    });
  }

  _toolName(callId) {
    const calls = this._conversation.messages.flatMap((message) => message.toolCalls ?? []);
    return calls.find((call) => call.id === callId)?.name ?? "a tool";
  }

  _save() {
    this._conversation.save();
    if (!this._conversation.isKept) this._notify("The browser has no room to keep this conversation; it ends with the page.");
  }

  _showBusy() {
    const { send, stop, messages } = this._elements;
    send.hidden = this.isBusy;
    stop.hidden = !this.isBusy;
    messages.classList.toggle("busy", this.isBusy);
    messages.setAttribute("aria-busy", String(this.isBusy));
  }

  _notify(text, action = "", onAction = null) {
    const { notice } = this._elements;
    notice.replaceChildren(text);
    if (action) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "small";
      button.textContent = action;
      button.addEventListener("click", () => {
        notice.hidden = true;
        onAction();
      });
      notice.append(" ", button);
    }
    notice.hidden = false;
  }

  _fitPrompt() {
    const { prompt } = this._elements;
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight + 2}px`;
  }

  _isAtEnd() {
    const { messages } = this._elements;
    return messages.scrollHeight - messages.scrollTop - messages.clientHeight < NEAR_END_PX;
  }

  _scrollToEnd() {
    const { messages } = this._elements;
    messages.scrollTop = messages.scrollHeight;
  }
}
