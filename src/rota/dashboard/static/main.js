// What a page does beyond being a page: it stays as things are, shows times as its reader wants them, and listens to keys.

import { Live } from "./live.js";
import { showTimes, zoneSwitch } from "./times.js";
import { keys } from "./keys.js";
import { copies } from "./copy.js";
import { selection } from "./select.js";

const root = document.documentElement;

function themeSwitch(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const show = () => {
    button.textContent = now() === "dark" ? "☾ Dark" : "☀ Light";
    button.setAttribute("aria-label", `${now() === "dark" ? "Dark" : "Light"} theme. Switch`);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    document.cookie = `rota_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
    show();
  });
  dark.addEventListener("change", show);
  show();
}

// A change that cannot be taken back is asked for twice.
function confirmations() {
  document.addEventListener("submit", (event) => {
    const question = event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
}

zoneSwitch(document.getElementById("zone"));
themeSwitch(document.getElementById("theme"));
if (document.body.dataset.live) new Live(document.getElementById("pause"));
// on a phone the menu is wider than the page
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
keys();
selection();
confirmations();
copies();
showTimes();
