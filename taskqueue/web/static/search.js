// Completes the tokens of the filter of jobs: suggestions for the word at the cursor, by arrows, Enter, Tab or a click.
(() => {
  "use strict";
  const input = document.querySelector("input[data-tokens]");
  if (!input) return;
  const list = document.getElementById(input.getAttribute("aria-controls"));
  let options = [], chosen = -1, request = null;

  const wordAt = () => { // the word that ends at the cursor; blanks in quotes belong to it
    const text = input.value.slice(0, input.selectionStart);
    const quotes = /(?:[^\s"]|"(?:[^"\\]|\\.)*"?)*$/.exec(text);
    return { begin: quotes.index, word: quotes[0] };
  };

  const close = () => {
    request?.abort();
    options = [];
    chosen = -1;
    list.hidden = true;
    list.replaceChildren();
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };

  const choose = (place) => {
    chosen = (place + options.length) % options.length;
    [...list.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === chosen)));
    input.setAttribute("aria-activedescendant", list.children[chosen].id);
    list.children[chosen].scrollIntoView({ block: "nearest" });
  };

  const take = (place) => { // a key is written without a blank: its value follows
    const { begin } = wordAt(), { token } = options[place];
    const rest = input.value.slice(input.selectionStart).replace(/^\S+/, "").trimStart();
    const before = input.value.slice(0, begin) + token + (token.endsWith(":") ? "" : " ");
    input.value = before + rest;
    input.setSelectionRange(before.length, before.length);
    close();
    if (token.endsWith(":")) suggest();
  };

  const show = (suggestions) => {
    if (!suggestions.length || document.activeElement !== input) return close();
    const before = options[chosen]?.token;
    options = suggestions;
    chosen = -1;
    list.replaceChildren(...options.map(({ token, about }, place) => {
      const option = document.createElement("li");
      option.id = `${list.id}-${place}`;
      option.setAttribute("role", "option");
      option.setAttribute("aria-selected", "false");
      const name = document.createElement("span"), meaning = document.createElement("span");
      name.textContent = token;
      meaning.textContent = about;
      option.append(name, meaning);
      option.addEventListener("mousedown", (event) => { // before the field loses the focus
        event.preventDefault();
        take(place);
      });
      return option;
    }));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    const same = options.findIndex(({ token }) => token === before);
    if (same >= 0) choose(same); // a late answer does not undo a choice
  };

  const suggest = async () => {
    request?.abort();
    const own = request = new AbortController();
    const address = `${input.dataset.tokens}?${new URLSearchParams({ word: wordAt().word })}`;
    try {
      const response = await fetch(address, { signal: own.signal });
      if (response.ok) show((await response.json()).suggestions);
    } catch (error) {
      if (error.name !== "AbortError") close(); // without suggestions the field works as any other
    }
  };

  input.addEventListener("input", suggest);
  input.addEventListener("focus", suggest);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && list.hidden) suggest();
    if (list.hidden) return;
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen < 0 ? -1 : chosen - 1);
    else if (event.key === "Escape") close();
    else if (event.key === "Tab" && !event.shiftKey && (chosen >= 0 || wordAt().word)) take(Math.max(chosen, 0));
    else if (event.key === "Enter" && chosen >= 0) take(chosen);
    else return;
    event.preventDefault();
  });
})();
