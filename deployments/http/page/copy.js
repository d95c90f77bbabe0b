// Copying text, also where the page isn't in a secure context and the clipboard API is missing.

/** A button that copies what `read` gives when it is pressed. */
export function copyButton(read, label = "Copy") {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small copy";
  button.textContent = label;
  button.addEventListener("click", async () => {
    button.textContent = (await copy(read())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus?.();
  return isCopied;
}
