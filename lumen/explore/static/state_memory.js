// Pairs written one by one into a matrix of fixed size: how far off it answers for each of them.
import { h, s, slider, toggle, stats, announcer, integer, significant } from "./kit.js";

const unit = (row) => { const length = Math.sqrt(row.reduce((sum, x) => sum + x * x, 0)); return row.map((x) => x / length); };
const read = (key, state) => state[0].map((_, j) => key.reduce((sum, x, i) => sum + x * state[i][j], 0));

// Write the first `pairs` rows, cut to `width` and of length 1, and ask for each key. The twin of `walk` in state_memory.py.
export function walk({ keys, values, width, pairs, rule, changed, decay }) {
  const count = pairs + (changed ? 1 : 0);
  const [k, v] = [keys, values].map((rows) => rows.slice(0, count).map((row) => unit(row.slice(0, width))));
  if (changed) k[pairs] = k[0];
  const fade = rule.startsWith("gated") ? decay : 1, corrects = rule.includes("delta");
  let state = Array.from({ length: width }, () => Array(width).fill(0));
  k.forEach((key, t) => {
    state = state.map((row) => row.map((x) => fade * x));
    const found = corrects ? read(key, state) : Array(width).fill(0);
    state = state.map((row, i) => row.map((x, j) => x + key[i] * (v[t][j] - found[j])));
  });
  return Array.from({ length: pairs }, (_, i) => {
    const told = changed && i === 0 ? pairs : i, found = read(k[i], state);
    const far = v.map((value) => value.reduce((sum, y, j) => sum + (found[j] - y) ** 2, 0));
    return { error: far[told], right: far[told] === Math.min(...far) };
  });
}

const TOP = 1.5; // errors above it are cut, and say so

function bars(answers, most, width, changed) {
  const tall = 170, base = tall - 22, step = (width - 34) / most, y = (e) => base - (Math.min(e, TOP) / TOP) * (base - 14);
  const said = answers.map((a, i) => `pair ${i + 1} ${significant(a.error, 2)}${a.right ? "" : ", wrong"}`).join("; ");
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img", "aria-label": `Squared errors, oldest first: ${said}` },
    [0, 0.5, 1].map((e) => [s("line", { x1: 30, x2: width, y1: y(e), y2: y(e), class: e ? "grid" : "axis" }),
                            s("text", { x: 24, y: y(e) + 4, "text-anchor": "end", class: "soft" }, String(e))]).flat(),
    answers.map((a, i) => s("rect", { x: 32 + i * step, width: Math.max(2, step - 3), y: Math.min(y(a.error), base - 2),
                                      height: Math.max(2, base - y(a.error)), class: a.right ? "right" : "wrong" })),
    answers.flatMap((a, i) => a.error > TOP ? [s("text", { x: 32 + (i + 0.4) * step, y: 11, "text-anchor": "middle" }, "↑")] : []),
    s("text", { x: 32, y: tall - 4, class: "soft" }, "told first"),
    s("text", { x: 32 + answers.length * step, y: tall - 4, "text-anchor": answers.length > most / (changed ? 2 : 3) ? "end" : "start", class: "soft" },
      answers.length < 2 ? "" : changed ? "last, before the first again" : "last"));
}

function render({ state, el }) {
  const oninput = () => draw();
  const width = slider({ label: "Width of keys and values, D", values: state.widths, value: state.width, oninput });
  const pairs = slider({ label: "Pairs told", values: Array.from({ length: state.most }, (_, i) => i + 1), value: state.pairs, oninput });
  const rule = toggle({ label: "A write will", options: state.rules, value: state.rule, oninput });
  const changed = toggle({ label: "The first key at the end", options: [["no", "not again"], ["yes", "again, new value"]], value: "no", oninput });
  const picture = h("div", {}), table = stats(4), verdict = h("p", { class: "verdict" }), voice = announcer();
  const legend = h("p", { class: "legend" }, [["right", "told value is the nearest"], ["wrong", "another value is nearer"]].map(([kind, text]) =>
    h("span", {}, s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, s("rect", { x: 1, y: 1, width: 14, height: 14, class: kind })), text)));

  function draw() {
    const n = pairs.value, d = width.value;
    const answers = walk({ keys: state.keys, values: state.values, width: d, pairs: n, rule: rule.value, changed: changed.value === "yes", decay: state.decay });
    const mean = answers.reduce((sum, a) => sum + a.error, 0) / n, right = answers.filter((a) => a.right).length;
    picture.replaceChildren(bars(answers, state.most, picture.clientWidth || 600, changed.value === "yes"));
    table.show([["numbers in the state", integer(d * d), "blue"], ["as keys and values", integer(2 * n * d), "blue"],
                ["mean squared error", significant(mean, 2), "orange"], ["right answers", `${right} of ${n}`, right === n ? "green" : "orange"]]);
    verdict.textContent = changed.value === "yes"
      ? `The first key was told twice. Its newest value comes back with an error of ${significant(answers[0].error, 2)}.`
      : `The pair told first comes back with an error of ${significant(answers[0].error, 2)}, the last with ${significant(answers[n - 1].error, 2)}.`;
    voice.say(`${right} of ${n} right. ${verdict.textContent}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, width.row, pairs.row, rule.row, changed.row), picture, legend, table.el, verdict, voice.el);
  draw();
  let seen = 0;
  new ResizeObserver(() => { if (picture.clientWidth !== seen) { seen = picture.clientWidth; draw(); } }).observe(picture);
}

const style = `
.right { fill: var(--blue); } .wrong { fill: var(--orange); } .grid { stroke: var(--grid); } .axis { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 8px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 16px; height: 16px; }
.verdict { min-height: 3em; }
`;

export default { title: "What the state still knows", style, render };
