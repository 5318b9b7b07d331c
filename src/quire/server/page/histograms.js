// TTFT, ITL and E2EL as columns, from the server's own histograms.
import { duration, element, number } from "./dom.js";

const NAMES = { ttft: "Time to first token (TTFT)", itl: "Time between tokens (ITL)", e2el: "Whole request (E2EL)" };

export function renderHistograms(container, latency) {
  const key = JSON.stringify(latency);
  if (container.dataset.key === key) return;
  container.dataset.key = key;
  container.replaceChildren(...Object.entries(NAMES).map(([name, title]) => histogram(title, latency[name])));
}

function histogram(title, data) {
  const total = data?.counts.reduce((sum, count) => sum + count, 0) ?? 0;
  if (!total) return element("div", { class: "histogram" }, element("h3", {}, title), element("p", { class: "quantiles" }, "Nothing measured yet."));
  const edges = [...data.edges, Infinity];
  const used = data.counts.map((count, i) => (count ? i : -1)).filter((i) => i >= 0);
  const first = Math.max(0, used[0] - 1);
  const last = Math.min(edges.length - 1, used.at(-1) + 1);
  const most = Math.max(...data.counts);
  const columns = [];
  for (let i = first; i <= last; i++) {
    const column = element("i", { title: `${i ? duration(edges[i - 1]) : "0"} to ${duration(edges[i])}: ${number(data.counts[i])}` });
    column.style.height = `${data.counts[i] ? Math.max(3, (100 * data.counts[i]) / most) : 0}%`;
    columns.push(column);
  }
  const p = (q) => duration(quantile(data, edges, total * q));
  const text = `mean ${duration(data.total_seconds / total)} · p50 ≤ ${p(0.5)} · p95 ≤ ${p(0.95)} · n ${number(total)}`;
  return element(
    "div",
    { class: "histogram", role: "group", "aria-label": title },
    element("h3", {}, title),
    element("p", { class: "quantiles" }, text),
    element("div", { class: "columns", "aria-hidden": "true" }, ...columns),
    element("div", { class: "edges", "aria-hidden": "true" }, element("span", {}, first ? duration(edges[first - 1]) : "0"), element("span", {}, Number.isFinite(edges[last]) ? duration(edges[last]) : `over ${duration(edges[last - 1])}`)),
  );
}

/** The upper edge of the bucket that the quantile falls into: what the histogram can say for certain. */
function quantile(data, edges, rank) {
  let seen = 0;
  for (let i = 0; i < edges.length; i++) {
    seen += data.counts[i];
    if (seen >= rank) return Number.isFinite(edges[i]) ? edges[i] : Infinity;
  }
  return Infinity;
}
