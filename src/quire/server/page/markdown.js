// Markdown to DOM nodes. A model's text is never parsed as HTML, and its links open only on a click.
import { element } from "./dom.js";

const MAX_DEPTH = 8;

/** Bring `container` up to date with `text`, keeping the nodes of blocks that did not change. */
export function renderMarkdown(container, text, depth = 0) {
  const blocks = splitBlocks(text);
  const old = container.markdownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < old.length && blocks[same] === old[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  for (const block of blocks.slice(same)) container.append(renderBlock(block, depth));
  container.markdownBlocks = blocks;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const LIST_ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

/** The source text of each top-level block. Linear in the text. */
function splitBlocks(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const flush = () => {
    if (lines.some((line) => line.trim())) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (fence) {
      lines.push(line);
      if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).replaceAll(fence[0], "").trim()) {
        fence = null;
        flush();
      }
      continue;
    }
    const opening = FENCE.exec(line);
    if (opening && !isList(lines)) {
      flush();
      fence = opening[1];
      lines.push(line);
    } else if (!line.trim()) {
      // A list goes on over an empty line if what follows is indented or another item.
      if (isList(lines)) lines.push(line);
      else flush();
    } else if (HEADING.test(line) || RULE.test(line)) {
      flush();
      blocks.push(line);
    } else {
      if (isList(lines) && !lines.at(-1).trim() && !/^\s+/.test(line) && !LIST_ITEM.test(line)) flush();
      else if (!isList(lines) && LIST_ITEM.test(line)) flush();
      else if (line.startsWith(">") !== (lines[0]?.startsWith(">") ?? line.startsWith(">"))) flush();
      lines.push(line);
    }
  }
  if (fence) blocks.push(lines.join("\n"));
  else flush();
  return blocks;
}

const isList = (lines) => lines.length > 0 && LIST_ITEM.test(lines[0]);

function renderBlock(source, depth) {
  if (depth > MAX_DEPTH) return element("p", {}, source);
  const lines = source.split("\n");
  const fence = FENCE.exec(lines[0]);
  if (fence) return renderCode(lines, fence);
  const heading = HEADING.exec(lines[0]);
  if (heading) return element(`h${Math.min(heading[1].length + 2, 5)}`, {}, ...inline(heading[2]));
  if (RULE.test(lines[0]) && lines.length === 1) return element("hr");
  if (lines[0].startsWith(">")) {
    const quote = element("blockquote");
    renderMarkdown(quote, lines.map((line) => line.replace(/^>\s?/, "")).join("\n"), depth + 1);
    return quote;
  }
  if (LIST_ITEM.test(lines[0])) return renderList(lines, depth);
  if (lines.length > 1 && lines[0].includes("|") && TABLE_RULE.test(lines[1])) return renderTable(lines);
  return element("p", {}, ...inline(source));
}

function renderCode(lines, [, marker, language]) {
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(marker);
  const code = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", { type: "button", class: "quiet", onclick: () => copyText(copy, code) }, "Copy");
  return element(
    "div",
    { class: "code" },
    element("div", { class: "code-head" }, element("span", {}, language.trim() || "code"), copy),
    element("pre", { tabindex: "0" }, element("code", {}, code)),
  );
}

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

/** Items at the first one's indent; what is indented deeper belongs to the item before it. */
function renderList(lines, depth) {
  const [, indent, marker] = LIST_ITEM.exec(lines[0]);
  const ordered = /\d/.test(marker);
  const list = element(ordered ? "ol" : "ul", ordered && parseInt(marker, 10) !== 1 ? { start: parseInt(marker, 10) } : {});
  let item = null;
  const close = () => {
    if (!item) return;
    const node = element("li");
    if (item.rest.some((line) => line.trim())) {
      const body = [item.first, ...item.rest].join("\n");
      renderMarkdown(node, body, depth + 1);
      if (node.firstChild?.tagName === "P") node.firstChild.replaceWith(...node.firstChild.childNodes);
    } else node.append(...inline(item.first));
    list.append(node);
  };
  for (const line of lines) {
    const match = LIST_ITEM.exec(line);
    if (match && match[1].length <= indent.length + 1) {
      close();
      item = { first: match[3], rest: [], width: match[1].length + match[2].length + 1 };
    } else item.rest.push(line.replace(new RegExp(`^\\s{0,${item.width}}`), ""));
  }
  close();
  return list;
}

