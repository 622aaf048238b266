// What a page does beside its figures: the page-wide "code" switch, and folds that open for the printer.
// A classic script, so that it also works from file://.
(function () {
  "use strict";
  const KEY = "lumen:code";
  const remembered = () => { try { return localStorage.getItem(KEY) === "1"; } catch { return false; } };
  const remember = (on) => { try { localStorage.setItem(KEY, on ? "1" : "0"); } catch { /* lasts as long as the page */ } };

  function codeSwitch() {
    const folds = Array.from(document.querySelectorAll("details.quiet"));
    const bar = document.querySelector(".article-header-buttons");
    if (!folds.length || !bar) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "btn btn-sm code-switch";
    button.textContent = "code";
    button.title = "Show or hide the code behind every figure and sentence of this page";
    const set = (on) => {
      button.setAttribute("aria-pressed", String(on));
      folds.forEach((fold) => { fold.open = on; });
    };
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      set(on);
      remember(on);
    });
    set(remembered());
    bar.prepend(button);
  }

  // Answers, hints and reveals are printed; the code that only draws is not, unless the reader has opened it.
  function printing() {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = Array.from(document.querySelectorAll(".bd-article details:not(.quiet, [open])"));
      opened.forEach((fold) => { fold.open = true; });
    });
    window.addEventListener("afterprint", () => { opened.forEach((fold) => { fold.open = false; }); });
  }

  // Every cell of a table that may be stacked carries the name of its column; the style sheet makes cards of the rows.
  function labelCells() {
    for (const table of document.querySelectorAll(".stack table")) {
      const names = Array.from(table.querySelectorAll("thead th"), (th) => th.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        Array.from(row.cells).forEach((cell, i) => { if (i) cell.dataset.label = names[i] || ""; });
      }
    }
  }

  function start() { codeSwitch(); printing(); labelCells(); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
