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

  // Answers, hints and reveals are printed; the code that only draws is not, unless the reader has opened it. Paper is
  // light. Both happen before plotly-render.js draws what is missing.
  function printing() {
    const root = document.documentElement;
    let opened = [], theme = "";
    window.addEventListener("beforeprint", () => {
      opened = Array.from(document.querySelectorAll(".bd-article details:not(.quiet, [open])"));
      opened.forEach((fold) => { fold.open = true; });
      theme = root.dataset.theme;
      root.dataset.theme = "light";
    }, true);
    window.addEventListener("afterprint", () => {
      opened.forEach((fold) => { fold.open = false; });
      root.dataset.theme = theme;
    });
  }

  // What the theme leaves without a name for those who listen to a page.
  function names() {
    const side = document.querySelector(".bd-sidebar-primary");
    if (side) { side.setAttribute("role", "region"); side.setAttribute("aria-label", "The course"); }
    for (const summary of document.querySelectorAll(".bd-sidebar-primary li > details > summary")) {
      const link = summary.closest("li").querySelector("a");
      summary.setAttribute("aria-label", `Exercises and solutions of ${link ? link.textContent.trim() : "this page"}`);
    }
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

  function start() { codeSwitch(); printing(); labelCells(); names(); }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
