// Points in time, as whoever looks wants them: how long ago, in UTC, or in their own zone; and the other way for who points at one.

const root = document.documentElement;
const WAYS = ["ago", "utc", "local"];
const NAMES = { ago: "Time ago", utc: "UTC", local: "Local time" };
const WORDS = { ago: "as time ago", utc: "in UTC", local: "in local time" };

const two = (number) => String(number).padStart(2, "0");

function written(at, local) {
  const part = (name) => at[`get${local ? "" : "UTC"}${name}`]();
  const day = `${part("FullYear")}-${two(part("Month") + 1)}-${two(part("Date"))}`;
  const time = `${two(part("Hours"))}:${two(part("Minutes"))}:${two(part("Seconds"))}`;
  if (!local) return `${day} ${time} UTC`;
  const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(at).find((each) => each.type === "timeZoneName");
  return `${day} ${time} ${zone ? zone.value : "local"}`;
}

function ago(at) {
  const seconds = (Date.now() - at) / 1000;
  const size = Math.abs(seconds);
  const words = size < 100 ? `${Math.round(size)} s` : size < 6000 ? `${Math.round(size / 60)} min` : size < 172800 ? `${Math.round(size / 3600)} h` : `${Math.round(size / 86400)} days`;
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
}

export function showTimes(within = document) {
  const way = root.dataset.zone;
  for (const each of within.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    const whole = written(at, way === "local");
    // among facts and in lists there is room for both
    const text = way !== "ago" ? whole : each.closest("dd, ol") ? `${whole}, ${ago(at)}` : ago(at);
    if (each.textContent !== text) each.textContent = text;
    each.title = way === "ago" ? whole : ago(at);
  }
  for (const each of within.querySelectorAll("svg text[data-time]")) {
    const at = new Date(each.dataset.time);
    const whole = written(at, way === "local");
    const span = Number(each.dataset.span);
    each.textContent = span <= 600 ? whole.slice(11, 19) : span <= 172800 ? whole.slice(11, 16) : whole.slice(5, 10);
  }
}

export function zoneSwitch(button) {
  const show = () => {
    button.textContent = NAMES[root.dataset.zone];
    button.setAttribute("aria-label", `${NAMES[root.dataset.zone]}. Times are ${WORDS[root.dataset.zone]}. Switch`);
    showTimes();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.zone = WAYS[(WAYS.indexOf(root.dataset.zone) + 1) % WAYS.length];
    document.cookie = `rota_zone=${root.dataset.zone}; path=/; max-age=31536000; samesite=lax`;
    show();
  });
  // what is ten seconds ago is soon a minute ago, also while nothing changes
  setInterval(() => document.hidden || showTimes(), 5000);
  show();
}
