// Light, dark, or as the system has it. A plain script in the head: before anything is drawn.
"use strict";
{
  const KEY = "qwen3-a8w8.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const SIGNS = { auto: "\u25d0", light: "\u2600\ufe0e", dark: "\u263e\ufe0e" };
  let theme = "auto";
  try {
    theme = localStorage.getItem(KEY);
  } catch {
    // Switched off: as the system has it.
  }
  if (!(theme in NEXT)) theme = "auto";
  document.documentElement.dataset.theme = theme;

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      document.documentElement.dataset.theme = theme;
      button.textContent = SIGNS[theme];
      button.title = `Colours: ${theme === "auto" ? "as the system" : theme}`;
      button.setAttribute("aria-label", button.title);
    };
    button.addEventListener("click", () => {
      theme = NEXT[theme];
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // Lasts as long as the page.
      }
      show();
    });
    show();
  });
}
