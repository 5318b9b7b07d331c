// The engine view: listens while it is shown and not paused, and hands the model to its four pictures.
import { request, serverSentEvents } from "./api.js";
import { BlockGrid } from "./block_grid.js";
import { byId, colours, element, number, percent } from "./dom.js";
import { EngineModel, STATES } from "./engine_model.js";
import { renderHistograms } from "./histograms.js";
import { Lanes } from "./lanes.js";
import { StepChart } from "./step_chart.js";

const RATE_SECONDS = 5;
const REDRAW_MS = 200;

export class EngineView {
  constructor() {
    this.model = new EngineModel();
    this.lanes = new Lanes(this.model);
    this.grid = new BlockGrid(this.model, (seqIds) => this.lanes.mark(seqIds));
    this.steps = new StepChart(this.model);
    this.shown = this.paused = false;
    this.abort = null;
    this.legends();
    byId("pause").addEventListener("click", () => this.setPaused(!this.paused));
    byId("span").addEventListener("change", () => this.draw());
    document.addEventListener("visibilitychange", () => this.connect());
    new ResizeObserver(() => this.draw()).observe(byId("engine-view"));
    setInterval(() => this.tick(), REDRAW_MS);
  }

  setShown(shown) {
    this.shown = shown;
    this.connect();
    if (shown) this.draw();
  }

  setPaused(paused) {
    this.paused = paused;
    byId("pause").setAttribute("aria-pressed", paused);
    byId("pause").textContent = paused ? "Go on" : "Pause";
    this.frozenAt = paused && this.model.layout ? this.model.now() : null;
    this.connect();
  }

  recolour() {
    this.palette = colours();
    this.grid.forget();
    this.draw();
  }

  /** Be connected exactly while somebody can see it: the engine does nothing for us otherwise. */
  connect() {
    const wanted = this.shown && !this.paused && !document.hidden;
    if (wanted && !this.abort) this.listen();
    if (!wanted && this.abort) {
      this.abort.abort();
      this.abort = null;
      this.say(this.paused ? "paused" : "");
    }
  }

  async listen() {
    const abort = (this.abort = new AbortController());
    let wait = 500;
    while (!abort.signal.aborted) {
      try {
        const response = await request("/engine/view", { signal: abort.signal });
        this.say("live", "live");
        for await (const { event, data } of serverSentEvents(response)) {
          if (abort.signal.aborted) return;
          wait = 500;
          if (event === "view") this.model.apply(JSON.parse(data));
          if (event === "error") throw new Error(JSON.parse(data).message);
          if (event === "latency") this.model.latency = JSON.parse(data);
          if (event === "view" || event === "latency") this.draw();
        }
        this.say("the stream ended", "bad");
      } catch (error) {
        if (abort.signal.aborted) return;
        this.say(error.message, "bad");
        if (!byId("key-dialog").open && error.message.includes("API key")) {
          this.abort = null;
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, 8000);
    }
  }

  say(text, kind = "") {
    byId("engine-state").textContent = text;
    byId("engine-state").className = kind;
  }

  /** Time flows on while no update comes; not for those who asked for less motion. */
  tick() {
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    if (this.shown && !this.paused && !document.hidden && !still && this.model.layout) {
      this.tiles();
      this.drawTimeline();
    }
  }

  draw() {
    if (!this.shown || !this.model.layout) return;
    byId("blocks-card").hidden = this.model.layout.num_blocks === 0; // An encoder keeps no KV.
    byId("block-size").textContent = this.model.layout.block_size;
    this.tiles();
    this.blockLegend();
    this.grid.draw(this.palette);
    this.drawTimeline();
    renderHistograms(byId("histograms"), this.model.latency);
  }

  drawTimeline() {
    const span = Number(byId("span").value);
    const now = this.frozenAt ?? this.model.now();
    this.steps.draw(this.palette, now, span);
    this.lanes.draw(this.palette, now, span);
  }

  tiles() {
    const { layout, counters, states } = this.model;
    const held = states.reduce((sum, state) => sum + (state >= 2), 0);
    const recent = this.model.recent(RATE_SECONDS);
    const tiles = [
      ["Running", number(counters.num_running), `of ${number(layout.max_num_seqs)}`],
      ["Waiting", number(counters.num_waiting), ""],
      ["KV in use", percent(held, layout.num_blocks, 1), ""],
      ["Prefix hit rate", percent(counters.num_prefix_hit_tokens, counters.num_prefix_query_tokens), ""],
      ["Output", number(recent.sampled / RATE_SECONDS, recent.sampled < 50 ? 1 : 0), "tok/s"],
      ["Prefill", number(recent.prefill / RATE_SECONDS), "tok/s"],
      ["Preemptions", number(counters.num_preemptions), ""],
    ];
    const nodes = tiles.map(([name, value, unit]) =>
      element("div", { class: "tile" }, element("dt", {}, name), element("dd", {}, value, " ", element("small", {}, unit))),
    );
    byId("tiles").replaceChildren(...nodes);
  }

  blockLegend() {
    const counts = this.model.counts();
    const words = ["free", "cached, in no use", "private", "shared"];
    const items = STATES.map((state, i) => legendItem(state, words[i], counts[i])).reverse();
    byId("block-legend").replaceChildren(...items);
  }

  legends() {
    const words = { prefill: "prefill", decode: "decode", waiting: "waiting", preempted: "preempted", budget: "budget" };
    byId("step-legend").replaceChildren(...Object.entries(words).map(([key, text]) => legendItem(key, text)));
  }
}

function legendItem(key, text, count) {
  const value = count === undefined ? null : element("b", {}, number(count));
  return element("li", {}, element("span", { class: `key k-${key}`, "aria-hidden": "true" }), `${text} `, value);
}
