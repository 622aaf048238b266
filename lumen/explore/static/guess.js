// The guess boxes of a page: each number is remembered in this browser and shown beside the answer. Nothing is sent.
// Not a widget: the book makes one classic script of kit.js and this (see sphinx_ext.py), so it works from a folder.
import { number } from "./kit.js";

const SAY = "Write a number, for example 39.4, 39,4 or 1e3.";
const page = location.pathname.split("/").slice(-2).join("/"); // the same on every host
const key = (box) => `lumen:guess:${page}#${box.dataset.guess}`;
// A browser may forbid storage, in a private window or for files: then a guess lasts as long as the page.
const stored = (box) => { try { return localStorage.getItem(key(box)) || ""; } catch { return ""; } };
const store = (box, text) => {
  try { if (text) localStorage.setItem(key(box), text); else localStorage.removeItem(key(box)); } catch { /* see above */ }
};

// The fold that answers the box: the first Reveal after it.
const answerOf = (box, folds) => folds.find((f) => box.compareDocumentPosition(f) & Node.DOCUMENT_POSITION_FOLLOWING);

function said(boxes) {
  return boxes.filter((box) => "value" in box.dataset).map((box) => {
    const { text, unit = "", what } = box.dataset;
    const number = document.createElement("strong");
    number.textContent = `${text} ${unit}`.trim();
    return ["You said ", number, boxes.length > 1 && what ? ` (${what}). ` : ". "];
  }).flat();
}

function start() {
  const boxes = [...document.querySelectorAll(".lumen-guess")], folds = [...document.querySelectorAll("details.reveal")];
  const show = (fold) => {
    if (!fold) return;
    let line = fold.querySelector(":scope > .you-said");
    if (!line) fold.querySelector("summary").after(line = Object.assign(document.createElement("p"), { className: "you-said" }));
    line.replaceChildren(...said(boxes.filter((box) => answerOf(box, folds) === fold)));
  };
  for (const box of boxes) {
    const input = box.querySelector("input"), note = box.querySelector(".said");
    const read = () => {
      const value = number(input.value, box.dataset.unit);
      if (Number.isNaN(value)) { delete box.dataset.value; delete box.dataset.text; }
      else Object.assign(box.dataset, { value, text: input.value.trim().replace(box.dataset.unit || "", "").trim() });
      show(answerOf(box, folds));
      document.dispatchEvent(new CustomEvent("lumen-guess"));
      return !Number.isNaN(value);
    };
    input.value = stored(box);
    read();
    input.addEventListener("input", () => { if (read() || !input.value.trim()) note.textContent = ""; store(box, input.value.trim()); });
    input.addEventListener("change", () => { if (input.value.trim() && !read()) note.textContent = SAY; });
  }
}

export default { start };
