// Requests of load tests, two limits, and what each server carries of them.
import { h, s, slider, toggle, stats, announcer, si, significant } from "./kit.js";

export function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b), at = (p / 100) * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// Samples are [due, TTFT, TPOT or null, tokens] in seconds. The twin of `judge` in knee.py.
export function judge(run, ttft, tpot) {
  const samples = run.samples, sent = samples.length + run.failed, seconds = run.duration;
  const good = samples.filter((x) => x[1] <= ttft && (x[2] === null || x[2] <= tpot)).length;
  const both = (values) => (values.length ? [percentile(values, 50), percentile(values, 99)] : null);
  return { throughput: samples.length / seconds, tokens: samples.reduce((sum, x) => sum + x[3], 0) / seconds,
    goodput: good / seconds, good: sent ? good / sent : 0, sent, ttft: both(samples.map((x) => x[1])),
    tpot: both(samples.filter((x) => x[2] !== null).map((x) => x[2])) };
}

// The highest rate up to which enough of the requests are good, or null. The twin of `carried` in knee.py.
export function carried(runs, ttft, tpot, enough) {
  let found = null;
  for (const run of runs) {
    if (judge(run, ttft, tpot).good < enough) break;
    found = run.rate;
  }
  return found;
}

const tones = ["blue", "orange", "green", "purple"], share = (x) => Math.round(100 * x) + " %";
const KINDS = { ttft: ["time to first token", "p99 of TTFT"], tpot: ["time per token", "p99 of TPOT"], goodput: ["good requests per second", "goodput"] };

function scale(kind, found, limit, most) {
  if (kind === "goodput") return { low: 0, high: most, at: (v) => v / most, ticks: [0, most / 2, most].map((v) => [v, significant(v, 2)]) };
  const values = found.flat().flatMap((x) => (x[kind] || []).slice(1)).concat(limit), low = Math.min(...values) / 1.4, high = Math.max(...values) * 1.4;
  const at = (v) => Math.log(v / low) / Math.log(high / low), ticks = [];
  for (let k = -4; k < 4; k++) for (const m of high / low > 300 ? [1] : [1, 3]) {
    const v = m * 10 ** k;
    if (v >= low && v <= high) ticks.push([v, si(v, "s", 1)]);
  }
  return { at, ticks };
}

function picture(state, kind, limit, found, chosen, width) {
  const left = 58, right = 14, top = 12, bottom = 40, tall = 280, most = Math.max(...state.engines.flatMap((e) => e.runs.map((r) => r.rate)));
  const x = (rate) => left + (rate / most) * (width - left - right), axis = scale(kind, found, limit, most);
  const y = (v) => tall - bottom - axis.at(v) * (tall - top - bottom), marks = [];
  for (const [v, text] of axis.ticks) marks.push(s("path", { d: `M${left} ${y(v)}H${width - right}`, class: "guide" }),
    s("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", class: "soft" }, text));
  for (const rate of [0, most / 2, most]) marks.push(s("text", { x: x(rate), y: tall - 20, "text-anchor": rate === most ? "end" : "middle", class: "soft" }, significant(rate, 2)));
  marks.push(s("text", { x: (left + width - right) / 2, y: tall - 3, "text-anchor": "middle", class: "soft" }, "offered load (requests/s)"));
  const edge = kind === "goodput" ? `M${x(0)} ${y(0)}L${x(most)} ${y(most)}` : `M${left} ${y(limit)}H${width - right}`;
  marks.push(s("path", { d: edge, class: "limit" }));
  state.engines.forEach((engine, e) => {
    const value = (i) => (kind === "goodput" ? found[e][i].goodput : (found[e][i][kind] || [])[1]);
    const points = engine.runs.map((run, i) => [x(run.rate), value(i)]).filter((p) => p[1] !== undefined).map(([a, v]) => [a, y(v)]);
    marks.push(s("path", { d: "M" + points.map((p) => p.join(" ")).join("L"), class: "line " + tones[e], "stroke-dasharray": ["", "7 4", "2 3", "9 3 2 3"][e] }));
    engine.runs.forEach((run, i) => { if (value(i) !== undefined) marks.push(s("circle", { cx: x(run.rate), cy: y(value(i)),
      r: e === chosen[0] && i === chosen[1] ? 7 : 4, class: tones[e] })); });
  });
  marks.push(s("text", { x: left + 6, y: kind === "goodput" ? y(most) + 14 : y(limit) - 6, class: "soft halo" },
    kind === "goodput" ? "dashed: every request is good" : "your limit"));
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img", "aria-label": `${KINDS[kind][1]} against offered load` }, marks);
}

