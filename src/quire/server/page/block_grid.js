// Every KV block as one cell. A pool of 50,000 is drawn once; after that only the cells that changed.
import { byId, element, fitCanvas, number } from "./dom.js";
import { EngineModel, STATES } from "./engine_model.js";

const MAX_HEIGHT = 208;
const MAX_CELL = 16;
const MIN_SHOWN = 256;

export class BlockGrid {
  /** `mark(seqIds)` is told whose block is looked at. */
  constructor(model, mark) {
    this.model = model;
    this.mark = mark;
    this.under = element("canvas", { "aria-hidden": "true" });
    this.over = element("canvas", {
      class: "over",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of KV blocks",
      "aria-describedby": "block-detail",
    });
    byId("block-grid").append(this.under, this.over);
    this.drawn = new Int32Array(0);
    this.cursor = 0;
    this.pinned = false;
    this.over.addEventListener("pointermove", (event) => !this.pinned && this.look(this.blockAt(event)));
    this.over.addEventListener("pointerleave", () => !this.pinned && this.look(0));
    this.over.addEventListener("click", (event) => this.pin(this.blockAt(event)));
    this.over.addEventListener("keydown", (event) => this.key(event));
    for (const id of ["all-blocks", "colour-by"]) byId(id).addEventListener("change", () => this.draw(this.palette));
  }

  forget() {
    this.drawn = new Int32Array(0);
  }

  /** Blocks that were never used are left out unless asked for: the rest is then large enough to see. */
  numShown() {
    const total = this.model.layout.num_blocks;
    if (byId("all-blocks").checked) return total;
    return Math.min(total, Math.max(MIN_SHOWN, Math.ceil((this.model.highestUsed * 1.2) / 256) * 256));
  }

  draw(palette) {
    this.palette = palette;
    const width = byId("block-grid").clientWidth;
    if (!this.model.layout || width < 10) return;
    this.arrange(width);
    const bySequence = byId("colour-by").value === "sequence";
    const context = fitCanvas(this.under, width, this.height);
    const fills = STATES.map((state) => palette[state]);
    const gap = this.cell >= 6 ? 2 : this.cell >= 4 ? 1 : 0;
    for (let i = 0; i < this.count; i++) {
      const state = this.model.states[i];
      let colour = state;
      if (bySequence && state >= 2) colour = 4 + (this.model.owners(i + 1)[0]?.lane.seqId ?? 0);
      if (this.drawn[i] === colour) continue;
      this.drawn[i] = colour;
      context.fillStyle = colour < 4 ? fills[colour] : sequenceColour(colour - 4);
      const x = (i % this.columns) * this.cell;
      const y = Math.floor(i / this.columns) * this.cell;
      context.clearRect(x, y, this.cell, this.cell);
      context.fillRect(x, y, this.cell - gap, this.cell - gap);
    }
    this.describe();
    this.drawOver();
  }

  /** The largest cells with which all blocks fit; fractions of a pixel would blur. */
  arrange(width) {
    const count = this.numShown();
    let cell = MAX_CELL;
    while (cell > 2 && Math.ceil(count / Math.floor(width / cell)) * cell > MAX_HEIGHT) cell -= 1;
    const columns = Math.floor(width / cell);
    if (columns !== this.columns || cell !== this.cell || count !== this.count || width !== this.width || this.drawn.length !== count) {
      Object.assign(this, { columns, cell, count, width });
      Object.assign(byId("block-grid").dataset, { columns, cell });
      this.height = Math.ceil(count / columns) * cell;
      this.drawn = new Int32Array(count).fill(-1);
      fitCanvas(this.under, width, this.height).clearRect(0, 0, width, this.height);
    }
  }

  describe() {
    const counts = this.model.counts();
    const total = this.model.layout.num_blocks;
    const text = `${number(total)} KV blocks: ${STATES.map((state, i) => `${number(counts[i])} ${state}`).reverse().join(", ")}.`;
    if (this.over.getAttribute("aria-label") !== text) this.over.setAttribute("aria-label", text);
    this.detail();
  }

