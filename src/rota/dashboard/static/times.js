// Points in time, in UTC or in the zone of whoever looks; and how long ago that is, for who points at one.

const root = document.documentElement;

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
  const local = root.dataset.zone === "local";
  for (const each of within.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    const text = written(at, local);
    if (each.textContent !== text) each.textContent = text;
    each.title = ago(at);
  }
  for (const each of within.querySelectorAll("svg text[data-time]")) {
    const at = new Date(each.dataset.time);
    const whole = written(at, local);
    const span = Number(each.dataset.span);
    each.textContent = span <= 600 ? whole.slice(11, 19) : span <= 172800 ? whole.slice(11, 16) : whole.slice(5, 10);
  }
}

export function zoneSwitch(button) {
  const show = () => {
    button.textContent = root.dataset.zone === "local" ? "Local time" : "UTC";
    button.setAttribute("aria-label", `Times are in ${root.dataset.zone === "local" ? "local time" : "UTC"}. Switch`);
    showTimes();
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.zone = root.dataset.zone === "local" ? "utc" : "local";
    document.cookie = `rota_zone=${root.dataset.zone}; path=/; max-age=31536000; samesite=lax`;
    show();
  });
  show();
}
