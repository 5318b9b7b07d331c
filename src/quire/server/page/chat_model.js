// The chats of this tab: kept in the tab's session storage, answered in the background while another is looked at.
import { request, serverSentEvents } from "./api.js";

const KEY = "quire-chats";

export class Chats {
  /** `changed(chat)` is called whenever something of a chat did. */
  constructor(changed) {
    this.changed = changed;
    this.list = load();
    if (!this.list.length) this.list.push(emptyChat());
    this.current = this.list[0];
  }

  add() {
    const empty = this.list.find((chat) => !chat.messages.length);
    this.current = empty ?? emptyChat();
    if (!empty) this.list.unshift(this.current);
    this.save(this.current);
  }

  open(chat) {
    this.current = chat;
    this.changed(chat);
  }

  remove(chat) {
    chat.abort?.abort();
    this.list = this.list.filter((other) => other !== chat);
    if (!this.list.length) this.list.push(emptyChat());
    if (this.current === chat) this.current = this.list[0];
    this.save(this.current);
  }

  clear(chat) {
    chat.abort?.abort();
    chat.messages = [];
    chat.title = "New chat";
    this.save(chat);
  }

  /** Send a message and stream the answer; `settings` has the request's sampling fields and `system`. */
  async send(chat, text, settings) {
    if (!chat.messages.length) chat.title = text.slice(0, 60);
    chat.messages.push({ role: "user", content: text });
    await this.answer(chat, settings);
  }

  async regenerate(chat, settings) {
    while (chat.messages.at(-1)?.role === "assistant") chat.messages.pop();
    if (chat.messages.length) await this.answer(chat, settings);
  }

  async answer(chat, { system, ...sampling }) {
    const abort = (chat.abort = new AbortController());
    const messages = chat.messages.filter((message) => message.content).map(({ role, content }) => ({ role, content }));
    if (system) messages.unshift({ role: "system", content: system });
    const answer = { role: "assistant", content: "", reasoning: "", stats: {} };
    chat.messages.push(answer);
    this.changed(chat);
    const body = { model: await modelName(), messages, stream: true, stream_options: { include_usage: true }, ...sampling };
    try {
      await this.stream(chat, answer, body, abort.signal);
    } catch (error) {
      if (abort.signal.aborted) answer.stats.finish = "stopped by you";
      else answer.problem = error.message;
    } finally {
      if (chat.abort === abort) chat.abort = null;
      this.save(chat);
    }
  }

  async stream(chat, answer, body, signal) {
    const started = performance.now();
    const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
    const response = await request("/v1/chat/completions", options);
    const stats = answer.stats;
    let numPieces = 0;
    let ended = false;
    for await (const { data } of serverSentEvents(response)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message ?? "The server reported an error.");
      const choice = chunk.choices?.[0];
      const reasoning = choice?.delta?.reasoning ?? choice?.delta?.reasoning_content;
      if (choice?.delta?.content || reasoning) {
        const now = performance.now();
        if (!numPieces) stats.ttft = (now - started) / 1000;
        numPieces += 1;
        stats.decoding = (now - started) / 1000 - stats.ttft;
        stats.numOutput = numPieces;
        answer.content += choice.delta.content ?? "";
        answer.reasoning += reasoning ?? "";
      }
      if (choice?.finish_reason) stats.finish = choice.finish_reason;
      if (chunk.usage) {
        stats.numPrompt = chunk.usage.prompt_tokens;
        stats.numOutput = chunk.usage.completion_tokens;
        stats.numCached = chunk.usage.prompt_tokens_details?.cached_tokens;
      }
      this.changed(chat);
    }
    if (!ended && !stats.finish) throw new Error("The connection ended before the answer did.");
  }

  save(chat) {
    try {
      const plain = this.list.map(({ id, title, messages }) => ({ id, title, messages }));
      sessionStorage.setItem(KEY, JSON.stringify(plain.slice(0, 30)));
    } catch {
      // Storage is full or forbidden: the chats live as long as the page.
    }
    this.changed(chat);
  }
}

function emptyChat() {
  return { id: Math.random().toString(36).slice(2), title: "New chat", messages: [], abort: null };
}

function load() {
  try {
    const chats = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return chats.map((chat) => ({ ...chat, abort: null }));
  } catch {
    return [];
  }
}

let name = null;

/** The model this server serves. */
export async function modelName() {
  if (name === null) {
    const models = await (await request("/v1/models")).json();
    name = models.data[0].id;
  }
  return name;
}