  drawOver() {
    const context = fitCanvas(this.over, this.width, this.height);
    context.clearRect(0, 0, this.width, this.height);
    if (!this.cursor || this.cursor > this.count) return;
    context.lineWidth = 1.5;
    context.strokeStyle = this.palette.ink;
    for (const { lane } of this.model.owners(this.cursor)) {
      for (const { firstKept, blocks } of this.model.tables.get(lane.seqId)) {
        context.globalAlpha = 0.55;
        for (const block of blocks.slice(firstKept)) this.outline(context, block, 0.5);
      }
    }
    context.globalAlpha = 1;
    context.lineWidth = 2.5;
    this.outline(context, this.cursor, -1);
  }

  outline(context, block, inset) {
    const x = ((block - 1) % this.columns) * this.cell;
    const y = Math.floor((block - 1) / this.columns) * this.cell;
    context.strokeRect(x + inset, y + inset, this.cell - 2 - 2 * inset, this.cell - 2 - 2 * inset);
  }

  blockAt(event) {
    const box = this.over.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.cell);
    const block = Math.floor((event.clientY - box.top) / this.cell) * this.columns + column + 1;
    return column < this.columns && block <= this.count ? block : 0;
  }

  look(block) {
    if (block === this.cursor) return;
    this.cursor = block;
    this.mark(new Set(this.model.owners(block).map(({ lane }) => lane.seqId)));
    this.drawOver();
    this.detail();
  }

  pin(block) {
    this.pinned = block > 0 && !(this.pinned && block === this.cursor);
    this.look(block);
  }

  key(event) {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns };
    let block = this.cursor || 1;
    if (event.key in moves) block = this.cursor ? block + moves[event.key] : 1;
    else if (event.key === "Home") block = 1;
    else if (event.key === "End") block = this.count;
    else if (event.key === "n" || event.key === "p") block = this.nextUsed(event.key === "n" ? 1 : -1);
    else if (event.key === "Escape") block = 0;
    else return;
    event.preventDefault();
    this.pinned = block > 0;
    this.look(Math.min(Math.max(block, 0), this.count));
  }

  /** The next block of another state or owner: a quick way through a large grid. */
  nextUsed(direction) {
    const key = (block) => `${this.model.states[block - 1]}/${this.model.owners(block).map(({ lane }) => lane.seqId)}`;
    const from = key(this.cursor || 1);
    let block = this.cursor || 1;
    while (block + direction >= 1 && block + direction <= this.count) {
      block += direction;
      if (key(block) !== from) return block;
    }
    return block;
  }

  detail() {
    const text = this.cursor ? this.blockText(this.cursor) : this.generalText();
    if (byId("block-detail").textContent !== text) byId("block-detail").textContent = text;
  }

  generalText() {
    const hidden = this.model.layout ? this.model.layout.num_blocks - this.count : 0;
    const rest = hidden > 0 ? `${number(hidden)} more blocks were never used and are not drawn. ` : "";
    return `${rest}Point at a block, or focus the grid and use the arrow keys (n and p jump), to see whose it is.`;
  }

  blockText(block) {
    const state = STATES[this.model.states[block - 1]];
    const owners = this.model.owners(block);
    if (state === "free") return `Block ${block}: free.`;
    if (state === "cached") return `Block ${block}: cached. No sequence holds it (reference count 0); a prompt that begins alike will find it.`;
    const size = this.model.layout.block_size;
    const grouped = this.model.layout.kv_groups.length > 1;
    const texts = owners.slice(0, 6).map(({ lane, group, position }) => {
      const place = `tokens ${number(position * size)}–${number((position + 1) * size - 1)}${grouped ? ` of KV group ${group}` : ""}`;
      return `${lane.requestId}${lane.index ? `[${lane.index}]` : ""} (${EngineModel.phase(lane)}, ${place})`;
    });
    const more = owners.length > 6 ? ` and ${owners.length - 6} more` : "";
    return `Block ${block}: ${state}, reference count ${owners.length}, held by ${texts.join("; ")}${more}.`;
  }
}

/** Neighbouring sequences get hues far apart. */
export const sequenceColour = (seqId) => `hsl(${(seqId * 137.508) % 360} 52% 56%)`;
