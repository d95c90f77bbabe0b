// Sampling settings, system prompt and tools: the form, what is kept of it, and fields of requests.

const KEY = "qwen3-a8w8.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

/** The settings' form; empty fields leave the choice to the server. */
export class Settings {
  constructor(form) {
    this._form = form;
    this._error = form.querySelector("#tools-error");
    this._load();
    form.addEventListener("input", () => this._changed());
    form.addEventListener("submit", (event) => event.preventDefault());
    form.querySelector("#reset-settings").addEventListener("click", () => {
      form.reset();
      this._changed();
    });
    this._changed();
  }

  get systemPrompt() {
    return this._form.system.value.trim();
  }

  /** Fields of a request. Raises Error, saying which field is wrong and why. */
  requestFields() {
    const fields = { chat_template_kwargs: { enable_thinking: this._form.thinking.checked } };
    for (const name of NUMBERS) {
      const input = this._form[name];
      if (!input.validity.valid) throw new Error(`${name}: ${input.validationMessage}`);
      if (input.value !== "") fields[name] = input.valueAsNumber;
    }
    const tools = readTools(this._form.tools.value);
    if (tools.length) fields.tools = tools;
    return fields;
  }

  _changed() {
    try {
      readTools(this._form.tools.value);
      this._error.hidden = true;
      this._form.tools.removeAttribute("aria-invalid");
    } catch (error) {
      this._error.textContent = error.message;
      this._error.hidden = false;
      this._form.tools.setAttribute("aria-invalid", "true");
    }
    const values = { system: this._form.system.value, tools: this._form.tools.value, thinking: this._form.thinking.checked };
    for (const name of NUMBERS) values[name] = this._form[name].value;
    try {
      localStorage.setItem(KEY, JSON.stringify(values));
    } catch {
      // Full or switched off: the settings then last as long as the page.
    }
  }

  _load() {
    let values = {};
    try {
      values = JSON.parse(localStorage.getItem(KEY) ?? "{}") ?? {};
    } catch {
      // Not ours: the defaults.
    }
    for (const name of ["system", "tools", ...NUMBERS]) {
      if (typeof values[name] === "string") this._form[name].value = values[name];
    }
    if (typeof values.thinking === "boolean") this._form.thinking.checked = values.thinking;
  }
}

/** Tools of a JSON list; bare functions are wrapped as the API wants them. */
function readTools(text) {
  if (!text.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`Tools: ${error.message}`);
  }
  if (!Array.isArray(tools)) tools = [tools];
  return tools.map((tool, index) => {
    const wrapped = tool?.type ? tool : { type: "function", function: tool };
    if (wrapped.type === "function" && typeof wrapped.function?.name !== "string") {
      throw new Error(`Tools: entry ${index + 1} has no function name.`);
    }
    return wrapped;
  });
}
