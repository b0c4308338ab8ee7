// Keeping regions as they are now. The server tells by a stream how each looks, by its digest; those that differ are fetched.

import { morph } from "./morph.js";
import { showTimes } from "./times.js";

const POLL = 5000;
const LONGEST_PAUSE = 30000;
const POLLS = 12; // then a stream is tried again
const PATIENCE = 4000; // a stream says something at once; one that does not is held back by a proxy

export class Live {
  constructor(button) {
    this.button = button;
    this.paused = sessionStorage.getItem("rota-paused") === "1";
    this.source = null;
    this.failures = 0;
    this.polls = 0;
    this.timer = 0;
    this.turn = 0; // what was begun in an earlier one has ended with it
    button.hidden = false;
    button.addEventListener("click", () => this.pause(!this.paused));
    document.addEventListener("rota:refresh", () => this.refresh(null, true));
    document.addEventListener("visibilitychange", () => this.settle());
    addEventListener("pagehide", () => this.stop());
    addEventListener("pageshow", () => this.settle());
    this.settle();
  }

  pause(paused) {
    this.paused = paused;
    sessionStorage.setItem("rota-paused", paused ? "1" : "0");
    this.settle();
  }

  // Nobody looks at a page that is hidden, so it asks nothing.
  settle() {
    const wanted = !this.paused && !document.hidden;
    this.button.setAttribute("aria-pressed", String(this.paused));
    this.button.textContent = this.paused ? "▶ Resume" : "❚❚ Pause";
    if (wanted && !this.source && !this.timer) this.open();
    if (!wanted) this.stop();
  }

  stop() {
    this.turn += 1;
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    this.timer = 0;
  }

  after(milliseconds, what) {
    clearTimeout(this.timer);
    this.timer = setTimeout(what, milliseconds);
  }

  open() {
    this.timer = 0;
    if (!window.EventSource) return this.poll();
    const url = new URL(location.href);
    url.searchParams.set("_live", "1");
    url.hash = "";
    const source = (this.source = new EventSource(url));
    this.after(PATIENCE, () => {
      this.stop();
      this.poll();
    });
    source.onmessage = (event) => {
      this.failures = 0;
      clearTimeout(this.timer);
      this.timer = 0;
      document.documentElement.dataset.live = "stream";
      this.refresh(JSON.parse(event.data));
    };
    source.onerror = () => {
      // an end in order is followed by the next stream, without us; after a refusal there is none
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.source = null;
      this.failures += 1;
      const pause = Math.min(1000 * 2 ** this.failures, LONGEST_PAUSE);
      if (this.failures > 2) this.poll();
      else this.after(pause, () => this.open());
    };
  }

  // Where streams do not come through: a proxy may hold them back.
  async poll() {
    document.documentElement.dataset.live = "poll";
    this.polls = (this.polls + 1) % POLLS;
    const turn = this.turn;
    const next = () => (this.polls ? this.poll() : this.open());
    this.after(POLL, next);
    await this.refresh(null);
    if (turn === this.turn) this.after(POLL, next);
  }

  async refresh(digests, asked = false) {
    const changed = [...document.querySelectorAll("[data-region]")].filter(
      (region) => digests === null || (digests[region.dataset.region] && digests[region.dataset.region] !== region.dataset.digest),
    );
    await Promise.all(changed.map((region) => this.fetch(region, asked)));
  }

  async fetch(region, asked) {
    const url = new URL(location.href);
    url.searchParams.set("_fragment", region.dataset.region);
    url.hash = "";
    try {
      const answer = await fetch(url, { credentials: "same-origin" });
      if (!answer.ok) return;
      const html = await answer.text();
      const digest = answer.headers.get("x-rota-digest");
      if ((this.paused && !asked) || digest === region.dataset.digest) return;
      region.dataset.digest = digest;
      morph(region, html);
      showTimes(region);
      region.dispatchEvent(new CustomEvent("rota:drawn", { bubbles: true }));
    } catch {
      // the server is away: what is shown stays, and the next message brings the rest
    }
  }
}
