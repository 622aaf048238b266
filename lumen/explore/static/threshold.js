// Question pairs at their cosines, a threshold, and a second look: what hits, what of it is right, what flips next.
import { h, s, slider, toggle, stats, announcer, integer } from "./kit.js";

const SAME = ["paraphrase", "retyped"], NEAR = 6;

// Pairs are [kind, cosine, refused, stored, asked, rule]. The twin of `count` in threshold.py.
export function count(pairs, threshold, checked, same = SAME) {
  const byKind = {}, totals = {};
  for (const [kind, cosine, refused] of pairs) {
    totals[kind] = (totals[kind] || 0) + 1;
    byKind[kind] = (byKind[kind] || 0) + (cosine >= threshold && !(checked && refused) ? 1 : 0);
  }
  const sum = (of) => Object.entries(of).reduce((all, [kind, n]) => all + (same.includes(kind) ? 0 : n), 0);
  const yes = (of) => same.reduce((all, kind) => all + (of[kind] || 0), 0), right = yes(byKind), wrong = sum(byKind);
  return { right, wrong, byKind, totals, recall: right / Math.max(1, yes(totals)),
    precision: right + wrong ? right / (right + wrong) : null, falseHits: wrong / Math.max(1, sum(totals)) };
}

// The pairs nearest to the threshold, highest cosine first.
export function nearest(pairs, threshold, n = NEAR) {
  return [...pairs].sort((a, b) => Math.abs(a[1] - threshold) - Math.abs(b[1] - threshold)).slice(0, n).sort((a, b) => b[1] - a[1]);
}

const percent = (share) => (share === null ? "no hits" : (100 * share).toFixed(1) + " %");

function picture(state, kinds, threshold, checked, found, width, same) {
  const row = 30, top = 22, left = 86, right = 12, tall = top + row * kinds.length + 26;
  const low = Math.min(0, ...state.pairs.map((p) => p[1])), x = (cosine) => left + ((cosine - low) / (1 - low)) * (width - left - right);
  const seen = Object.fromEntries(kinds.map((kind) => [kind, 0])), marks = [];
  kinds.forEach((kind, i) => {
    const y = top + row * i + row / 2;
    marks.push(s("path", { d: `M${left} ${y}H${width - right}`, class: "guide" }), s("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, kind));
  });
  for (const [kind, cosine, refused, stored, asked] of state.pairs) {
    const hit = cosine >= threshold && !(checked && refused), jitter = ((seen[kind]++ * 7) % 13) - 6;
    marks.push(s("circle", { cx: x(cosine), cy: top + row * kinds.indexOf(kind) + row / 2 + jitter, r: hit ? 4 : 3,
      class: !hit ? "miss" : same.includes(kind) ? "right" : "wrong" }, s("title", {}, `${cosine.toFixed(3)}: ${stored} | ${asked}`)));
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
  const reader = toggle({ label: "Second look", options: [["off", "off"], ["on", "on"]], value: state.checked ? "on" : "off", oninput });
  const same = state.same || SAME, list = h("table", { class: "near" });
  const stage = h("div", {}), table = stats(5), verdict = h("p", { class: "verdict" }), voice = announcer();
  const legend = h("p", { class: "legend" }, [["right", "right hit"], ["wrong", "wrong hit"], ["miss", "no hit"]].map(([kind, text]) =>
    h("span", {}, s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" }, s("circle", { cx: 6, cy: 6, r: 4, class: kind })), text)));

  function line([kind, cosine, refused, stored, asked, rule], threshold, checked) {
    const stopped = checked && refused, hit = cosine >= threshold && !stopped, right = same.includes(kind);
    const said = hit ? (right ? "right hit" : "wrong hit") : stopped && cosine >= threshold ? `refused: ${rule}` : "no hit";
    return h("tr", {}, h("td", {}, cosine.toFixed(3)), h("td", { class: hit ? (right ? "yes" : "no") : "soft" }, said), h("td", {}, stored, h("br", {}), asked), h("td", { class: "kind" }, kind));
  }

  function draw() {
    const checked = reader.value === "on", found = count(state.pairs, cut.value, checked, same);
    stage.replaceChildren(picture(state, kinds, cut.value, checked, found, stage.clientWidth || 600, same));
    table.show([["right hits", integer(found.right), "blue"], ["wrong hits", integer(found.wrong), found.wrong ? "orange" : "green"],
      ["recall", percent(found.recall)], ["precision", percent(found.precision)], ["false-hit rate", percent(found.falseHits)]]);
    const worst = kinds.filter((kind) => !same.includes(kind) && found.byKind[kind]).map((kind) => `${found.byKind[kind]} of ${found.totals[kind]} ${kind}`);
    const text = worst.length ? `Hit by mistake: ${worst.join(", ")}.` : "No pair hits by mistake.";
    verdict.textContent = text;
    list.replaceChildren(h("caption", {}, `The ${NEAR} pairs nearest to ${cut.value.toFixed(2)}`), ...nearest(state.pairs, cut.value).map((pair) => line(pair, cut.value, checked)));
    voice.say(`Recall ${percent(found.recall)}, precision ${percent(found.precision)}. ${text}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead), h("div", { class: "controls" }, cut.row, reader.row),
    stage, legend, table.el, verdict, list, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; } .cut { stroke: var(--ink); stroke-width: 2; fill: none; }
.right { fill: var(--blue); } .wrong { fill: var(--orange); } .miss { fill: none; stroke: var(--soft); opacity: .7; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 4px 0 0; }
.near { width: 100%; border-collapse: collapse; font-size: 14px; margin-top: 8px; } .near caption { text-align: left; color: var(--soft); font-size: 13px; }
.near td { border-top: 1px solid var(--grid); padding: 4px 8px 4px 0; vertical-align: top; text-align: left; } .near td:nth-child(-n+2) { white-space: nowrap; }
.near .yes { color: var(--blue); } .near .no { color: var(--orange); font-weight: 600; } .near .soft, .near .kind { color: var(--soft); }
@media (max-width: 540px) { .near .kind { display: none; } .near td:nth-child(-n+2) { white-space: normal; } }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 12px; height: 12px; }
`;

export default { title: "Threshold explorer", style, render };
