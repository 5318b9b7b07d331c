// The steps of the last seconds: each as wide as it took, prefill over decode, on a square-root scale to the budget.
import { byId, duration, element, fitCanvas, number, percent } from "./dom.js";

const HEIGHT = 118;
const TOP = 10;

export class StepChart {
  constructor(model) {
    this.model = model;
    this.axis = element("div", { class: "axis" }, "tokens a step");
    this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-roledescription": "chart of steps", "aria-describedby": "step-detail" });
    this.numbers = element("div", { class: "numbers" });
    byId("step-chart").append(this.axis, element("div", { class: "plot" }, this.canvas), this.numbers);
    this.choose(null);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.stepAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  draw(palette, now, span) {
    const width = this.canvas.parentElement.clientWidth;
    if (width < 10) return;
    const budget = this.model.layout.max_num_batched_tokens;
    Object.assign(this, { now, span, width });
    const context = fitCanvas(this.canvas, width, HEIGHT);
    context.clearRect(0, 0, width, HEIGHT);
    const shown = this.model.steps.filter((step) => step.end > now - span);
    const top = Math.max(budget, ...shown.map((step) => step.prefill + step.decode));
    const y = (tokens) => HEIGHT - (HEIGHT - TOP) * Math.sqrt(tokens / top);
    this.drawTicks(context, palette, y, budget, width);
    this.drawBars(context, palette, y, shown);
    this.describe(shown, budget);
  }

  drawTicks(context, palette, y, budget, width) {
    context.font = "10.5px system-ui, sans-serif";
    context.textAlign = "right";
    context.lineWidth = 1;
    let free = -Infinity;
    for (const tokens of [budget, 1024, 512, 256, 128, 64, 16, 4]) {
      if (tokens > budget || y(tokens) - free < 16) continue;
      free = y(tokens);
      context.strokeStyle = tokens === budget ? palette.budget : palette.line;
      context.setLineDash(tokens === budget ? [5, 4] : []);
      context.beginPath();
      context.moveTo(0, y(tokens));
      context.lineTo(width - 34, y(tokens));
      context.stroke();
      context.fillStyle = palette.soft;
      context.fillText(number(tokens), width - 2, y(tokens) + 3.5);
    }
    context.setLineDash([]);
  }

  /** Steps too short for a pixel of their own share one: the largest of them is drawn. */
  drawBars(context, palette, y, shown) {
    const columns = new Map();
    for (const step of shown) {
      const x = Math.max(0, Math.round(this.x(step.start)));
      const right = Math.max(x + 1, Math.round(this.x(step.end)) - (this.x(step.end) - this.x(step.start) > 4 ? 1 : 0));
      const column = columns.get(x);
      if (!column || step.prefill + step.decode > column.step.prefill + column.step.decode) columns.set(x, { step, right });
    }
    for (const [x, { step, right }] of columns) {
      const total = y(step.prefill + step.decode);
      const border = y(step.decode);
      context.globalAlpha = this.chosen && this.chosen !== step ? 0.55 : 1;
      context.fillStyle = palette.decode;
      context.fillRect(x, border, right - x, HEIGHT - border);
      context.fillStyle = palette.prefill;
      context.fillRect(x, total, right - x, border - total);
    }
    context.globalAlpha = 1;
  }

  x(time) {
    return ((time - this.now + this.span) / this.span) * (this.width - 40);
  }

  describe(shown, budget) {
    const sum = (name) => shown.reduce((total, step) => total + step[name], 0);
    const largest = shown.reduce((most, step) => Math.max(most, step.prefill + step.decode), 0);
    const mean = shown.length ? sum("duration") / shown.length : NaN;
    const lines = [
      [number(shown.length), ` steps, ${duration(mean)} each`],
      [number(sum("prefill")), " prompt tokens"],
      [number(sum("decode")), " new tokens"],
      [percent(largest, budget), " of the budget at most"],
    ];
    this.numbers.replaceChildren(...lines.map(([value, text]) => element("span", {}, element("b", {}, value), text)));
    this.canvas.setAttribute("aria-label", `Steps of the last ${this.span} seconds: ${lines.map((line) => line.join("")).join(", ")}.`);
  }

  stepAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    let best = null;
    let distance = 6;
    for (const step of this.model.steps) {
      const off = Math.max(this.x(step.start) - x, x - this.x(step.end), 0);
      if (off < distance) [best, distance] = [step, off];
    }
    return best;
  }

  key(event) {
    const steps = this.model.steps;
    const at = this.chosen ? steps.indexOf(this.chosen) : steps.length;
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 };
    if (event.key === "Escape") this.choose(null);
    if (!(event.key in moves) || !steps.length) return;
    event.preventDefault();
    this.choose(steps[Math.min(Math.max(moves[event.key], 0), steps.length - 1)]);
  }

  choose(step) {
    this.chosen = step;
    const budget = this.model.layout?.max_num_batched_tokens;
    byId("step-detail").textContent = step
      ? `Step ${number(step.id)}: ${number(step.prefill)} prompt and ${number(step.decode)} new tokens in ${number(step.rows)} rows, ${percent(step.prefill + step.decode, budget, 1)} of the budget of ${number(budget)}, in ${duration(step.duration)}.`
      : "Heights grow with the square root, so that a step of a few tokens still shows. Point at a step, or use the left and right arrow keys.";
  }
}