function render({ state, el }) {
  const oninput = () => draw(), names = state.engines.map((engine, e) => [String(e), engine.name]);
  const ttft = slider({ label: "Limit on TTFT", values: state.ttfts, value: state.ttft, format: (v) => si(v, "s"), oninput });
  const tpot = slider({ label: "Limit on TPOT", values: state.tpots, value: state.tpot, format: (v) => si(v, "s"), oninput });
  const kind = toggle({ label: "Picture", options: [["ttft", "TTFT"], ["tpot", "TPOT"], ["goodput", "goodput"]], value: "ttft", oninput });
  const who = toggle({ label: "Look closer at", options: names, value: "0", oninput: () => { fill(); draw(); } });
  const place = h("div", {}), stage = h("div", {}), table = stats(4), verdict = h("p", { class: "verdict" }), note = h("p", { class: "lead" }), voice = announcer();
  const legend = h("p", { class: "legend" }, state.engines.map((engine, e) => h("span", {}, s("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" },
    s("path", { d: "M0 6H26", class: "line " + tones[e], "stroke-dasharray": ["", "7 4", "2 3", "9 3 2 3"][e] }), s("circle", { cx: 13, cy: 6, r: 4, class: tones[e] })), engine.name)));
  let load;
  const fill = () => {
    const rates = state.engines[who.value].runs.map((run) => run.rate), before = load ? load.value : rates[Math.floor(rates.length / 2)];
    load = slider({ label: "at an offered load of", values: rates, value: rates.includes(before) ? before : rates[0], format: (v) => v + " requests/s", oninput });
    place.replaceChildren(load.row);
  };

  function draw() {
    const found = state.engines.map((engine) => engine.runs.map((run) => judge(run, ttft.value, tpot.value)));
    const e = Number(who.value), engine = state.engines[e], i = engine.runs.findIndex((run) => run.rate === load.value), now = found[e][i];
    stage.replaceChildren(picture(state, kind.value, kind.value === "tpot" ? tpot.value : ttft.value, found, [e, i], stage.clientWidth || 600));
    const two = (pair, k) => (pair ? si(pair[k], "s") : "–");
    table.show([["good", `${share(now.good)} of ${now.sent}`, now.good >= state.enough ? "green" : "orange"], ["goodput", significant(now.goodput) + " /s"],
      ["throughput", significant(now.throughput) + " /s"], ["tokens/s", significant(now.tokens)], ["TTFT p50", two(now.ttft, 0)], ["TTFT p99", two(now.ttft, 1)],
      ["TPOT p50", two(now.tpot, 0)], ["TPOT p99", two(now.tpot, 1)]]);
    const carries = state.engines.map((one) => [one.name, carried(one.runs, ttft.value, tpot.value, state.enough)]);
    const text = `With ${share(state.enough)} of the requests good: ` + carries.map(([name, rate]) => `${name} carries ${rate === null ? "none of these loads" : rate + " a second"}`).join("; ") + ".";
    verdict.textContent = text;
    note.textContent = engine.note;
    voice.say(`${engine.name} at ${load.value} requests per second: ${share(now.good)} good. ${text}`);
  }
  fill();
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead), h("div", { class: "controls" }, ttft.row, tpot.row, kind.row), legend,
    stage, verdict, h("div", { class: "controls closer" }, who.row, place), table.el, note, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; } .limit { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; }
.halo { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.line { fill: none; stroke-width: 2.5; } path.blue { stroke: var(--blue); } path.orange { stroke: var(--orange); } path.green { stroke: var(--green); }
path.purple { stroke: var(--purple); } circle.blue { fill: var(--blue); } circle.orange { fill: var(--orange); } circle.green { fill: var(--green); }
circle.purple { fill: var(--purple); } .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; margin: 0 0 4px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 26px; height: 12px; }
.closer { margin-top: 16px; } .stats + .lead { margin: 12px 0 0; }
`;

export default { title: "Knee explorer", style, render };
