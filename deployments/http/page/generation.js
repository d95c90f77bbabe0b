// One answer while it is streamed: chunks in, an assistant's message out.

import { streamChat } from "./api.js";

const SAVE_EVERY_MS = 1000;
const LEAST_ARRIVALS = 4; // of tokens, for a rate to mean something: a tool call may come as one piece

/**
 * Streams an answer into `message`.
 *
 * `onChange` is called after each chunk, `onState` with what the stream waits for ("" for nothing),
 * `onSave` now and then. Errors end up in the message, never here.
 */
export async function generate(message, body, signal, { onChange, onState, onSave }) {
  const clock = new Clock();
  let savedMs = performance.now();
  try {
    for await (const { data, comment } of streamChat(body, signal)) {
      if (comment !== undefined) {
        onState(comment.includes("engine") ? "The engine was lost; waiting for another one" : "Still waiting");
        continue;
      }
      onState("");
      take(message, data, clock);
      onChange();
      if (performance.now() - savedMs > SAVE_EVERY_MS) {
        savedMs = performance.now();
        onSave();
      }
    }
  } catch (error) {
    if (signal.aborted) message.isStopped = true;
    else {
      message.error = error.message;
      message.status = error.status;
    }
  }
  onState("");
  onSave();
}

/** Takes a chunk's deltas and usage into the message. */
function take(message, chunk, clock) {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  message.content += delta.content ?? "";
  message.reasoning += delta.reasoning_content ?? "";
  for (const call of delta.tool_calls ?? []) {
    const known = (message.toolCalls[call.index] ??= { id: "", name: "", args: "" });
    known.id = call.id ?? known.id;
    known.name += call.function?.name ?? "";
    known.args += call.function?.arguments ?? "";
  }
  if (choice?.finish_reason) message.finishReason = choice.finish_reason;
  if (chunk.usage) {
    message.usage = {
      prompt: chunk.usage.prompt_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
      output: chunk.usage.completion_tokens,
    };
    message.timing = clock.take(chunk.usage.completion_tokens);
  }
}

/** Time to the first token and the rate after it, as this page sees them. */
class Clock {
  constructor() {
    this._startMs = performance.now();
    this._firstMs = null;
    this._lastMs = null;
    this._numFirst = 0;
    this._numLast = 0;
    this._numArrivals = 0;
  }

  take(numTokens) {
    if (numTokens > this._numLast) {
      this._lastMs = performance.now();
      if (this._firstMs === null) {
        this._firstMs = this._lastMs;
        this._numFirst = numTokens;
      }
      this._numLast = numTokens;
      this._numArrivals += 1;
    }
    if (this._firstMs === null) return null;
    const seconds = (this._lastMs - this._firstMs) / 1000;
    const later = this._numLast - this._numFirst;
    return { ttftS: (this._firstMs - this._startMs) / 1000, tokensPerS: this._numArrivals >= LEAST_ARRIVALS && seconds > 0 ? later / seconds : null };
  }
}

/** An assistant's message without output yet. */
export function emptyAnswer() {
  return { role: "assistant", content: "", reasoning: "", toolCalls: [], usage: null, timing: null, finishReason: null };
}
