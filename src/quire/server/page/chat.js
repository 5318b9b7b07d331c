// The chat: messages, composer, settings.
import { Chats, modelName } from "./chat_model.js";
import { byId, duration, element, number } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

const SETTINGS = "quire-settings";
const SAMPLES = ["Explain how a key-value cache speeds up a language model.", "Write a haiku about patience.", "List three primes and say why they are prime."];

export class ChatView {
  constructor() {
    this.chats = new Chats((chat) => this.changed(chat));
    this.frame = 0;
    this.nodes = new WeakMap();
    this.shown = null;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("prompt").addEventListener("input", growPrompt);
    byId("chat-view").addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.chats.clear(this.chats.current));
    byId("regenerate").addEventListener("click", () => this.chats.regenerate(this.chats.current, readSettings()));
    byId("new-chat").addEventListener("click", () => {
      this.chats.add();
      byId("prompt").focus();
    });
    byId("side-toggle").addEventListener("click", () => {
      const open = byId("side").classList.toggle("open");
      byId("side-toggle").setAttribute("aria-expanded", open);
    });
    restoreSettings();
    byId("settings-form").addEventListener("input", saveSettings);
    byId("settings-form").addEventListener("submit", (event) => event.preventDefault());
    this.render();
  }

  show() {
    if (matchMedia("(min-width: 761px)").matches) byId("prompt").focus({ preventScroll: true });
    modelName().catch(() => {});
  }

  async send(text = byId("prompt").value.trim()) {
    const chat = this.chats.current;
    if (!text || chat.abort || !byId("settings-form").reportValidity()) return;
    byId("prompt").value = "";
    growPrompt();
    byId("answer-news").textContent = "The answer is on its way.";
    this.follow = true;
    await this.chats.send(chat, text, readSettings());
    const answer = chat.messages.at(-1);
    if (chat === this.chats.current && answer) byId("answer-news").textContent = answer.problem ?? `Answer: ${answer.content}`;
  }

  stop() {
    this.chats.current.abort?.abort();
  }

  /** Draw at most once a frame, however fast the tokens come. */
  changed() {
    if (!this.frame) {
      // A hidden tab gets no frames; it must still be right when it is shown again.
      this.frame = document.hidden ? setTimeout(() => this.render(), 250) : requestAnimationFrame(() => this.render());
    }
  }

  render() {
    this.frame = 0;
    const chat = this.chats.current;
    const running = Boolean(chat.abort);
    byId("send").hidden = running;
    byId("stop").hidden = !running;
    byId("regenerate").disabled = running || !chat.messages.length;
    byId("clear").disabled = !chat.messages.length;
    this.renderList();
    const box = byId("messages");
    const follow = this.follow || box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    this.follow = false;
    this.renderMessages(box, chat);
    if (follow) box.scrollTop = box.scrollHeight;
  }

  renderList() {
    const key = this.chats.list.map((chat) => `${chat.id}${chat.title}${Boolean(chat.abort)}${chat === this.chats.current}`).join();
    if (key === this.listKey) return;
    this.listKey = key;
    byId("chat-list").replaceChildren(
      ...this.chats.list.map((chat) => {
        const current = chat === this.chats.current;
        const open = element(
          "button",
          { type: "button", class: `open${chat.abort ? " running" : ""}`, "aria-current": current ? "true" : null, onclick: () => this.chats.open(chat) },
          chat.title,
        );
        const label = `Delete ${chat.title}`;
        const remove = element("button", { type: "button", class: "remove", "aria-label": label, onclick: () => this.chats.remove(chat) }, "×");
        return element("li", { class: current ? "current" : "" }, open, remove);
      }),
    );
  }

  renderMessages(box, chat) {
    if (!chat.messages.length) {
      this.shown = null;
      box.replaceChildren(this.welcome());
      return;
    }
    const nodes = chat.messages.map((message) => this.messageNode(message, chat));
    const same = this.shown === chat && nodes.length === box.childNodes.length && nodes.every((node, i) => node === box.childNodes[i]);
    if (!same) box.replaceChildren(...nodes);
    this.shown = chat;
  }

  welcome() {
    const samples = SAMPLES.map((text) => element("button", { type: "button", onclick: () => this.send(text) }, text));
    const heading = element("h1", {}, "What shall the model think about?");
    const text = element("p", {}, "Watch it think in the Engine view: how its memory fills, and what each step computes.");
    return element("div", { class: "welcome" }, heading, text, element("div", { class: "samples" }, ...samples));
  }

  messageNode(message, chat) {
    let node = this.nodes.get(message);
    if (!node) {
      node = message.role === "user" ? userNode(message) : answerNode();
      this.nodes.set(message, node);
    }
    if (message.role === "assistant") updateAnswer(node, message, Boolean(chat.abort) && message === chat.messages.at(-1));
    return node;
  }
}

function userNode(message) {
  return element("div", { class: "message user" }, element("div", { class: "body" }, element("span", { class: "sr-only" }, "You: "), message.content));
}

function answerNode() {
  const reasoning = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), element("div", { class: "markdown" }));
  const body = element("div", { class: "body markdown" });
  const stats = element("p", { class: "stats" });
  return element("article", { class: "message assistant", "aria-label": "Answer" }, reasoning, body, element("p", { class: "problem", hidden: true }), stats);
}

function updateAnswer(node, message, running) {
  const [reasoning, body, problem, stats] = node.children;
  reasoning.hidden = !message.reasoning;
  if (message.reasoning) renderMarkdown(reasoning.lastChild, message.reasoning);
  renderMarkdown(body, message.content);
  body.classList.toggle("caret", running && !message.content);
  problem.hidden = !message.problem;
  problem.textContent = message.problem ?? "";
  stats.replaceChildren(...statTexts(message.stats, running).map((text) => element("span", {}, text)));
}

function statTexts(stats, running) {
  if (stats.ttft === undefined) return [];
  const texts = [`TTFT ${duration(stats.ttft)}`];
  if (stats.numOutput > 1 && stats.decoding > 0) texts.push(`${number((stats.numOutput - 1) / stats.decoding, 1)} tok/s`);
  if (stats.numPrompt !== undefined) texts.push(`${number(stats.numPrompt)} prompt tokens${stats.numCached ? ` (${number(stats.numCached)} cached)` : ""}`);
  texts.push(`${number(stats.numOutput)} output tokens`);
  if (!running && stats.finish && stats.finish !== "stop") texts.push(stats.finish === "length" ? "cut at max tokens" : stats.finish);
  return texts;
}

function growPrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

const FIELDS = ["temperature", "top_p", "max_tokens", "seed"];

function readSettings() {
  const settings = { system: byId("system").value.trim() };
  for (const name of FIELDS) if (byId(name).value !== "") settings[name] = Number(byId(name).value);
  return settings;
}

function saveSettings() {
  const values = Object.fromEntries(["system", ...FIELDS].map((name) => [name, byId(name).value]));
  sessionStorage.setItem(SETTINGS, JSON.stringify(values));
}

function restoreSettings() {
  try {
    const values = JSON.parse(sessionStorage.getItem(SETTINGS) ?? "{}");
    for (const name of ["system", ...FIELDS]) if (values[name] !== undefined) byId(name).value = values[name];
  } catch {
    // The defaults are as good.
  }
}
