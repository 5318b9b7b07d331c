// The frame: which view is shown, the theme, and whether the server is ready.
import { modelName } from "./chat_model.js";
import { ChatView } from "./chat.js";
import { byId } from "./dom.js";
import { EngineView } from "./engine.js";

const THEMES = { auto: "System", light: "Light", dark: "Dark" };
const chat = new ChatView();
const engine = new EngineView();

function route() {
  const wide = matchMedia("(min-width: 1180px)").matches;
  let view = location.hash.slice(1);
  if (view === "main") return;
  if (!["chat", "engine", "both"].includes(view)) view = "chat";
  if (view === "both" && !wide) view = "engine";
  byId("main").dataset.view = view;
  byId("chat-view").hidden = view === "engine";
  byId("engine-view").hidden = view === "chat";
  for (const name of ["chat", "engine", "both"]) {
    if (name === view) byId(`nav-${name}`).setAttribute("aria-current", "page");
    else byId(`nav-${name}`).removeAttribute("aria-current");
  }
  document.title = view === "chat" ? "quire" : "quire: engine";
  engine.setShown(view !== "chat");
  if (view !== "engine") chat.show();
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme-name").textContent = THEMES[theme];
  byId("theme").setAttribute("aria-label", `Theme: ${THEMES[theme]}`);
  byId("theme").dataset.theme = theme;
  localStorage.setItem("quire-theme", theme);
  engine.recolour();
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(byId("theme").dataset.theme) + 1) % names.length]);
}

/** Until the model is loaded, say how far it is. */
async function watchReadiness() {
  const label = byId("model");
  for (;;) {
    let text = "The server does not answer.";
    try {
      const response = await fetch("/health/ready");
      if (response.ok) {
        label.classList.remove("bad");
        label.textContent = await modelName();
        return;
      }
      const body = await response.json();
      text = body.reason ?? `The engine is ${body.engine}.`;
    } catch {
      label.classList.add("bad");
    }
    label.textContent = text;
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

byId("theme").addEventListener("click", nextTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => engine.recolour());
document.querySelector(".skip-link").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
addEventListener("hashchange", route);
matchMedia("(min-width: 1180px)").addEventListener("change", route);
setTheme(localStorage.getItem("quire-theme") in THEMES ? localStorage.getItem("quire-theme") : "auto");
route();
watchReadiness();
