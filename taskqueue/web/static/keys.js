// Selects rows of a list, walks through them by keys, and finds pages, jobs and actions in a palette (Ctrl+K).
(() => {
  "use strict";
  const { root } = document.body.dataset;
  const made = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };

  // Rows: j and k move, Enter opens, x selects; a click with Shift selects all rows from the last one on.
  const links = () => [...document.querySelectorAll("#content .rows a.row")];
  const boxes = () => [...document.querySelectorAll("#content .pick input")];
  let last = null;
  const count = () => {
    const shown = document.getElementById("selected");
    if (!shown) return;
    const number = boxes().filter((box) => box.checked).length;
    const words = number === 1 ? "1 job selected" : `${number} jobs selected`;
    if (number && shown.textContent !== words) shown.textContent = words;
  };
  const move = (step) => {
    const rows = links();
    const row = document.activeElement?.closest("tr");
    const here = rows.findIndex((link) => row?.contains(link));
    const next = rows[here < 0 ? (step > 0 ? 0 : rows.length - 1) : here + step];
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  };
  document.addEventListener("click", (event) => {
    const box = event.target instanceof Element ? event.target.closest(".pick input") : null;
    if (!box) return;
    const all = boxes();
    const [from, to] = [all.indexOf(last), all.indexOf(box)];
    if (event.shiftKey && from >= 0) {
      for (const other of all.slice(Math.min(from, to), Math.max(from, to) + 1)) other.checked = box.checked;
    }
    last = box;
    count();
  });
  const select = () => document.activeElement?.closest("tr")?.querySelector(".pick input")?.click();
  const clear = () => {
    for (const box of boxes()) box.checked = false;
  };
  const content = document.getElementById("content");
  if (content) new MutationObserver(count).observe(content, { childList: true, subtree: true }); // a page that is updated

  // Dialogs: Escape closes them, and the focus returns to where it was.
  const opened = (label, ...children) => {
    const dialog = made("dialog", { className: "sheet" }, ...children);
    dialog.setAttribute("aria-label", label);
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    document.body.append(dialog);
    dialog.showModal();
    return dialog;
  };
  const KEYS = [
    ["Ctrl+K", "find a page, a class, a queue, a job or an action"], ["/", "go to the filter"],
    ["g and a letter", "go to a page: o, j, q, c, w, s, n, f, a, i"], ["j, k", "next row, previous row"],
    ["Enter", "open the row"], ["x", "select the row"], ["Escape", "close, or clear the selection"],
    ["p", "pause the page, or go on"], ["?", "show these keys"],
  ];
  const help = () => {
    const list = made("dl", { className: "facts" });
    for (const [key, does] of KEYS) list.append(made("dt", {}, made("kbd", { textContent: key })), made("dd", { textContent: does }));
    const close = made("button", { type: "button", textContent: "Close", autofocus: true });
    const dialog = opened("Keys", made("h2", { textContent: "Keys" }), list, close);
    close.addEventListener("click", () => dialog.close());
  };
  const button = document.getElementById("keys");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", help);
  }

  // The palette: pages and the buttons of this page by their words, classes, queues and tokens by what jobs have.
  const isPage = (entry) => entry.about === "page";
  const ofPage = (word) => [...document.querySelectorAll(".links a, #content button, #content a.button")]
    .filter((target) => target.checkVisibility() && target.textContent.toLowerCase().includes(word))
    .map((target) => ({ text: target.textContent.trim(), about: target.closest(".links") ? "page" : rowOf(target), go: () => target.click() }));
  const rowOf = (target) => target.closest("tr")?.querySelector("th, td.name")?.textContent.trim() ?? "action on this page";
  const address = (token) => {
    const [, key, name] = /^(class|queue):"?(.*?)"?$/.exec(token) ?? [];
    return key ? `${root}/${key === "class" ? "classes" : "queues"}/${encodeURIComponent(name)}` : `${root}/jobs?q=${encodeURIComponent(token)}`;
  };
  const toAddress = (text, about, to) => ({ text, about, go: () => location.assign(to) });
  const palette = () => {
    const input = made("input", { type: "text", placeholder: "page, class, queue, id, action …", autocomplete: "off", spellcheck: false });
    const list = made("ul", { className: "plain found", id: "found" });
    for (const [name, value] of [["role", "combobox"], ["aria-expanded", "true"], ["aria-controls", "found"], ["aria-label", "Find"]]) input.setAttribute(name, value);
    list.setAttribute("role", "listbox");
    list.setAttribute("aria-label", "Found");
    const dialog = opened("Find", input, list);
    dialog.classList.add("palette");
    let found = [], chosen = 0, request = null;
    const choose = (place) => {
      chosen = found.length ? (place + found.length) % found.length : 0;
      [...list.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === chosen)));
      if (found.length) input.setAttribute("aria-activedescendant", list.children[chosen].id);
      list.children[chosen]?.scrollIntoView({ block: "nearest" });
    };
    const take = (place) => {
      dialog.close();
      found[place]?.go();
    };
    const show = (entries) => {
      found = entries.slice(0, 12);
      list.replaceChildren(...found.map(({ text, about }, place) => {
        const option = made("li", { id: `found-${place}` }, made("span", { textContent: text }), made("span", { className: "soft", textContent: about }));
        option.setAttribute("role", "option");
        option.addEventListener("click", () => take(place));
        return option;
      }));
      choose(0);
    };
    const search = async () => {
      const word = input.value.trim();
      const pages = ofPage(word.toLowerCase());
      const jobs = word ? [toAddress(word, "filter or id of jobs", `${root}/jobs?q=${encodeURIComponent(word)}`)] : [];
      request?.abort();
      show([...pages, ...jobs]);
      if (!word) return;
      const own = request = new AbortController();
      try {
        const response = await fetch(`${root}/jobs/suggestions?word=${encodeURIComponent(word)}`, { signal: own.signal });
        const { suggestions } = await response.json();
        const names = suggestions.filter(({ token }) => !token.endsWith(":"))
          .map(({ token }) => toAddress(token, /^(class|queue):/.test(token) ? "its page" : "its jobs", address(token)));
        const actions = pages.filter((entry) => !isPage(entry));
        show([...pages.filter(isPage), ...names, ...actions.slice(0, 5), ...jobs]); // Enter alone does no action
      } catch { /* pages and actions are found without the server */ }
    };
    input.addEventListener("input", search);
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) choose(chosen + step);
      else if (event.key === "Enter") take(chosen);
      else return;
      event.preventDefault();
    });
    search();
  };

  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey) && !event.altKey) {
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) palette();
      return;
    }
    const typing = event.target instanceof Element && event.target.closest("input:not([type='checkbox']), select, textarea, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { j: () => move(1), k: () => move(-1), x: select, "?": help, Escape: clear }[event.key];
    if (!act || event.defaultPrevented) return;
    act();
    if (event.key !== "Escape") event.preventDefault();
  });
})();
