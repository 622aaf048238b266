// Which keys of a prompt a rule keeps, and how much of the answer's attention falls on them.
import { h, slider, toggle, select, stats, announcer, integer, significant } from "./kit.js";

const SINKS = 4, OBSERVES = 8, KERNEL = 5, PAGE = 8;

// What each key is worth to a rule that keeps single keys. The twin of `worth` in eviction.py.
export function worth(rule, scores, budget) {
  const count = scores.read.length, before = count - OBSERVES, half = (KERNEL - 1) / 2;
  return scores.read.map((read, i) => {
    if (rule === "newest") return i;
    if (rule === "sinks") return i < SINKS ? Infinity : i;
    if (rule === "h2o") return i >= count - Math.floor(budget / 2) ? Infinity : read;
    return i >= before ? Infinity : Math.max(0, ...scores.observed.slice(Math.max(0, i - half), Math.min(before, i + half + 1)));
  });
}

// The positions that stay, or are read in Quest's case. The twin of `kept` in eviction.py: of equals the later one.
export function kept(rule, scores, budget) {
  const count = scores.read.length, all = Array.from({ length: count }, (_, i) => i);
  if (rule === "quest") {
    const last = Math.floor((count - 1) / PAGE), value = scores.bounds.map((b, p) => (p === last ? Infinity : b));
    const pages = scores.bounds.map((_, p) => p).sort((a, b) => (value[a] === value[b] ? b - a : value[b] - value[a]));
    const chosen = new Set(pages.slice(0, Math.max(1, Math.floor(budget / PAGE))));
    return all.filter((i) => chosen.has(Math.floor(i / PAGE)));
  }
  const value = worth(rule, scores, budget);
  return all.sort((a, b) => (value[a] === value[b] ? b - a : value[b] - value[a])).slice(0, budget).sort((a, b) => a - b);
}

// The share of the answer's attention on these keys, and the most that so many keys could have.
export const held = (scores, some) => some.reduce((sum, i) => sum + scores.asked[i], 0);
export const best = (scores, budget) => [...scores.asked].sort((a, b) => b - a).slice(0, budget).reduce((a, b) => a + b, 0);

const percent = (share) => significant(100 * Math.min(1, share), share < 0.1 ? 1 : 2) + " %";

function render({ state, el }) {
  const oninput = () => draw();
  const head = select({ label: "Layer and head", options: state.heads.map((one, i) => [String(i), one.name]), value: "0", oninput });
  const rule = toggle({ label: "Rule", options: state.rules, value: state.rule, oninput });
  const count = state.tokens.length;
  const budget = slider({ label: "Keys that stay", values: state.budgets, value: state.budget, format: (n) => `${n} of ${count}`, oninput });
  const text = h("p", { class: "text", role: "img" }), table = stats(4), verdict = h("p", { class: "verdict" }), voice = announcer();

  function draw() {
    const scores = state.heads[Number(head.value)], some = new Set(kept(rule.value, scores, budget.value));
    const most = Math.max(...scores.asked), share = held(scores, [...some]), of = Math.round(100 * Math.min(1, share)), quest = rule.value === "quest";
    text.replaceChildren(...state.tokens.flatMap((token, i) => [token.startsWith(" ") ? " " : "", h("span", {
      class: some.has(i) ? "stays" : "gone", title: percent(scores.asked[i]),
      style: `--weight: ${Math.sqrt(scores.asked[i] / most).toFixed(3)}` }, token.trim() || (token.includes("\n") ? "⏎" : "␣"))]));
    text.setAttribute("aria-label", `${some.size} of ${count} keys stay: ` + state.tokens.filter((_, i) => some.has(i)).join(" "));
    table.show([[quest ? "keys that are read" : "keys that stay", `${some.size} of ${count}`],
                ["bytes that are held", quest ? "all, and bounds" : percent(some.size / count)],
                ["the answer's attention on them", `${of} %`, share > 0.9 ? "green" : "orange"],
                ["on the best choice of so many", `${Math.round(100 * Math.min(1, best(scores, some.size)))} %`, "blue"]]);
    verdict.textContent = `${100 - of} % of what the answer reads in this head would be missing.`;
    voice.say(`${integer(some.size)} keys. ${verdict.textContent}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, head.row, budget.row), rule.row, text, table.el, verdict, voice.el);
  draw();
}

const style = `
.text { margin: 14px 0 4px; line-height: 2; overflow-wrap: anywhere; }
.text span { padding: 3px 2px; border-radius: 4px;
  background: color-mix(in srgb, var(--orange) calc(var(--weight) * 40%), transparent); }
.text .stays { box-shadow: inset 0 -2px 0 var(--blue); } .text .gone { text-decoration: line-through; }
.verdict { font-weight: 600; }
`;

export default { title: "Eviction explorer", style, render };
