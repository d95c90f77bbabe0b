// One replica in the engine view: rows of the batch, queue, KV blocks, steps, latencies.

import { StepChart, TimeChart } from "./charts.js";
import { count, counted, duration, h, setText } from "./dom.js";

const SPAN_S = 120;
const RATE_S = 5; // over which the current rate is taken
const NUM_STEPS = 64;

export class ReplicaCard {
  constructor(id) {
    this._state = h("span", "pill", "running");
    this._rate = h("span", "rate");
    this._scale = h("span", "muted");
    this._rows = h("ol", "rows");
    this._rowViews = [];
    this._queue = h("p", "queue");
    this._blocks = h("span", "", "");
    this._fill = h("div", "meter-fill");
    this._meter = h("div", "meter", this._fill, { role: "meter", "aria-label": "KV blocks in use", "aria-valuemin": 0 });
    this._steps = new StepChart(NUM_STEPS);
    this._stepText = h("p", "muted step-text");
    this._ttft = new TimeChart("First token", duration, SPAN_S, true);
    this._tpot = new TimeChart("Per token", duration, SPAN_S);
    this._throughput = new TimeChart("Tokens/s", (value) => value.toFixed(0), SPAN_S);
    this.node = h("article", "replica", [
      h("header", "", [h("h3", "", id.slice(0, 12), { title: `Replica ${id}` }), this._state, h("span", "grow"), this._rate]),
      h("div", "label", [h("span", "", "Rows of the batch"), this._scale]),
      this._rows,
      this._queue,
      h("div", "label", [h("span", "", "KV blocks"), this._blocks]),
      this._meter,
      h("div", "label", h("span", "", "Last steps")),
      this._steps.node,
      this._stepText,
      h("div", "charts", [this._ttft.node, this._tpot.node, this._throughput.node]),
    ]);
  }

  showLost(text) {
    this.node.classList.add("lost");
    setText(this._state, text);
  }

  /** `replica` of the state; bars are as long as the row at `scale` tokens. */
  update(replica, scale) {
    this.node.classList.remove("lost");
    setText(this._state, replica.running.length || replica.waiting.num_sequences ? "running" : "idle");
    this._state.classList.toggle("active", replica.running.length > 0);
    setText(this._scale, `0 – ${count(scale)} tokens`);
    const numRows = Math.max(...replica.decode_batch_sizes, replica.running.length);
    this._updateRows(replica.running, numRows, scale);
    this._updateQueue(replica.waiting);
    const { in_use: inUse, total, block_size: blockSize } = replica.blocks;
    setText(this._blocks, `${count(inUse)} of ${count(total)} (${counted(blockSize, "token")} each)`);
    this._fill.style.width = `${(100 * inUse) / Math.max(1, total)}%`;
    this._meter.setAttribute("aria-valuenow", inUse);
    this._meter.setAttribute("aria-valuemax", total);
    this._steps.update(replica.steps, Math.max(...replica.decode_batch_sizes));
    setText(this._stepText, stepText(replica.steps));
    this._stepText.title = this._stepText.textContent;
    this._updateCharts(replica.seconds);
  }

  _updateRows(running, numRows, scale) {
    while (this._rowViews.length < numRows) {
      const view = new Row(this._rowViews.length);
      this._rowViews.push(view);
      this._rows.append(view.node);
    }
    const places = placeRows(running, this._rowViews.length);
    this._rowViews.forEach((view, index) => view.update(places[index], scale));
  }

  _updateQueue(waiting) {
    this._queue.classList.toggle("full", waiting.num_sequences > 0);
    const queue = `${counted(waiting.num_sequences, "sequence")}, ${counted(waiting.num_tokens, "token")}`;
    const why = waiting.blocked ? ` (${waiting.blocked})` : "";
    setText(this._queue, waiting.num_sequences ? `Queue: ${queue}${why}` : "Queue: empty");
    this._queue.title = this._queue.textContent;
  }

