// Question pairs at their cosines, a threshold, and a second check: what hits, and what of it is right.
import { h, s, slider, toggle, stats, announcer, integer } from "./kit.js";

// Pairs are [kind, cosine, refused]. The twin of `count` in threshold.py.
export function count(pairs, threshold, checked) {
  const byKind = {}, totals = {};
  for (const [kind, cosine, refused] of pairs) {
    totals[kind] = (totals[kind] || 0) + 1;
    byKind[kind] = (byKind[kind] || 0) + (cosine >= threshold && !(checked && refused) ? 1 : 0);
  }
  const sum = (of) => Object.entries(of).reduce((all, [kind, n]) => all + (kind === "paraphrase" ? 0 : n), 0);
  const right = byKind.paraphrase || 0, wrong = sum(byKind);
  return { right, wrong, byKind, totals, recall: right / Math.max(1, totals.paraphrase || 0),
    precision: right + wrong ? right / (right + wrong) : null, falseHits: wrong / Math.max(1, sum(totals)) };
}

const percent = (share) => (share === null ? "no hits" : (100 * share).toFixed(1) + " %");

function picture(state, kinds, threshold, checked, found, width) {
  const row = 30, top = 22, left = 86, right = 12, tall = top + row * kinds.length + 26;
  const low = Math.min(0, ...state.pairs.map((p) => p[1])), x = (cosine) => left + ((cosine - low) / (1 - low)) * (width - left - right);
  const seen = Object.fromEntries(kinds.map((kind) => [kind, 0])), marks = [];
  kinds.forEach((kind, i) => {
    const y = top + row * i + row / 2;
    marks.push(s("path", { d: `M${left} ${y}H${width - right}`, class: "guide" }), s("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, kind));
  });
  for (const [kind, cosine, refused] of state.pairs) {
    const hit = cosine >= threshold && !(checked && refused), jitter = ((seen[kind]++ * 7) % 13) - 6;
    marks.push(s("circle", { cx: x(cosine), cy: top + row * kinds.indexOf(kind) + row / 2 + jitter, r: hit ? 4 : 3,
      class: !hit ? "miss" : kind === "paraphrase" ? "right" : "wrong" }));
  }
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) marks.push(s("text", { x: x(tick), y: tall - 6, "text-anchor": tick === 1 ? "end" : "middle", class: "soft" }, String(tick)));
  marks.push(s("path", { d: `M${x(threshold)} ${top - 6}V${tall - 22}`, class: "cut" }),
    s("text", { x: x(threshold), y: 12, "text-anchor": threshold > 0.9 ? "end" : "middle", class: "soft" }, `threshold ${threshold.toFixed(2)}`));
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img",
    "aria-label": `${found.right} right and ${found.wrong} wrong hits at a threshold of ${threshold.toFixed(2)}` }, marks);
}

function render({ state, el }) {
  const kinds = state.kinds.filter((kind) => state.pairs.some((pair) => pair[0] === kind));
  const oninput = () => draw();
  const cut = slider({ label: "Threshold (cosine)", values: state.cuts, value: state.threshold, format: (v) => v.toFixed(2), oninput });
  const reader = toggle({ label: "Second check", options: [["off", "off"], ["on", "on"]], value: state.checked ? "on" : "off", oninput });
  const stage = h("div", {}), table = stats(5), verdict = h("p", { class: "verdict" }), voice = announcer();
  const legend = h("p", { class: "legend" }, [["right", "right hit"], ["wrong", "wrong hit"], ["miss", "no hit"]].map(([kind, text]) =>
    h("span", {}, s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, s("circle", { cx: 6, cy: 6, r: 4, class: kind })), text)));

  function draw() {
    const checked = reader.value === "on", found = count(state.pairs, cut.value, checked);
    stage.replaceChildren(picture(state, kinds, cut.value, checked, found, stage.clientWidth || 600));
    table.show([["right hits", integer(found.right), "blue"], ["wrong hits", integer(found.wrong), found.wrong ? "orange" : "green"],
      ["recall", percent(found.recall)], ["precision", percent(found.precision)], ["false-hit rate", percent(found.falseHits)]]);
    const worst = kinds.filter((kind) => kind !== "paraphrase" && found.byKind[kind]).map((kind) => `${found.byKind[kind]} of ${found.totals[kind]} ${kind}`);
    const text = worst.length ? `Hit by mistake: ${worst.join(", ")}.` : "No pair hits by mistake.";
    verdict.textContent = text;
    voice.say(`Recall ${percent(found.recall)}, precision ${percent(found.precision)}. ${text}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead), h("div", { class: "controls" }, cut.row, reader.row),
    stage, legend, table.el, verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; } .cut { stroke: var(--ink); stroke-width: 2; fill: none; }
.right { fill: var(--blue); } .wrong { fill: var(--orange); } .miss { fill: none; stroke: var(--soft); opacity: .7; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 4px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 12px; height: 12px; }
`;

export default { title: "Threshold explorer", style, render };
