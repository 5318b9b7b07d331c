// One lane a sequence: what it did, on the same time axis as the steps, and how far it is.
import { byId, element, fitCanvas, number } from "./dom.js";
import { EngineModel } from "./engine_model.js";

const MAX_LANES = 24;
const HEIGHT = 15;

export class Lanes {
  constructor(model) {
    this.model = model;
    this.rows = new Map();
    this.marked = new Set();
  }

  mark(seqIds) {
    this.marked = seqIds;
    for (const [seqId, row] of this.rows) row.node.classList.toggle("marked", seqIds.has(seqId));
  }

  draw(palette, now, span) {
    const visible = this.choose(now, span);
    const shown = visible.slice(0, MAX_LANES);
    const ids = new Set(shown.map(([seqId]) => seqId));
    for (const [seqId, row] of this.rows) {
      if (!ids.has(seqId)) {
        row.node.remove();
        this.rows.delete(seqId);
      }
    }
    shown.forEach(([seqId, history], i) => {
      const row = this.rows.get(seqId) ?? this.makeRow(seqId, history);
      const list = byId("lanes");
      if (list.children[i] !== row.node) list.insertBefore(row.node, list.children[i] ?? null);
      updateRow(row, history);
      drawTimeline(row.canvas, palette, history, now, span);
    });
    this.more(visible.length);
  }

  /** Running first, then waiting, then the most lately ended. */
  choose(now, span) {
    const live = this.model.lanes.map((lane) => [lane.seqId, this.model.histories.get(lane.seqId)]);
    const ended = [...this.model.histories].filter(([, history]) => !history.live && history.segments.at(-1).end > now - span);
    return [...live, ...ended.reverse()];
  }

  makeRow(seqId, { lane }) {
    const name = lane.requestId + (lane.index ? `[${lane.index}]` : "");
    const canvas = element("canvas", { "aria-hidden": "true" });
    const bar = element("span", { class: "bar", "aria-hidden": "true" }, ...["cached", "prefill", "decode"].map((key) => element("i", { class: `k-${key}` })));
    const text = element("span");
    const who = element("span", { class: "who", title: name }, name);
    const node = element("li", { class: "lane" }, who, element("div", {}, canvas), element("span", { class: "facts" }, bar, text));
    node.classList.toggle("marked", this.marked.has(seqId));
    const row = { node, canvas, text, parts: [...bar.children] };
    this.rows.set(seqId, row);
    return row;
  }

  more(numVisible) {
    const hidden = numVisible - Math.min(numVisible, MAX_LANES);
    const waiting = this.model.counters.num_waiting - this.model.lanes.filter((lane) => lane.status === "waiting" || lane.status === "preempted").length;
    const parts = [];
    if (hidden > 0) parts.push(`${number(hidden + Math.max(waiting, 0))} more sequences are not drawn.`);
    const since = this.model.histories.size ? "in this time" : "since this page was opened";
    if (!numVisible) parts.push(`No sequence ${since}. Ask something in the chat.`);
    byId("lanes-more").textContent = parts.join(" ");
  }
}

function updateRow(row, { lane, live }) {
  row.node.classList.toggle("ended", !live);
  const whole = Math.max(lane.maxTokens, lane.numKnown, 1);
  const cached = Math.min(lane.numCached, lane.numComputed);
  const parts = [cached, Math.min(lane.numComputed, lane.numPrompt) - cached, lane.numKnown - lane.numPrompt];
  row.parts.forEach((part, i) => (part.style.width = `${(100 * Math.max(0, parts[i])) / whole}%`));
  const hit = lane.numCached ? ` (${number(lane.numCached)} hit)` : "";
  const preempted = lane.numPreemptions ? `, preempted ${lane.numPreemptions}×` : "";
  const status = live ? EngineModel.phase(lane) : "ended";
  const text = `${number(lane.numPrompt)}${hit} + ${number(lane.numKnown - lane.numPrompt)}${preempted}`;
  row.text.textContent = text;
  row.node.setAttribute("aria-label", `${lane.requestId}: ${status}, ${lane.numPrompt} prompt tokens, ${lane.numCached} of them cached, ${lane.numKnown - lane.numPrompt} new tokens, ${lane.numBlocks} blocks${preempted}`);
}

function drawTimeline(canvas, palette, history, now, span) {
  const width = canvas.parentElement.clientWidth;
  if (width < 10) return;
  const context = fitCanvas(canvas, width, HEIGHT);
  context.clearRect(0, 0, width, HEIGHT);
  const x = (time) => ((time - now + span) / span) * (width - 40);
  context.fillStyle = palette.line;
  context.fillRect(0, HEIGHT / 2, width - 40, 1);
  history.segments.forEach((segment, i) => {
    const next = history.segments[i + 1];
    const end = next ? next.start : history.live ? now : segment.end;
    if (end < now - span) return;
    const left = Math.max(0, x(segment.start));
    const right = Math.max(left + 1.5, x(end));
    const colour = { prefill: "prefill", decode: "decode", preempted: "preempted" }[segment.phase] ?? "waiting";
    const slim = colour === "waiting" ? 4 : 1.5;
    context.fillStyle = palette[colour];
    context.fillRect(left, slim, right - left, HEIGHT - 2 * slim);
  });
}
