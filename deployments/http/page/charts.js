// Small SVG charts: a line over the last two minutes, and the last steps of an engine.

import { h, setText, svg } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 44;

/** A titled line (or, with `isSparse`, dots) over time; `format` writes its values. */
export class TimeChart {
  constructor(title, format, spanS, isSparse = false) {
    this._format = format;
    this._spanS = spanS;
    this._isSparse = isSparse;
    this._now = h("strong", "", "–");
    this._top = h("span", "muted");
    this._area = svg("path", { class: "chart-area" });
    this._line = svg("path", { class: "chart-line" });
    this._dots = svg("path", { class: "chart-dots" });
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, [
      this._area,
      this._line,
      this._dots,
    ]);
    this.node = h("figure", "chart", [h("figcaption", "", [h("span", "", title), this._now, this._top]), picture]);
  }

  /** Draws `points`: [age in seconds, value], the oldest first; `now` is shown as the current value. */
  update(points, now) {
    const shown = points.filter(([age]) => age <= this._spanS);
    const top = Math.max(...shown.map(([, value]) => value), 0);
    setText(this._now, now === null ? "–" : this._format(now));
    setText(this._top, top > 0 ? `max ${this._format(top)}` : "");
    const x = (age) => (WIDTH * (1 - age / this._spanS)).toFixed(1);
    const y = (value) => (HEIGHT - 2 - (HEIGHT - 6) * (top > 0 ? value / top : 0)).toFixed(1);
    let line = "";
    let area = "";
    let dots = "";
    for (const run of runs(shown)) {
      const path = run.map(([age, value]) => `${x(age)} ${y(value)}`).join("L");
      if (this._isSparse) {
        dots += run.map(([age, value]) => `M${x(age)} ${y(value)}h0`).join("");
      } else if (run.length > 1) {
        line += `M${path}`;
        area += `M${x(run[0][0])} ${HEIGHT}L${path}L${x(run.at(-1)[0])} ${HEIGHT}Z`;
      } else {
        dots += `M${path}h0`;
      }
    }
    this._line.setAttribute("d", line);
    this._area.setAttribute("d", area);
    this._dots.setAttribute("d", dots);
  }
}

/** Points without a gap of more than two seconds between them. */
function runs(points) {
  const found = [];
  for (const point of points) {
    const last = found.at(-1)?.at(-1);
    if (last && last[0] - point[0] <= 2) found.at(-1).push(point);
    else found.push([point]);
  }
  return found;
}

/** The last steps: decode rows as bars upwards, prefill tokens downwards. */
export class StepChart {
  constructor(numSteps) {
    this._numSteps = numSteps;
    this._large = svg("path", { class: "step-large" });
    this._small = svg("path", { class: "step-small" });
    this._prefill = svg("path", { class: "step-prefill" });
    const axis = svg("path", { class: "step-axis", d: "M0 32.5H256" });
    this.node = svg("svg", { class: "steps", viewBox: "0 0 256 48", preserveAspectRatio: "none", "aria-hidden": "true" }, [
      this._large,
      this._small,
      this._prefill,
      axis,
    ]);
  }

  /** Draws `steps`, the oldest first, on a scale of `numRows` rows. */
  update(steps, numRows) {
    const width = 256 / this._numSteps;
    const mostTokens = Math.max(...steps.map((step) => step.num_prefill_tokens), 1);
    const paths = { large: "", small: "", prefill: "" };
    steps.forEach((step, index) => {
      const left = 256 - width * (steps.length - index) + 0.4;
      const bar = `h${(width - 0.8).toFixed(2)}`;
      if (step.num_decode_rows) {
        const height = (30 * step.num_decode_rows) / numRows;
        paths[step.decode_batch_size > 1 ? "large" : "small"] += `M${left.toFixed(2)} 32v${-height.toFixed(1)}${bar}V32Z`;
      }
      if (step.num_prefill_tokens) {
        const depth = 2 + (12 * step.num_prefill_tokens) / mostTokens;
        paths.prefill += `M${left.toFixed(2)} 33v${depth.toFixed(1)}${bar}V33Z`;
      }
    });
    for (const [name, path] of Object.entries(paths)) this[`_${name}`].setAttribute("d", path);
  }
}
