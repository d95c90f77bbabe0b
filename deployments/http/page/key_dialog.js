// Asks for the API key, and keeps the settings' field for it in step.

import { apiKey } from "./api.js";

export class KeyDialog {
  constructor(dialog, field) {
    this._dialog = dialog;
    this._field = field;
    this._input = dialog.querySelector("input");
    this._error = dialog.querySelector(".field-error");
    this._asked = null;
    field.value = apiKey.get();
    field.addEventListener("change", () => apiKey.set(field.value.trim()));
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this._input.value.trim()) return;
      apiKey.set(this._input.value.trim());
      field.value = apiKey.get();
      dialog.close("used");
    });
    dialog.querySelector("#key-cancel").addEventListener("click", () => dialog.close(""));
  }

  /** Whether the user has given a key; `why` says what was wrong with the last one, or is "". */
  ask(why) {
    this._asked ??= new Promise((resolve) => {
      this._input.value = "";
      this._error.textContent = why;
      this._error.hidden = !why;
      this._dialog.returnValue = "";
      this._dialog.addEventListener(
        "close",
        () => {
          this._asked = null;
          resolve(this._dialog.returnValue === "used");
        },
        { once: true },
      );
      this._dialog.showModal();
      this._input.focus();
    });
    return this._asked;
  }
}
