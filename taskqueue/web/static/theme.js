// Sets light or dark before the page is painted, as the reader chose it last; without a choice the system decides.
(() => {
  try {
    const chosen = localStorage.getItem("taskqueue-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* a browser that keeps nothing follows the system */ }
})();
