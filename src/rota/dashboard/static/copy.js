// Buttons that copy the code beside them. They are hidden until this is there to make them do it.

export function copies() {
  const show = (within) => within.querySelectorAll("button[data-copy]").forEach((button) => (button.hidden = false));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const done = await copy(button.parentElement.querySelector("pre"));
    button.textContent = done ? "Copied" : "Select it";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  document.addEventListener("rota:drawn", (event) => show(event.target));
  show(document);
}

async function copy(block) {
  try {
    await navigator.clipboard.writeText(block.textContent);
    return true;
  } catch {
    // over plain http there is no clipboard to write to: it is selected, for Ctrl-C, and copied where that still works
    getSelection().selectAllChildren(block);
    return document.execCommand("copy");
  }
}
