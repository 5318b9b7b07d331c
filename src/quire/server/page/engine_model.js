// The engine as the events of /engine/view describe it. Field order of the arrays: see core/view.py.

export const STATES = ["free", "cached", "private", "shared"];
export const KEPT_SECONDS = 60;

export class EngineModel {
  constructor() {
    this.layout = null;
    this.states = new Uint8Array(0);
    this.lanes = [];
    this.tables = new Map();
    this.steps = [];
    this.histories = new Map();
    this.latency = {};
    this.counters = {};
    this.version = 0;
    this.highestUsed = 0;
    this.ownersVersion = -1;
  }

  apply(update) {
    if (update.layout) this.startOver(update);
    else if (!this.layout) return;
    const states = decodeBase64(update.block_states);
    if (update.layout) this.states = states;
    else update.changed_blocks.forEach((block, i) => (this.states[block - 1] = states[i]));
    this.applyLanes(update.lanes);
    for (const [id, end, duration, prefill, decode, sampled, rows] of update.steps) {
      this.steps.push({ id, start: end - duration, end, duration, prefill, decode, sampled, rows });
    }
    const from = this.steps.findIndex((step) => step.end > update.time - KEPT_SECONDS);
    this.steps.splice(0, from < 0 ? this.steps.length : from);
    this.counters = update;
    this.offset = performance.now() / 1000 - update.time;
    for (let i = this.states.length - 1; i >= this.highestUsed; i--) {
      if (this.states[i]) {
        this.highestUsed = i + 1;
        break;
      }
    }
    this.note(update.time);
    this.version += 1;
  }

  startOver(update) {
    const restarted = this.counters.time > update.time || this.layout?.num_blocks !== update.layout.num_blocks;
    this.layout = update.layout;
    this.tables.clear();
    this.steps = [];
    if (restarted) {
      this.histories.clear();
      this.highestUsed = 0;
    }
  }

  applyLanes(lanes) {
    const tables = new Map();
    this.lanes = lanes.map(([seqId, requestId, index, status, numPrompt, numKnown, numComputed, numCached, numPreemptions, maxTokens, arrival, scheduled, changes]) => {
      const table = changeTables(this.tables.get(seqId) ?? [], changes);
      tables.set(seqId, table);
      const numBlocks = table.reduce((sum, { firstKept, blocks }) => sum + blocks.length - firstKept, 0);
      return { seqId, requestId, index, status, numPrompt, numKnown, numComputed, numCached, numPreemptions, maxTokens, arrival, scheduled, numBlocks };
    });
    this.tables = tables;
  }

  /** The engine's clock now, so that time flows on while nothing comes. */
  now() {
    return performance.now() / 1000 - this.offset;
  }

  /** How many blocks are in each state. */
  counts() {
    const counts = [0, 0, 0, 0];
    for (const state of this.states) counts[state] += 1;
    return counts;
  }

  /** [{lane, group, position}] of those who hold a block; `position` counts blocks from the sequence's start. */
  owners(block) {
    if (this.ownersVersion !== this.version) {
      this.ownersVersion = this.version;
      this.byBlock = new Map();
      for (const lane of this.lanes) {
        this.tables.get(lane.seqId).forEach(({ firstKept, blocks }, group) => {
          for (let position = firstKept; position < blocks.length; position++) {
            const owner = { lane, group, position };
            if (this.byBlock.has(blocks[position])) this.byBlock.get(blocks[position]).push(owner);
            else this.byBlock.set(blocks[position], [owner]);
          }
        });
      }
    }
    return this.byBlock.get(block) ?? [];
  }

  /** What a sequence is doing: waiting, prefill, decode, preempted; kept once finished. */
  static phase(lane) {
    if (lane.status !== "running") return lane.status;
    return lane.numComputed < lane.numPrompt ? "prefill" : "decode";
  }

  /** Remember each sequence's phases for the timeline; forget those that ended a minute ago. */
  note(time) {
    for (const history of this.histories.values()) history.live = false;
    for (const lane of this.lanes) {
      const phase = EngineModel.phase(lane);
      const history = this.histories.get(lane.seqId) ?? { segments: this.before(lane) };
      this.histories.set(lane.seqId, history);
      const last = history.segments.at(-1);
      if (last?.phase !== phase) history.segments.push({ phase, start: last ? this.startOf(phase, lane, time) : lane.arrival, end: time });
      history.segments.at(-1).end = time;
      history.live = true;
      history.lane = lane;
    }
    for (const [seqId, history] of this.histories) {
      if (!history.live && history.segments.at(-1).end < time - KEPT_SECONDS) this.histories.delete(seqId);
    }
  }

  /** What a sequence did before it was first seen: it waited until it was scheduled, and then computed its prompt. */
  before(lane) {
    if (lane.scheduled === null) return [];
    const waited = { phase: "waiting", start: lane.arrival, end: lane.scheduled };
    return [waited, { phase: "prefill", start: lane.scheduled, end: lane.scheduled }];
  }

  /** Updates come now and then; where the steps or the lane know better when a phase began, they are asked. */
  startOf(phase, lane, time) {
    if (phase === "prefill" && !lane.numPreemptions) return Math.min(time, lane.scheduled ?? time);
    if (phase !== "decode") return time;
    // Each step since brought one token: count back to the one that brought the first.
    const steps = this.steps.filter((step) => step.end > lane.scheduled && step.end <= time);
    return steps.at(lane.numPrompt - lane.numKnown)?.end ?? time;
  }

  /** Sums over the steps of the last `seconds`. */
  recent(seconds) {
    const from = this.now() - seconds;
    const sums = { numSteps: 0, prefill: 0, sampled: 0, decode: 0, duration: 0, largest: 0 };
    for (let i = this.steps.length - 1; i >= 0 && this.steps[i].end > from; i--) {
      const step = this.steps[i];
      sums.numSteps += 1;
      sums.prefill += step.prefill;
      sums.decode += step.decode;
      sums.sampled += step.sampled;
      sums.duration += step.duration;
      sums.largest = Math.max(sums.largest, step.prefill + step.decode);
    }
    return sums;
  }
}

function changeTables(before, changes) {
  if (changes === null) return before;
  return changes.map(([start, firstKept, blocks], group) => ({
    firstKept,
    blocks: (before[group]?.blocks ?? []).slice(0, start).concat(blocks),
  }));
}

function decodeBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
