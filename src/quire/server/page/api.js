// Every request of the page: this server only, with the API key where one is needed.
import { byId } from "./dom.js";

const KEY = "quire-api-key";
let asking = null;

/** fetch with the key. A 401 asks for one and tries again; other failures throw an Error with the server's words. */
export async function request(path, options = {}) {
  for (;;) {
    const headers = new Headers(options.headers);
    const key = sessionStorage.getItem(KEY);
    if (key) headers.set("Authorization", `Bearer ${key}`);
    const response = await fetch(path, { ...options, headers });
    if (response.status !== 401) {
      if (!response.ok) throw new Error(await errorText(response));
      return response;
    }
    await response.body?.cancel();
    if (sessionStorage.getItem(KEY) === key) await askForKey(Boolean(key));
  }
}

async function errorText(response) {
  try {
    const body = await response.json();
    const text = body.error?.message ?? body.detail ?? body.message;
    if (typeof text === "string") return text;
  } catch {
    // No JSON: the status has to do.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

/** Resolves when a key was entered; rejects when the user would rather not. One dialog for all who wait. */
function askForKey(wasRefused) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = byId("key-dialog");
    byId("key-problem").textContent = wasRefused ? "The server did not accept that key." : "";
    byId("key").value = "";
    const cancel = () => dialog.close();
    const submit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, byId("key").value.trim());
      dialog.close("entered");
    };
    byId("key-cancel").addEventListener("click", cancel);
    byId("key-form").addEventListener("submit", submit);
    dialog.addEventListener(
      "close",
      () => {
        byId("key-cancel").removeEventListener("click", cancel);
        byId("key-form").removeEventListener("submit", submit);
        asking = null;
        if (dialog.returnValue === "entered") resolve();
        else reject(new Error("This server needs an API key."));
        dialog.returnValue = "";
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}

/** The events of a text/event-stream response: {event, data}. */
export async function* serverSentEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      const events = text.split("\n\n");
      text = events.pop();
      for (const lines of events) {
        const parsed = parseEvent(lines);
        if (parsed) yield parsed;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(lines) {
  let event = "message";
  const data = [];
  for (const line of lines.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return data.length ? { event, data: data.join("\n") } : null;
}
