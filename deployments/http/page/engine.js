// The engine view: asks for the engines' state once a second, but only while it is open and visible.

import { getJson } from "./api.js";
import { count, counted, duration, h, setText } from "./dom.js";
import { ReplicaCard } from "./replica_card.js";

const PERIOD_MS = 1000;
const PAUSE_MS = 4000; // after an answer that wasn't a state
const LOST_SHOWN_MS = 60000;
const GROUP_S = 2; // failovers so close together are one event
const MOST_FAILOVERS = 8;

export class EngineView {
  constructor(root) {
    this._root = root;
    this._status = root.querySelector("#engine-status");
    this._replicas = root.querySelector("#replicas");
    this._failovers = root.querySelector("#failovers");
    this._cards = new Map(); // replica id -> {card, lostAtMs}
    this._isShown = false;
    this._timer = 0;
    this._abort = null;
    document.addEventListener("visibilitychange", () => this._run());
  }

  setShown(isShown) {
    this._isShown = isShown;
    this._run();
  }

  /** Starts or stops asking. */
  _run() {
    clearTimeout(this._timer);
    this._abort?.abort();
    this._abort = null;
    if (this._isShown && document.visibilityState === "visible") this._poll();
  }

  async _poll() {
    const abort = new AbortController();
    this._abort = abort;
    const startMs = performance.now();
    let pauseMs = PERIOD_MS;
    try {
      this._show(await getJson("engine/state", abort.signal));
    } catch (error) {
      if (abort.signal.aborted) return;
      setText(this._status, error.message);
      pauseMs = Math.max(PAUSE_MS, 1000 * (error.retryAfterS ?? 0));
    }
    this._timer = setTimeout(() => this._poll(), Math.max(0, pauseMs - (performance.now() - startMs)));
  }

  _show(state) {
    const nowMs = performance.now();
    const sequences = state.replicas.flatMap((replica) => replica.running);
    const longest = Math.max(...sequences.map((one) => one.num_prompt_tokens + one.num_output_tokens), 64);
    const scale = 2 ** Math.ceil(Math.log2(longest)); // so that bars don't change their scale all the time
    for (const replica of state.replicas) {
      let entry = this._cards.get(replica.id);
      if (!entry) {
        entry = { card: new ReplicaCard(replica.id) };
        this._cards.set(replica.id, entry);
        this._replicas.append(entry.card.node);
      }
      entry.lostAtMs = null;
      entry.card.update(replica, scale);
    }
    this._root.classList.toggle("has-several", this._cards.size > 1);
    const present = new Set(state.replicas.map((replica) => replica.id));
    for (const [id, entry] of this._cards) {
      if (present.has(id)) continue;
      if (state.error !== null && state.replicas.length === 0) {
        entry.card.showLost("no answer"); // which may come again
        continue;
      }
      if (entry.lostAtMs == null) {
        entry.lostAtMs = nowMs;
        entry.card.showLost(`lost ${new Date().toLocaleTimeString()}`);
      } else if (nowMs - entry.lostAtMs > LOST_SHOWN_MS) {
        entry.card.node.remove();
        this._cards.delete(id);
      }
    }
    const running = counted(sequences.length, "sequence");
    const number = counted(state.replicas.length, "replica");
    setText(this._status, state.error ?? `${number}, ${running}`);
    this._showFailovers(state.failovers);
  }

  _showFailovers(failovers) {
    this._failovers.hidden = failovers.length === 0;
    const list = this._failovers.querySelector("ol");
    const items = grouped(failovers)
      .slice(-MOST_FAILOVERS)
      .reverse()
      .map((group) => {
        const time = new Date(1000 * group[0].at_s).toLocaleTimeString();
        return h("li", group.some((one) => one.outcome === "waiting") ? "open" : "", [
          h("time", "", time),
          h("span", "", `${counted(group.length, "stream")} lost the engine, ${outcome(group)}`),
          h("span", "muted", group[0].reason),
        ]);
      });
    // Replaced only if they say something else, so that they can be selected.
    const fresh = h("ol", "", items);
    if (fresh.textContent !== list.textContent) list.replaceChildren(...fresh.childNodes);
  }
}

/** Failovers that happened together. */
function grouped(failovers) {
  const groups = [];
  for (const one of failovers) {
    const last = groups.at(-1);
    if (last && one.at_s - last[0].at_s < GROUP_S) last.push(one);
    else groups.push([one]);
  }
  return groups;
}

function outcome(group) {
  const waiting = group.filter((one) => one.outcome === "waiting").length;
  if (waiting) return waiting === group.length ? "waiting for another one" : `${count(waiting)} still waiting`;
  const resumed = group.filter((one) => one.outcome === "resumed");
  const longest = Math.max(...resumed.map((one) => one.outage_s));
  if (resumed.length === group.length) return `resumed after ${duration(longest)}`;
  if (!resumed.length) return "ended without another one";
  return `${count(resumed.length)} resumed after ${duration(longest)}, the others ended`;
}
