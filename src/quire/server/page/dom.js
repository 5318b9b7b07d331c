// Small helpers to build elements. Text always goes in as text: nothing on this page parses HTML.

export const byId = (id) => document.getElementById(id);

/** element("p", {class: "x", onclick: f}, "text", child): attributes by name, listeners by "on...". */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const number = (value, digits = 0) =>
  Number(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Three digits and a unit. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6)} µs`;
  if (seconds < 0.01) return `${number(seconds * 1e3, 1)} ms`;
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  return seconds < 10 ? `${number(seconds, 2)} s` : `${number(seconds, 1)} s`;
}

export const percent = (part, whole, digits = 0) => (whole > 0 ? `${number((100 * part) / whole, digits)} %` : "–");

/** The page's colours, as the canvases need them; asked for again when the theme changes. */
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}

/** Fit a canvas' pixels to the screen's; returns its context, scaled to CSS pixels. */
export function fitCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
