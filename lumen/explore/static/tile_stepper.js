// Attention tile by tile: which scores exist now, and what one query carries from tile to tile.
import { h, s, slider, toggle, stats, announcer, integer, significant } from "./kit.js";

// One query's softmax over `scores`, `block` at a time, one value a key. The twin of `walk` in tile_stepper.py.
export function walk(scores, values, block) {
  let largest = -Infinity, total = 0, weighted = 0;
  const found = [];
  for (let at = 0; at < scores.length; at += block) {
    const tile = scores.slice(at, at + block), above = Math.max(largest, ...tile), shrink = Math.exp(largest - above);
    const weights = tile.map((x) => Math.exp(x - above));
    total = total * shrink + weights.reduce((a, b) => a + b, 0);
    weighted = weighted * shrink + weights.reduce((a, w, i) => a + w * values[at + i], 0);
    largest = above;
    found.push({ largest, total, weighted, shrink });
  }
  return found;
}

// The tiles in the order of the loop, queries outside; those above the diagonal are never computed.
export function tiles(size, block, causal) {
  const all = [];
  for (let row = 0; row < size; row += block)
    for (let column = 0; column < size; column += block)
      all.push({ row, column, skipped: causal && column > row + block - 1 });
  return all;
}

function grid(state, order, at, block, causal, query, width) {
  const size = state.scores.length, cell = Math.min(32, Math.floor((width - 4) / size)), side = cell * size;
  const place = (t) => ({ x: 2 + t.column * cell, y: 2 + t.row * cell, width: cell * block, height: cell * block });
  const parts = order.map((t, i) => s("rect", { ...place(t), class: t.skipped ? "tile skipped" : i < at ? "tile done" : i === at ? "tile now" : "tile" }));
  const now = order[at];
  const marks = state.scores.flatMap((line, q) => line.map((score, k) => {
    const inside = q >= now.row && q < now.row + block && k >= now.column && k < now.column + block;
    if (!inside || cell < 22) return null;
    const hidden = causal && k > q;
    return s("text", { x: 2 + (k + 0.5) * cell, y: 2 + (q + 0.5) * cell + 4, "text-anchor": "middle", class: "score" }, hidden ? "–" : significant(score, 2));
  })).filter(Boolean);
  const band = s("rect", { x: 2, y: 2 + query * cell, width: side, height: cell, class: "watched" });
  return s("svg", { viewBox: `0 0 ${side + 4} ${side + 4}`, style: `width:${side + 4}px;height:${side + 4}px`, role: "img",
    "aria-label": `Tile of queries ${now.row + 1} to ${now.row + block}, keys ${now.column + 1} to ${now.column + block}; query ${query + 1} is watched` }, parts, marks, band);
}

function render({ state, el }) {
  const size = state.scores.length;
  let at = tiles(size, state.block, state.causal).findIndex((t) => size <= t.row + state.block); // the last query's
  const start = () => { at = 0; draw(); };
  const block = slider({ label: "Rows and columns of a tile", values: state.sizes, value: state.block, oninput: start });
  const query = slider({ label: "Query to watch", values: Array.from({ length: size }, (_, i) => i + 1), value: size, oninput: () => draw() });
  const mask = toggle({ label: "Mask", options: [["causal", "causal"], ["none", "none"]], value: state.causal ? "causal" : "none", oninput: start });
  const all = () => tiles(size, block.value, mask.value === "causal");
  const computed = () => all().flatMap((t, i) => (t.skipped ? [] : [i]));
  const move = (by) => () => {
    const some = computed();
    at = some[Math.min(some.length - 1, Math.max(0, some.indexOf(at) + by))];
    draw();
  };
  const toQuery = () => { at = all().findIndex((t) => query.value <= t.row + block.value); draw(); };
  const back = h("button", { type: "button", onclick: move(-1) }, "Back");
  const next = h("button", { type: "button", class: "first", onclick: move(1) }, "Next tile");
  const jump = h("button", { type: "button", onclick: toQuery }, "To the query's first tile");
  const again = h("button", { type: "button", onclick: start }, "Start over");
  const where = h("p", { class: "where" }), picture = h("div", { class: "picture" }), table = stats(), voice = announcer();
  const verdict = h("p", { class: "verdict" });
  const legend = h("p", { class: "legend" }, [["now", "computed now"], ["done", "done and forgotten"], ["skipped", "skipped: all masked"]].map(([kind, text]) =>
    h("span", {}, s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, s("rect", { x: 1, y: 1, width: 14, height: 14, class: "tile " + kind })), text)));

  function draw() {
    const causal = mask.value === "causal", b = block.value, q = query.value - 1, order = tiles(size, b, causal), some = computed();
    const now = order[at], seen = causal ? q + 1 : size;
    const states = walk(state.scores[q].slice(0, seen), state.values.slice(0, seen), b);
    const inRow = q >= now.row && q < now.row + b, before = q < now.row;
    const done = before ? states.length : inRow ? Math.min(states.length, now.column / b + 1) : 0;
    const kept = done ? states[done - 1] : null;
    where.replaceChildren(h("b", {}, `Tile ${some.indexOf(at) + 1} of ${some.length}. `),
      `Queries ${now.row + 1} to ${now.row + b} meet keys ${now.column + 1} to ${now.column + b}. `,
      !inRow ? (before ? `Query ${q + 1} is finished.` : `Query ${q + 1} has not begun.`)
        : done === 1 ? `Query ${q + 1} begins: nothing to scale down.`
        : kept.shrink < 1 ? `A larger score came: what query ${q + 1} had is multiplied by ${significant(kept.shrink)}.`
        : `No larger score for query ${q + 1}: what it had stays as it is.`);
    picture.replaceChildren(grid(state, order, at, b, causal, q, picture.clientWidth || 480));
    table.show([["largest score", kept ? significant(kept.largest, 2) : "–"],
                ["sum of exp(score − largest)", kept ? significant(kept.total) : "–"],
                ["output so far", kept ? significant(kept.weighted / kept.total) : "–", "orange"],
                ["output in the end", significant(states.at(-1).weighted / states.at(-1).total), "blue"],
                ["scores that exist now", integer(b * b)], ["all scores", integer(size * size)]]);
    const passes = size / b;
    verdict.textContent = `Keys and values are read once for each row of tiles: ${integer(passes)} ${passes === 1 ? "time" : "times"}${causal ? ", less what is skipped" : ""}. Larger tiles read less and hold more.`;
    back.disabled = again.disabled = at === some[0];
    next.disabled = at === some.at(-1);
    voice.say(where.textContent);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, block.row, query.row, mask.row),
    h("div", { class: "buttons" }, back, next, jump, again), where, picture, legend, table.el, verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(picture);
}

const style = `
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 12px; } .where { min-height: 3em; margin-bottom: 6px; }
.picture svg { display: block; max-width: 100%; }
.tile { fill: none; stroke: var(--line); stroke-width: 1.5; } .tile.now { fill: var(--orangewash); stroke: var(--orange); stroke-width: 2.5; }
.tile.done { fill: var(--bluewash); stroke: var(--blue); } .tile.skipped { stroke-dasharray: 2 3; opacity: 0.6; }
.score { fill: var(--ink); font-size: 12px; font-variant-numeric: tabular-nums; } .watched { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 12px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 16px; height: 16px; }
`;

export default { title: "Attention, tile by tile", style, render };
