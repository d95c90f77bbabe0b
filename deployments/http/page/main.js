// Puts the page together: conversation, settings, engine view, key, shortcuts.

import { apiKey, getJson } from "./api.js";
import { Chat } from "./chat.js";
import { Conversation } from "./conversation.js";
import { count, setText } from "./dom.js";
import { EngineView } from "./engine.js";
import { KeyDialog } from "./key_dialog.js";
import { Settings } from "./settings.js";

const PANELS = ["settings", "engine"];
const OPEN_PANEL = "qwen3-a8w8.panel";
const byId = (id) => document.getElementById(id);

const keyDialog = new KeyDialog(byId("key-dialog"), byId("api-key"));
const settings = new Settings(byId("settings-form"));
const elements = Object.fromEntries(
  ["messages", "prompt", "send", "stop", "notice", "announce"].map((id) => [id, byId(id)]),
);
const chat = new Chat(new Conversation(), settings, { ...elements, form: byId("composer") }, async (why) => {
  const hasKey = await keyDialog.ask(why);
  if (hasKey) showModel();
  return hasKey;
});
const engine = new EngineView(byId("engine"));

byId("clear").addEventListener("click", () => chat.clear());
for (const id of PANELS) byId(`toggle-${id}`).addEventListener("click", () => openPanel(byId(id).hidden ? id : null));
for (const close of document.querySelectorAll("[data-closes]")) {
  close.addEventListener("click", () => {
    openPanel(null);
    byId(`toggle-${close.dataset.closes}`).focus();
  });
}
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || byId("key-dialog").open) return;
  if (chat.isBusy) chat.stop();
  else if (PANELS.some((id) => !byId(id).hidden)) openPanel(null);
});

/** Shows one of the panels, or none; the browser remembers the engine's. */
function openPanel(open) {
  for (const id of PANELS) {
    byId(id).hidden = id !== open;
    byId(`toggle-${id}`).setAttribute("aria-expanded", String(id === open));
  }
  document.body.classList.toggle("has-panel", open !== null);
  try {
    localStorage.setItem(OPEN_PANEL, open ?? "");
  } catch {
    // Lasts as long as the page.
  }
  engine.setShown(open === "engine");
  if (open === "settings") byId("system").focus();
}

async function showModel() {
  try {
    const card = (await getJson("v1/models")).data[0];
    chat.model = card.id;
    setText(byId("model-name"), card.id);
    setText(byId("model-details"), card.max_model_len ? `${count(card.max_model_len)} tokens` : "");
    document.title = card.id;
  } catch (error) {
    if (error.status === 401) {
      if (await keyDialog.ask(apiKey.get() ? error.message : "")) showModel();
      return;
    }
    setText(byId("model-details"), error.message);
  }
}

let remembered = "";
try {
  remembered = localStorage.getItem(OPEN_PANEL);
} catch {
  // Switched off.
}
if (remembered === "engine" && matchMedia("(min-width: 60rem)").matches) openPanel("engine");
if (!matchMedia("(pointer: coarse)").matches) byId("prompt").focus();
showModel();
