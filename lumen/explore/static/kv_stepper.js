// Step by step: which rows of Q, K and V a decoder computes, and which it reads, with a KV cache and without.
import { h, s, slider, stats, announcer, integer, significant } from "./kit.js";

// Rows of one pass. Pass 1 runs the whole prompt and yields the first token of the answer; pass t runs on t - 1 tokens
// of the answer as well. `computed` counts token rows through the model; each is one row of Q, of K and of V a layer.
export function pass(prompt, t) {
  const seen = prompt + t - 1;
  return { seen, withCache: { computed: t === 1 ? prompt : 1, read: t === 1 ? 0 : seen - 1 }, without: { computed: seen, read: 0 } };
}

// Sums over the first `t` passes.
export function totals(prompt, t) {
  return { withCache: prompt + t - 1, without: t * prompt + (t * (t - 1)) / 2,
           read: (t - 1) * prompt + ((t - 1) * (t - 2)) / 2,
           ratio: (t * prompt + (t * (t - 1)) / 2) / (prompt + t - 1) };
}

const CELL = { computed: "computed now", again: "computed again", read: "read from the cache", idle: "not needed" };

function kindOf(row, column, now, prompt, cached) {
  if (column >= now.seen) return "future";
  const fresh = now.seen === prompt || column === now.seen - 1;
  if (fresh) return "computed";
  if (!cached) return "again";
  return row === "Q" ? "idle" : "read";
}

function swatch(kind, x, y, w) {
  const cell = s("rect", { x, y, width: w, height: w, rx: Math.min(4, w / 5), class: "cell " + kind });
  if (kind !== "again" && kind !== "read") return [cell];
  const mark = kind === "again" ? `M${x + 2} ${y + w - 2}L${x + w - 2} ${y + 2}` : `M${x + w / 2 - 2} ${y + w / 2}h4`;
  return [cell, s("path", { d: mark, class: "mark " + kind })]; // a mark as well as a colour
}

function panel(title, now, prompt, columns, cached, width) {
  const left = 22, gap = columns > 16 ? 2 : 4;
  const w = Math.min(30, (width - left) / columns - gap), height = 3 * (w + 5);
  const parts = ["Q", "K", "V"].flatMap((row, r) => {
    const y = r * (w + 5);
    const cells = Array.from({ length: columns }, (_, c) => swatch(kindOf(row, c, now, prompt, cached), left + c * (w + gap), y, w));
    return [s("text", { x: 0, y: y + w / 2 + 5 }, row), ...cells.flat()];
  });
  const side = cached ? now.withCache : now.without;
  const text = `${title}: ${side.computed} token rows computed in this pass` + (cached ? `, ${side.read} read` : ", none read");
  return h("div", { class: "panel" }, h("p", { class: "head" }, h("b", {}, title),
    h("span", {}, cached ? `computes ${side.computed}, reads ${side.read}` : `computes ${side.computed}`)),
    s("svg", { viewBox: `0 0 ${width} ${height}`, style: `height:${height}px`, role: "img", "aria-label": text }, parts));
}

function render({ state, el }) {
  let t = 1;
  const upTo = (n) => Array.from({ length: n }, (_, i) => i + 1);
  const prompt = slider({ label: "Tokens in the prompt", values: upTo(12), value: state.prompt, oninput: () => { t = 1; draw(); } });
  const steps = slider({ label: "Tokens in the answer", values: upTo(12), value: state.steps, oninput: () => { t = Math.min(t, steps.value); draw(); } });
  const go = (by) => () => { t = by === 0 ? 1 : Math.min(steps.value, Math.max(1, t + by)); draw(); };
  const back = h("button", { type: "button", onclick: go(-1) }, "Back");
  const next = h("button", { type: "button", class: "first", onclick: go(1) }, "Next pass");
  const again = h("button", { type: "button", onclick: go(0) }, "Start over");
  const where = h("p", { class: "where" }), panels = h("div", { class: "panels" }), table = stats(), voice = announcer();
  const verdict = h("p", { class: "verdict" });
  const legend = h("p", { class: "legend" }, Object.entries(CELL).map(([kind, text]) => h("span", {},
    s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, swatch(kind, 1, 1, 14)), text)));

  function draw() {
    const now = pass(prompt.value, t), sum = totals(prompt.value, t), end = totals(prompt.value, steps.value);
    const columns = prompt.value + steps.value - 1, width = panels.clientWidth || 600;
    where.replaceChildren(h("b", {}, `Pass ${t} of ${steps.value}. `), t === 1
      ? `The prompt's ${now.seen} ${now.seen === 1 ? "row goes" : "rows go"} through together; the first token of the answer comes out.`
      : `${t - 1} ${t === 2 ? "token" : "tokens"} of the answer so far: token ${t} must look at ${now.seen} rows.`);
    panels.replaceChildren(panel("With a cache", now, prompt.value, columns, true, width),
                           panel("Without", now, prompt.value, columns, false, width));
    table.show([["computed so far, with a cache", integer(sum.withCache), "blue"],
                ["computed so far, without", integer(sum.without), "orange"],
                ["read so far", integer(sum.read)],
                ["without, times with", significant(sum.ratio)]]);
    verdict.textContent = `At the end of this answer: ${integer(end.without)} rows against ${integer(end.withCache)}, ${significant(end.ratio)} times the work. The prompt's prefill is counted on both sides.`;
    back.disabled = again.disabled = t === 1;
    next.disabled = t === steps.value;
    voice.say(`Pass ${t}: with a cache ${now.withCache.computed} computed and ${now.withCache.read} read; without, ${now.without.computed} computed.`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, prompt.row, steps.row),
    h("div", { class: "buttons" }, back, next, again), where, panels, legend, table.el, verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(panels);
}

const style = `
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 12px; } .where { min-height: 3em; margin-bottom: 6px; }
.panel + .panel { margin-top: 14px; } .head { display: flex; justify-content: space-between; gap: 10px; margin: 0 0 5px; }
.head span { color: var(--soft); font-size: 14px; font-variant-numeric: tabular-nums; }
.cell { fill: none; stroke: var(--line); stroke-width: 1.5; } .cell.future { stroke-dasharray: 2 3; }
.cell.computed { fill: var(--orange); stroke: var(--orange); } .cell.again { fill: var(--orangewash); stroke: var(--orange); }
.cell.read { fill: var(--bluewash); stroke: var(--blue); } .mark { fill: none; stroke-width: 1.5; }
.mark.again { stroke: var(--orange); } .mark.read { stroke: var(--blue); stroke-width: 4; stroke-linecap: round; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 12px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 16px; height: 16px; }
`;

export default { title: "KV cache, step by step", style, render };
