// The script of the dashboard: pause, lost connection, times in the reader's zone, copy, keys.
(() => {
  "use strict";
  const content = document.getElementById("content");
  const byId = (id) => document.getElementById(id);

  // Times: the server writes them in UTC, and how long ago they were.
  const STEPS = [[86400, "d"], [3600, "h"], [60, "min"]];
  const rough = (seconds) => {
    for (const [size, unit] of STEPS) if (seconds >= 1.5 * size) return `${Math.round(seconds / size)} ${unit}`;
    return seconds >= 10 ? `${Math.round(seconds)} s` : `${Math.max(seconds, 0).toFixed(1)} s`;
  };
  const pad = (number, digits = 2) => String(number).padStart(digits, "0");
  const day = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  const time = (at) => `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  const zone = () => Intl.DateTimeFormat(undefined, { timeZoneName: "short" }).formatToParts(new Date())
    .find((part) => part.type === "timeZoneName")?.value ?? "";
  const showTimes = (within) => {
    const now = new Date();
    for (const element of within.querySelectorAll("time[datetime][data-kind]")) {
      const at = new Date(element.dateTime);
      const exact = `${day(at)} ${time(at)} ${zone()}`;
      if (element.title !== exact) element.title = exact;
      const seconds = (at - now) / 1000;
      let words;
      const { kind } = element.dataset;
      if (kind !== "ago") {
        const minute = time(at).slice(0, 5);
        words = day(at) !== day(now) ? `${day(at)} ${minute}` : kind === "minute" ? minute : time(at);
      } else words = seconds > 0 ? `in ${rough(seconds)}` : `${rough(-seconds)} ago`;
      if (element.textContent !== words) element.textContent = words;
    }
  };

  // Live: the server says that something changed, and the content is fetched again; a paused or hidden page waits.
  const RETRY = 2000, LONGEST_RETRY = 30000;
  let isPaused = false;
  let missed = false;
  let shownAt = new Date();
  const keepsStill = () => isPaused || document.hidden || document.querySelector(":popover-open");
  const catchUp = () => {
    if (missed && !keepsStill()) refresh();
  };
  const showLive = (word, kind) => {
    const shown = byId("live-word");
    shown.textContent = word;
    shown.className = `status ${kind}`;
  };
  const pause = (on) => {
    isPaused = on;
    byId("paused").hidden = !on;
    byId("live").setAttribute("aria-pressed", String(on));
    showLive(on ? "paused" : "live", on ? "warn" : "good");
    catchUp();
  };
  let losing = 0;
  const lose = () => { losing ||= setTimeout(showLost, 2000); }; // a connection that is back within two seconds was not lost
  const recover = () => {
    clearTimeout(losing);
    losing = 0;
    if (!byId("lost").hidden) {
      byId("lost").hidden = true;
      if (!isPaused) showLive("live", "good");
    }
  };
  const showLost = () => {
    byId("lost-at").textContent = time(shownAt);
    byId("lost").hidden = false;
    if (!isPaused) showLive("offline", "bad");
  };

  const showNeeds = (number) => {
    if (number === null) return; // the answer of a proxy, or of a page that counts none
    document.title = document.title.replace(/^(\(\d+\) )?/, number === "0" ? "" : `(${number}) `);
    for (const shown of document.querySelectorAll("[data-needs-you]")) {
      if (shown.textContent !== number) shown.textContent = number;
      shown.closest(".badge").hidden = number === "0";
    }
  };

  let request = null;
  const refresh = async () => { // a newer request replaces one that is not answered yet
    missed = keepsStill();
    if (missed) return;
    request?.abort();
    const own = request = new AbortController();
    try {
      const response = await fetch(content.dataset.url || location.href, { headers: { "X-Part": "content" }, signal: own.signal });
      if ([401, 403].includes(response.status)) return location.reload();
      if (!response.ok) return lose();
      const html = await response.text();
      if (own.signal.aborted) return;
      missed = keepsStill(); // a dialog may have been opened since
      if (missed) return;
      mergeHtml(content, html);
      showNeeds(response.headers.get("X-Needs-You"));
      shownAt = new Date();
      recover();
      showTimes(content);
    } catch (error) {
      if (error.name !== "AbortError") lose();
    } finally {
      if (request === own) request = null;
    }
  };

  let retry = RETRY;
  const connect = () => {
    const stream = new EventSource(content.dataset.live);
    stream.addEventListener("changed", refresh);
    stream.addEventListener("open", () => {
      retry = RETRY;
      if (!losing) return;
      if (isPaused) recover();
      refresh(); // what is shown may be old
    });
    stream.addEventListener("error", () => {
      lose();
      if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
      setTimeout(connect, retry);
      retry = Math.min(2 * retry, LONGEST_RETRY);
      refresh(); // finds out whether the session has ended
    });
  };

  const poll = async () => { // in place of a stream
    await refresh();
    setTimeout(poll, 1000 * content.dataset.poll);
  };

  if (content) {
    if (content.dataset.live) content.dataset.poll ? setTimeout(poll, 1000 * content.dataset.poll) : connect();
    document.addEventListener("visibilitychange", catchUp);
    document.addEventListener("toggle", catchUp, true); // a dialog was closed
    byId("live").hidden = !content.dataset.live; // a form, or an error, stays as it is
    byId("live").addEventListener("click", () => pause(!isPaused));
    setInterval(() => { if (!document.hidden && !isPaused) showTimes(document); }, 5000);
  }
  showTimes(document);

  // Light and dark.
  const isDark = () => (document.documentElement.dataset.theme ??
    (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const theme = byId("theme");
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  if (theme) {
    nameTheme();
    theme.addEventListener("click", () => {
      const chosen = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = chosen;
      try { localStorage.setItem("taskqueue-theme", chosen); } catch { /* it holds for this page */ }
      nameTheme();
    });
  }

  // The menu of a narrow page is closed until it is asked for.
  const menu = byId("menu");
  if (menu && matchMedia("(max-width: 639px)").matches) menu.open = false;

  document.addEventListener("click", async (event) => {
    const target = event.target instanceof Element ? event.target : null;
    const copy = target?.closest("[data-copy], [data-copy-of]");
    if (!copy) return;
    const text = copy.dataset.copy ?? byId(copy.dataset.copyOf).textContent;
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "copied";
    } catch { // not over plain HTTP: the text is marked, to be copied by hand
      if (copy.dataset.copyOf) getSelection().selectAllChildren(byId(copy.dataset.copyOf));
      else copy.textContent = text;
    }
  });

  // Keys: / to the filter, p pauses, g and a letter goes to a page.
  const PAGES = { o: "Overview", j: "Jobs", q: "Queues", c: "Classes", w: "Workflows", s: "Schedules", n: "Nodes", f: "Failures", a: "Audit", i: "API" };
  let afterG = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !content) return;
    if (Date.now() - afterG < 1000 && PAGES[event.key]) {
      const links = [...document.querySelectorAll(".links a")];
      links.find((link) => link.textContent.trim() === PAGES[event.key])?.click();
    } else if (event.key === "/") {
      const filter = document.querySelector("[data-filter]");
      if (filter) {
        event.preventDefault();
        filter.focus();
      }
    } else if (event.key === "p") pause(!isPaused);
    afterG = event.key === "g" ? Date.now() : 0;
  });
})();
