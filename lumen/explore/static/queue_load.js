// One server with places, a load, a freeze: latencies from when requests were due, and from when a tester sent them.
import { h, s, slider, toggle, stats, announcer, si } from "./kit.js";

const SERVICE = 0.1, DRAWN = 300;

export function percentile(values, p) {
  const sorted = Float64Array.from(values).sort(), at = (p / 100) * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// Gaps of a Poisson process with a mean of 1. The twin of `unit_gaps` in queue_load.py (mulberry32).
export function unitGaps(count, seed) {
  const gaps = new Float64Array(count);
  let state = seed, sum = 0;
  for (let i = 0; i < count; i++) {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    gaps[i] = -Math.log(1 - ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32);
    sum += gaps[i];
  }
  return gaps.map((gap) => (gap * count) / sum);
}

export const gapList = (count, seed) => [...unitGaps(count, seed)]; // for the test

// Moments of the server's clock, ascending, with the freezes that began before them added.
function byOurClock(moments, frozen, freeze) {
  let passed = 0;
  return moments.map((moment) => {
    while (passed < frozen.length && frozen[passed] < moment) passed += 1;
    return moment + passed * freeze;
  });
}

function statsOf(values) {
  let sum = 0, slow = 0;
  for (const value of values) { sum += value; slow += value > 2 * SERVICE + 1e-9; }
  return { mean: sum / values.length, p50: percentile(values, 50), p99: percentile(values, 99), slow: slow / values.length };
}

// The twin of `play` in queue_load.py: the queue runs on the server's clock, which stands still in a freeze.
export function play(gaps, load, freeze, places, window) {
  const count = gaps.length, frozen = [];
  const arrivals = new Float64Array(count), begins = new Float64Array(count), ends = new Float64Array(count);
  let now = 0;
  for (let i = 0; i < count; i++) {
    now += (gaps[i] * SERVICE) / load / places;
    let clock = now - freeze * frozen.length;
    if (frozen.length && clock < frozen.at(-1)) clock = frozen.at(-1);
    if (freeze && i % window === Math.floor(window / 2)) frozen.push(clock);
    begins[i] = i >= places ? Math.max(clock, ends[i - places]) : clock;
    arrivals[i] = now;
    ends[i] = begins[i] + SERVICE;
  }
  const answered = byOurClock(ends, frozen, freeze), started = byOurClock(begins, frozen, freeze);
  const due = answered.map((end, i) => end - arrivals[i]);
  const sent = answered.map((end, i) => end - Math.max(arrivals[i], started[i]));
  return { arrivals: [...arrivals], due: [...due], sent: [...sent], stats: { due: statsOf(due), sent: statsOf(sent) } };
}

function picture(run, places, width) {
  const left = 52, right = 14, top = 30, bottom = 40, tall = 250, count = run.arrivals.length;
  const shown = Array.from({ length: DRAWN }, (_, i) => count - (DRAWN - i) * places);
  const begin = run.arrivals[shown[0]], span = run.arrivals[shown.at(-1)] - begin;
  const most = Math.max(0.4, ...shown.map((i) => run.due[i]));
  const x = (time) => left + ((time - begin) / span) * (width - left - right);
  const y = (value) => tall - bottom - (value / most) * (tall - top - bottom);
  const marks = [s("text", { x: 0, y: 14, class: "soft" }, "latency (s)")];
  for (const share of [0, 0.5, 1]) marks.push(s("path", { d: `M${left} ${y(share * most)}H${width - right}`, class: "guide" }),
    s("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end", class: "soft" }, (share * most).toFixed(1)));
  marks.push(s("text", { x: left, y: tall - 8, class: "soft" }, "0 s"),
    s("text", { x: (left + width - right) / 2, y: tall - 8, "text-anchor": "middle", class: "soft" }, "when it was due"),
    s("text", { x: width - right, y: tall - 8, "text-anchor": "end", class: "soft" }, si(span, "s", 2)));
  for (const i of shown) {
    marks.push(s("circle", { cx: x(run.arrivals[i]), cy: y(run.due[i]), r: 3, class: "due" }));
    marks.push(s("circle", { cx: x(run.arrivals[i]), cy: y(run.sent[i]), r: 2.2, class: "sent" }));
  }
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img",
    "aria-label": `Latency of ${DRAWN} requests against the time when they were due, up to ${most.toFixed(1)} seconds` }, marks);
}

function render({ state, el }) {
  const percent = (share) => Math.round(100 * share) + " %";
  let waiting = false;
  const oninput = () => { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; draw(); }); } };
  const load = slider({ label: "Load (share of time busy)", values: state.loads, value: state.load, format: percent, oninput });
  const freeze = slider({ label: "Length of the freeze", values: state.freezes, value: state.freeze, format: (v) => v + " s", oninput });
  const pace = toggle({ label: "Arrivals", options: [["even", "even"], ["random", "random"]], value: state.arrivals, oninput });
  const room = toggle({ label: "Places", options: state.places.map((n) => [String(n), String(n)]), value: String(state.place), oninput });
  const stage = h("div", {}), voice = announcer(), verdict = h("p", { class: "verdict" });
  const rows = [["due", "Measured from when each request was due"], ["sent", "Measured from when the tester sent it"]].map(
    ([who, name]) => ({ who, table: stats(4), name: h("p", { class: "who" }, s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" },
      s("circle", { cx: 6, cy: 6, r: 4, class: who })), name) }));
  let poisson = null;

  function draw() {
    const places = Number(room.value), window = DRAWN * places, count = Math.max(1, Math.floor(state.count / window)) * window;
    poisson ??= unitGaps(state.count, state.seed);
    const gaps = pace.value === "even" ? new Float64Array(count).fill(1) : poisson.subarray(0, count);
    const run = play(gaps, load.value, freeze.value, places, window);
    stage.replaceChildren(picture(run, places, stage.clientWidth || 600));
    for (const { who, table } of rows) {
      const { mean, p50, p99, slow } = run.stats[who];
      table.show([["mean", si(mean, "s")], ["p50", si(p50, "s")], ["p99", si(p99, "s")],
        ["over 0.2 s", (100 * slow).toFixed(1) + " %", who === "due" ? "orange" : "blue"]]);
    }
    const { due, sent } = run.stats, each = window.toLocaleString("en-US");
    const many = (share) => Math.round(share * window).toLocaleString("en-US");
    const eyes = places === 1 ? "The tester who waits for each answer" : `The tester with ${places} connections`;
    const text = due.slow === sent.slow ? `Both count ${many(due.slow)} slow requests in ${each}.`
      : `${eyes} counts ${many(sent.slow)} slow in ${each} requests. Counted from when they were due, there are ${many(due.slow)}.`;
    const drawn = places === 1 ? "300 of them are drawn" : `every ${places === 8 ? "8th" : "64th"} of the last ${each} is drawn`;
    verdict.textContent = `${text} Over ${count.toLocaleString("en-US")} simulated requests; ${drawn}.`;
    voice.say(`${text} p99 ${due.p99.toFixed(2)} seconds against ${sent.p99.toFixed(2)} seconds.`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, load.row, freeze.row, pace.row, room.row), stage, ...rows.flatMap(({ name, table }) => [name, table.el]), verdict, voice.el);
  draw();
  new ResizeObserver(oninput).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; }
.due { fill: var(--orange); } .sent { fill: var(--blue); }
.who { display: flex; align-items: center; gap: 6px; font-size: 14px; margin: 12px 0 0; } .who svg { width: 12px; height: 12px; }
.who + .stats { margin-top: 2px; } .verdict { margin-top: 12px; }
`;

export default { title: "Queue explorer", style, render };
