// Merges new HTML into an element: only what differs changes, so that focus, selection, scrolling and open parts stay.
const mergeHtml = (() => {
  "use strict";
  const FORBIDDEN = "script, iframe, object, embed, base, link, meta, style";

  // Browsers ignore blanks and control characters within the word.
  const isScript = (address) => /^javascript:/i.test(address.replace(/[\s\u0000-\u001f]/g, ""));

  // Parsed, but not run: a document of its own has no window.
  const parsed = (html) => {
    const { body } = new DOMParser().parseFromString(html, "text/html");
    for (const element of body.querySelectorAll(FORBIDDEN)) element.remove();
    for (const element of body.querySelectorAll("*")) {
      for (const { name, value } of [...element.attributes]) {
        const isAddress = name === "href" || name === "src" || name === "action" || name === "formaction" || name === "xlink:href";
        if (name.startsWith("on") || (isAddress && isScript(value))) element.removeAttribute(name);
      }
    }
    return body;
  };

  const isElement = (node) => node.nodeType === Node.ELEMENT_NODE;
  const keyOf = (node) => (isElement(node) && node.id) || null;
  const isActive = (element) => element === document.activeElement;

  // A key finds its node wherever it is now; others match the next node of the same kind that has no key.
  const matchOf = (wanted, cursor, keyed) => {
    const key = keyOf(wanted);
    if (key !== null) {
      const match = keyed.get(key);
      keyed.delete(key);
      return match?.nodeName === wanted.nodeName ? match : null;
    }
    for (let node = cursor; node; node = node.nextSibling) {
      if (node.nodeName === wanted.nodeName && keyOf(node) === null) return node;
    }
    return null;
  };

  const mergeChildren = (parent, source) => {
    const keyed = new Map();
    for (const child of parent.children) if (child.id) keyed.set(child.id, child);
    let cursor = parent.firstChild;
    for (const wanted of [...source.childNodes]) {
      const match = matchOf(wanted, cursor, keyed);
      if (match === null) {
        parent.insertBefore(document.adoptNode(wanted), cursor);
        continue;
      }
      if (match === cursor) cursor = cursor.nextSibling;
      else if (match.contains(document.activeElement)) {
        while (cursor !== match) { // what is moved loses the focus: its neighbours move instead
          const passed = cursor;
          cursor = cursor.nextSibling;
          parent.appendChild(passed);
        }
        cursor = match.nextSibling;
      } else parent.insertBefore(match, cursor);
      merge(match, wanted);
    }
    while (cursor) {
      const surplus = cursor;
      cursor = cursor.nextSibling;
      surplus.remove();
    }
  };

  // What the reader has done stays: an open part, a ticked box, the text in the field that has the focus.
  const mergeAttributes = (element, source) => {
    const isOpenedByReader = element.matches("details, dialog");
    for (const { name } of [...element.attributes]) {
      if (!source.hasAttribute(name) && !(name === "open" && isOpenedByReader)) {
        element.removeAttribute(name);
        if (name === "checked" || name === "selected") element[name] = false;
      }
    }
    for (const { name, value } of source.attributes) {
      if (element.getAttribute(name) === value || (name === "open" && isOpenedByReader)) continue;
      element.setAttribute(name, value);
      if (name === "value" && "value" in element && !isActive(element)) element.value = value;
      if (name === "checked" || name === "selected") element[name] = true;
    }
  };

  const merge = (node, source) => {
    if (!isElement(node)) {
      if (node.data !== source.data) node.data = source.data;
      return;
    }
    if (node.isEqualNode(source)) return;
    mergeAttributes(node, source);
    if (node.nodeName !== "TEXTAREA") mergeChildren(node, source);
    else if (node.defaultValue !== source.defaultValue) {
      const isUntouched = node.value === node.defaultValue && !isActive(node);
      node.defaultValue = source.defaultValue;
      if (isUntouched) node.value = source.defaultValue;
    }
  };

  return (element, html) => mergeChildren(element, parsed(html));
})();