function renderTable(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = cells(lines[0]);
  const row = (tag, values) => element("tr", {}, ...head.map((_, i) => element(tag, {}, ...inline(values[i] ?? ""))));
  return element(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    element("table", {}, element("thead", {}, row("th", head)), element("tbody", {}, ...lines.slice(2).map((line) => row("td", cells(line))))),
  );
}

const SPANS = [
  { tag: "em", within: "strong", mark: "***" },
  { tag: "strong", mark: "**" },
  { tag: "strong", mark: "__" },
  { tag: "del", mark: "~~" },
  { tag: "em", mark: "*" },
  { tag: "em", mark: "_" },
];
const LINK = /!?\[([^\][]{0,400})\]\(\s*<?((?:https?:\/\/|mailto:)[^\s<>()"]*(?:\([^\s<>()"]*\)[^\s<>()"]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
const BARE_LINK = /https?:\/\/[^\s<>"'`)\]]+[^\s<>"'`)\].,;:!?]/y;
const SPECIAL = /[\\`*_~![\nh]/g;

/** Inline markup as a list of nodes and strings. `depth` bounds the nesting. */
function inline(text, depth = 0) {
  const nodes = [];
  let plain = "";
  let at = 0;
  const push = (node) => {
    if (plain) nodes.push(plain);
    plain = "";
    nodes.push(node);
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at >= text.length) break;
    const found = depth < 6 ? inlineAt(text, at, depth) : null;
    if (found) {
      push(found.node);
      at = found.end;
    } else if (text[at] === "\\" && /[\\`*_{}[\]()#+\-.!~|>]/.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

/** The markup that starts at `at`, or null. */
function inlineAt(text, at, depth) {
  const first = text[at];
  if (first === "\n") return / {2}$|\\$/.test(text.slice(Math.max(0, at - 2), at)) ? { node: element("br"), end: at + 1 } : null;
  if (first === "`") {
    const ticks = /^`+/.exec(text.slice(at, at + 8))[0];
    const end = text.indexOf(ticks, at + ticks.length);
    return end < 0 ? null : { node: element("code", {}, text.slice(at + ticks.length, end)), end: end + ticks.length };
  }
  if (first === "[" || first === "!") return linkAt(LINK, text, at, depth);
  if (first === "h") return linkAt(BARE_LINK, text, at, depth);
  for (const { tag, within, mark } of SPANS) {
    if (!text.startsWith(mark, at) || /\s/.test(text[at + mark.length] ?? " ")) continue;
    if (mark[0] === "_" && /\w/.test(text[at - 1] ?? "")) continue;
    const end = closing(text, mark, at + mark.length);
    if (end < 0) continue;
    const inner = inline(text.slice(at + mark.length, end), depth + 1);
    return { node: element(tag, {}, ...(within ? [element(within, {}, ...inner)] : inner)), end: end + mark.length };
  }
  return null;
}

/** Where a span ends: at the mark, after something that is no space, and not inside a longer run of the mark. */
function closing(text, mark, from) {
  for (let end = text.indexOf(mark, from); end >= 0; end = text.indexOf(mark, end + 1)) {
    if (end === from || /\s/.test(text[end - 1])) continue;
    if (mark.length === 1 && (text[end + 1] === mark || text[end - 1] === mark)) continue;
    if (mark[0] === "_" && /\w/.test(text[end + mark.length] ?? "")) continue;
    return end;
  }
  return -1;
}

function linkAt(pattern, text, at, depth) {
  pattern.lastIndex = at;
  const match = pattern.exec(text);
  if (!match) return null;
  const url = match[2] ?? match[0];
  const label = match[1] ? inline(match[1], depth + 3) : [url];
  const attributes = { href: url, target: "_blank", rel: "noopener noreferrer nofollow" };
  return { node: element("a", attributes, ...label), end: pattern.lastIndex };
}