  _updateCharts(seconds) {
    const whole = seconds.filter((one) => one.age_s > 0); // the current second isn't over
    const ttft = whole.filter((one) => one.num_first).map((one) => [one.age_s, one.ttft_s / one.num_first]);
    const tpot = whole.filter((one) => one.num_later).map((one) => [one.age_s, one.itl_s / one.num_later]);
    const numTokens = new Map(whole.map((one) => [one.age_s, one.num_tokens]));
    const rates = [];
    const oldest = whole.length ? Math.min(whole[0].age_s, SPAN_S) : 0;
    for (let age = oldest; age > 0; age -= 1) rates.push([age, numTokens.get(age) ?? 0]);
    const recent = rates.filter(([age]) => age <= RATE_S).reduce((sum, [, value]) => sum + value, 0) / RATE_S;
    this._ttft.update(ttft, ttft.at(-1)?.[1] ?? null);
    this._tpot.update(tpot, tpot.at(-1)?.[1] ?? null);
    this._throughput.update(rates, rates.length ? recent : null);
    setText(this._rate, recent ? `${recent.toFixed(recent < 10 ? 1 : 0)} tokens/s` : "");
  }
}

/** Sequences by row: those of the last decode dispatch where they were in it, then the others. */
function placeRows(running, numRows) {
  const places = new Array(numRows).fill(null);
  // Sequences that take turns in batches of one would all be in row 0: they keep their order.
  const isBatch = running.some((one) => one.row > 0);
  const others = [];
  for (const one of running) {
    if (isBatch && one.row !== null && one.row < numRows && places[one.row] === null) places[one.row] = one;
    else others.push(one);
  }
  for (let index = 0; index < numRows && others.length; index += 1) places[index] ??= others.shift();
  return places;
}

class Row {
  constructor(index) {
    this._prompt = h("div", "row-prompt");
    this._output = h("div", "row-output");
    this._text = h("span", "row-text");
    const bar = h("div", "row-bar", [this._prompt, this._output]);
    this.node = h("li", "idle", [h("span", "row-number", String(index)), bar, this._text]);
  }

  update(sequence, scale) {
    this.node.className = sequence ? sequence.state : "idle";
    if (!sequence) {
      this._prompt.style.width = this._output.style.width = "0";
      setText(this._text, "");
      this.node.removeAttribute("title");
      return;
    }
    const isPrefill = sequence.state === "prefill";
    const percent = (tokens) => `${(100 * tokens) / scale}%`;
    this._prompt.style.width = percent(isPrefill ? sequence.num_computed_tokens : sequence.num_prompt_tokens);
    this._output.style.width = isPrefill ? "0" : percent(sequence.num_output_tokens);
    const total = sequence.num_prompt_tokens + sequence.num_output_tokens;
    const progress = isPrefill
      ? `${count(sequence.num_computed_tokens)}/${count(sequence.num_to_prefill)} prefill`
      : `${count(sequence.num_prompt_tokens)} + ${count(sequence.num_output_tokens)}`;
    setText(this._text, `#${sequence.seq_id}  ${progress}`);
    const cached = sequence.num_cached_tokens ? `, ${count(sequence.num_cached_tokens)} of the prompt cached` : "";
    const resumed = sequence.num_resumed_tokens ? `, resumed after ${counted(sequence.num_resumed_tokens, "token")}` : "";
    const preempted = sequence.num_preemptions ? `, preempted ${count(sequence.num_preemptions)} times` : "";
    this.node.classList.toggle("resumed", sequence.num_resumed_tokens > 0);
    this.node.title =
      `Sequence ${sequence.seq_id}: ${sequence.state}, context ${counted(total, "token")}${cached}${resumed}${preempted}, ` +
      `${counted(sequence.num_blocks, "block")}, ${duration(sequence.age_s)} old`;
  }
}

function stepText(steps) {
  if (!steps.length) return "none yet";
  const decodes = steps.filter((step) => step.decode_batch_size);
  const sizes = [...new Set(decodes.map((step) => step.decode_batch_size))].sort((a, b) => b - a);
  const parts = sizes.map((size) => `B${size} ×${decodes.filter((step) => step.decode_batch_size === size).length}`);
  const tokens = steps.reduce((sum, step) => sum + step.num_prefill_tokens, 0);
  const chunks = steps.reduce((sum, step) => sum + step.num_prefill_chunks, 0);
  if (chunks) parts.push(`${counted(chunks, "prefill chunk")} of ${counted(tokens, "token")}`);
  const seconds = steps.reduce((sum, step) => sum + step.device_time_s, 0);
  parts.push(`${duration(seconds / steps.length)} per step`);
  return parts.join(" · ");
}
