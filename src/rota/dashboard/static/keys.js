// Keys: / to search, g and a letter to go somewhere, j and k through a list, Enter to open, r to read anew, p to pause, t for the
// theme, ? for help.

export function keys() {
  let going = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.timeStamp - going < 1500 && going) {
      going = 0;
      const link = document.querySelector(`nav a[data-go="${CSS.escape(event.key)}"]`);
      if (link) {
        event.preventDefault();
        link.click();
      }
      return;
    }
    const known = { "/": search, g: () => (going = event.timeStamp), j: () => choose(1), k: () => choose(-1), Enter: open, r: refresh, p: pause, t: theme, "?": help };
    if (known[event.key] && known[event.key](event) !== false) event.preventDefault();
  });
}

function search() {
  const field = document.querySelector("form.filters input:not([type=hidden]), form.filters select");
  if (!field) return false;
  field.focus();
  field.select?.();
}

function choose(step) {
  const rows = [...document.querySelectorAll("tbody tr:has(a[href])")];
  if (!rows.length) return false;
  const place = rows.findIndex((row) => row.classList.contains("chosen"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, place + step))];
  rows[place]?.classList.remove("chosen");
  next.classList.add("chosen");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a[href]").focus({ preventScroll: true });
}

function open(event) {
  if (event.target.closest("a, button, summary")) return false;
  const link = document.querySelector("tr.chosen a[href]");
  if (!link) return false;
  link.click();
}

function pause() {
  const button = document.getElementById("pause");
  if (button.hidden) return false;
  button.click();
}

function theme() {
  document.getElementById("theme").click();
}

// a page that does not change by itself is loaded anew
function refresh() {
  if (document.body.dataset.live) document.dispatchEvent(new CustomEvent("rota:refresh"));
  else location.reload();
}

function help() {
  document.getElementById("help").showModal();
}
