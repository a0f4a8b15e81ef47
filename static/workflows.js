// Keeps the pages live: lets times tick, and asks whether something changed. Everything works without it.
"use strict";
(() => {
  const html = document.documentElement;
  const SECOND = 1000;
  const MINUTE = 60 * SECOND;
  const SLOW_AFTER = 10 * MINUTE;
  const STOP_AFTER = 60 * MINUTE;
  const SLOWEST = 60 * SECOND;

  // Time zone: told to the server by a cookie, so that it writes the times. One that was chosen stays, and a page that
  // cannot be asked for once more is left as it is.
  const rememberZone = () => {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (!zone || zone === html.dataset.zone || !("zoneFollows" in html.dataset)) return;
    const held = () => new URLSearchParams((/(?:^|; )workflows_view=([^;]*)/.exec(document.cookie) || ["", ""])[1]);
    const view = held();
    if (view.get("browser") === zone) return;
    view.set("browser", zone);
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = "workflows_view=" + view + "; Path=" + document.body.dataset.root + "; Max-Age=31536000; SameSite=Lax" + secure;
    // Once, where the browser keeps cookies: the times on this page are still in the old zone.
    if (held().get("browser") === zone) location.reload();
  };

  // Ticking times, by the database's clock.
  const offset = Number(html.dataset.now) ? Number(html.dataset.now) - Date.now() : 0;
  const now = () => Date.now() + offset;

  const age = (millis) => {
    const s = Math.max(Math.round(millis / SECOND), 0);
    const pair = (large, unit, small, smallUnit) => large + " " + unit + (small ? " " + small + " " + smallUnit : "");
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 86400) return pair(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
    if (s < 8640000) return pair(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
    return Math.floor(s / 86400).toLocaleString("en") + " d";
  };

  const tick = () => {
    for (const time of document.querySelectorAll("time[data-tick]")) {
      const since = now() - Date.parse(time.dateTime);
      const form = time.dataset.tick;
      const words = form === "in" ? (since < 0 ? "in " + age(-since) : "now") : form === "ago" ? age(since) + " ago" : age(since);
      if (time.textContent !== words) time.textContent = words;
    }
  };

  // Polling. One region a page; it is asked for when nobody is busy in it.
  let lastInput = Date.now();
  let nextAt = 0;
  let failures = 0;
  let failedAt = null;
  let stopped = false;
  let asking = false;

  const region = () => document.querySelector("[data-live]");
  const note = () => document.querySelector("[data-live-note]");

  const plan = () => {
    const live = region();
    if (!live) return;
    let wait = Number(live.dataset.live) * SECOND;
    if (Date.now() - lastInput > SLOW_AFTER) wait = SLOWEST;
    if (failures) wait = Math.min(wait * 2 ** failures, SLOWEST);
    nextAt = Date.now() + wait * (0.9 + Math.random() * 0.2);
  };

  const busy = (live) => {
    if (document.hidden) return true;
    const active = document.activeElement;
    if (active && live.contains(active) && active.matches("input, select, textarea, summary, [aria-expanded=true]")) return true;
    if (live.querySelector("input:checked")) return true;
    const selection = getSelection();
    return Boolean(selection && !selection.isCollapsed && live.contains(selection.anchorNode));
  };

  // What the note says while all is well.
  let well = null;

  const say = (text, linkText) => {
    const place = note();
    if (!place) return;
    if (!well) well = [...place.childNodes];
    place.textContent = text + " ";
    if (linkText) {
      const link = document.createElement("a");
      link.href = location.href;
      link.textContent = linkText;
      place.append(link);
    }
  };

  const unsay = () => {
    if (well && note()) note().replaceChildren(...well);
    well = null;
  };

  const signedOut = () => {
    stopped = true;
    say("Signed out.", "Sign in again");
  };

  const look = () => {
    const live = region();
    if (!live || stopped || !window.htmx) return;
    if (Date.now() - lastInput > STOP_AFTER) {
      stopped = true;
      say("Paused.", "Resume");
      return;
    }
    if (failures && nextAt > Date.now()) {
      const left = Math.ceil((nextAt - Date.now()) / SECOND);
      say("Not updating since " + failedAt + "; trying again in " + left + " s.");
    }
    if (asking || Date.now() < nextAt || busy(live)) return;
    asking = true;
    plan();
    htmx.trigger(live, "fw:poll");
  };

  const clock = () => new Date().toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

  const answered = (event) => {
    const xhr = event.detail.xhr;
    if (!asking || !xhr) return;
    asking = false;
    if (stopped) return;
    if (xhr.status === 401 || xhr.status === 403) {
      signedOut();
      return;
    }
    if (xhr.status >= 200 && xhr.status < 300) {
      if (failures) unsay();
      failures = 0;
      failedAt = null;
    } else {
      failures += 1;
      failedAt = failedAt || clock();
    }
    plan();
  };

  // What changed, for those who hear the page: at most every 5 seconds.
  let before = null;
  let open = [];
  let changes = {};
  let announcing = null;

  const states = () => {
    const found = new Map();
    for (const row of document.querySelectorAll("[data-state][id]")) found.set(row.id, row.dataset.state);
    return found;
  };

  const announce = () => {
    announcing = null;
    const parts = Object.entries(changes).map(([state, count]) => count + (count === 1 ? " run " : " runs ") + state);
    changes = {};
    document.getElementById("fw-status").textContent = parts.join(", ");
  };

  const swapping = (event) => {
    const { elt, xhr, shouldSwap } = event.detail;
    if (!shouldSwap) return;
    // An answer without our part is another page: the app leads to its login.
    if (elt.id && !xhr.responseText.includes('id="' + elt.id + '"')) {
      event.detail.shouldSwap = false;
      signedOut();
      return;
    }
    before = states();
    open = [...document.querySelectorAll("details[open][id]")].map((details) => details.id);
  };

  const swapped = () => {
    for (const id of open) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    tick();
    dress();
    if (!before) return;
    for (const [id, state] of states()) {
      if (before.has(id) && before.get(id) !== state) changes[state] = (changes[state] || 0) + 1;
    }
    before = null;
    if (Object.keys(changes).length && !announcing) announcing = setTimeout(announce, 5 * SECOND);
  };

  // Small comforts.
  const dress = () => {
    for (const element of document.querySelectorAll(".fw-js")) element.classList.remove("fw-js");
  };

  const copy = async (button) => {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      const field = document.createElement("textarea");
      field.value = button.dataset.copy;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2 * SECOND);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    for (const menu of document.querySelectorAll(".fw-menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // Keys. Escape closes a menu; the others only where the visitor switched them on, and none of them acts on a run.
  let going = false;

  const rows = () => [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a[href]"));
  const here = () => rows().find((row) => row.contains(document.activeElement));

  const step = (by) => {
    const all = rows();
    const at = all.indexOf(here());
    const next = all[at < 0 ? 0 : Math.min(Math.max(at + by, 0), all.length - 1)];
    if (next) next.querySelector("a[href]").focus();
  };

  const press = (element) => { if (element) element.click(); };

  const shortcut = (key) => {
    if (going) {
      going = false;
      press(document.querySelector('.fw-nav [data-go="' + CSS.escape(key) + '"]'));
      return true;
    }
    const found = {
      "/": () => { const field = document.querySelector("main input[type=search], .fw-filter input:not([type=hidden])"); if (field) field.focus(); },
      j: () => step(1),
      k: () => step(-1),
      o: () => press(here()?.querySelector("a[href]")),
      x: () => press(here()?.querySelector("input[type=checkbox]")),
      g: () => { going = true; setTimeout(() => { going = false; }, 2 * SECOND); },
      "?": () => press(document.querySelector("[data-keys-help]")),
    }[key];
    if (found) found();
    return Boolean(found);
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const menu = document.activeElement.closest(".fw-menu[open]");
    if (event.key === "Escape" && menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
    if (!("keys" in html.dataset) || event.target.closest("input:not([type=checkbox]), select, textarea, [contenteditable]")) return;
    if (shortcut(event.key)) event.preventDefault();
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-submit-on-change]");
    if (form && event.target.matches("select")) form.requestSubmit();
  });
  // Empty fields would make long addresses of nothing.
  document.addEventListener("formdata", (event) => {
    if (!event.target.matches("form[data-submit-on-change]")) return;
    for (const [name, value] of [...event.formData]) if (!value) event.formData.delete(name);
  });
  for (const name of ["pointerdown", "keydown", "scroll"]) {
    addEventListener(name, () => { lastInput = Date.now(); }, { passive: true, capture: true });
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { tick(); look(); } });
  document.addEventListener("htmx:before-swap", swapping);
  document.addEventListener("htmx:after-settle", swapped);
  document.addEventListener("htmx:after-request", answered);

  rememberZone();
  document.getElementById("fw-done")?.focus();
  document.querySelector(".fw-nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  dress();
  tick();
  plan();
  setInterval(() => { tick(); look(); }, SECOND);
})();
