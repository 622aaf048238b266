// Batching timelines: one row a slot, time to the right. Runs come from Python's scheduler; this file draws them.
import { h, s, slider, toggle, stats, announcer, si, integer } from "./kit.js";

const many = (pairs) => pairs.flatMap(([value, count]) => Array(count).fill(value));

// The inverse of `packed` in timelines.py: steps as [start, end] in seconds, spans with the prompt tokens of each step.
export function unpack(run, tick) {
  const steps = [];
  let at = 0;
  for (const [idle, length, count] of run.steps) for (let i = 0; i < count; i += 1) {
    steps.push([(at + idle) * tick, (at + idle + length) * tick]);
    at += idle + length;
  }
  const spans = run.spans.map(([slot, job, first, ...counts]) => ({ slot, job, first, counts: many(counts) }));
  const [utilisation, ttft, rate, gap] = run.stats;
  return { steps, spans, end: at * tick, utilisation, ttft, rate, gap };
}

// What had happened when `count` steps were over, as `Run` in timelines.py counts it at the end: slots in use (share of the
// time), tokens, longest gap in an answer, and each job's first token (seconds after its arrival, undefined before it).
export function soFar(run, jobs, slots, count) {
  const now = count ? run.steps[count - 1][1] : 0, read = jobs.map(() => 0), last = [], first = [];
  let used = 0, tokens = 0, gap = 0;
  const cells = run.spans.flatMap(({ job, first, counts }) => counts.map((of, i) => [first + i, job, of])).filter(([step]) => step < count);
  for (const [step, job, of] of cells.sort((a, b) => a[0] - b[0])) {
    const [start, end] = run.steps[step];
    used += end - start;
    read[job] += of;
    if (of && read[job] < jobs[job][1]) continue;
    tokens += 1;
    if (last[job] === undefined) first[job] = end - jobs[job][0];
    else gap = Math.max(gap, end - last[job]);
    last[job] = end;
  }
  return { now, tokens, gap, first, used: now ? used / (slots * now) : 0, rate: now ? tokens / now : 0 };
}

// Seconds from which a step is slow: three times the median. A token that waits for such a step is drawn hollow.
export function slowFrom(run) {
  const lengths = run.steps.map(([start, end]) => end - start).sort((a, b) => a - b);
  return 3 * lengths[lengths.length >> 1];
}

// Who arrived and was not yet computed: [time, how many from then on].
export function waiting(run, jobs) {
  const begun = new Map();
  for (const { job, first } of run.spans) begun.set(job, Math.min(first, begun.get(job) ?? first));
  const changes = jobs.map(([arrival]) => [arrival, 1]);
  for (const first of begun.values()) changes.push([run.steps[first][0], -1]);
  changes.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
  let count = 0;
  return changes.map(([time, change]) => [time, (count += change)]);
}

const ROW = 26, GAP = 5, LEFT = 58, TOP = 54, QUEUE = 26;

// A round number of seconds between two ticks, for about four of them.
const spacing = (longest) => [0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50].find((step) => longest / step < 5) || longest / 4;

function picture(run, jobs, slots, longest, crowd, at, width) {
  const slow = slowFrom(run), right = 10, low = TOP + slots * (ROW + GAP), tall = low + 38;
  const x = (time) => LEFT + (time / longest) * (width - LEFT - right);
  const box = (a, b, y, tall) => `M${a.toFixed(1)} ${y}H${b.toFixed(1)}v${tall}H${a.toFixed(1)}Z`;
  const marks = [s("defs", {}, s("pattern", { id: "idle", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { width: 1.4, height: 6, class: "hatch" })))];
  for (let slot = 0; slot < slots; slot += 1) {
    const y = TOP + slot * (ROW + GAP);
    marks.push(s("text", { x: LEFT - 8, y: y + 18, "text-anchor": "end", class: "soft" }, `slot ${slot + 1}`),
      s("rect", { x: LEFT, y, width: Math.max(0, x(run.end) - LEFT), height: ROW, class: "free" }));
  }
  for (const { slot, job, first, counts } of run.spans) {
    const y = TOP + slot * (ROW + GAP), paths = { prompt: "", answer: "", slow: "" };
    let best = { width: 0 }, stretch = null;
    counts.forEach((tokens, i) => {
      const [start, end] = run.steps[first + i], a = x(start), b = x(end);
      const kind = tokens ? "prompt" : end - start > slow ? "slow" : "answer";
      // a hair between two steps where there is room for one
      paths[kind] += box(a, b - a > 4 ? b - 1 : b, tokens ? y : y + 4, tokens ? ROW : ROW - 8);
      if (stretch?.kind !== kind) stretch = { kind, from: a };
      if (b - stretch.from > best.width) best = { ...stretch, width: b - stretch.from };
    });
    const name = `request ${job + 1}: ${integer(jobs[job][1])} tokens of prompt, ${jobs[job][2]} of answer`;
    const group = s("g", {}, s("title", {}, name));
    for (const kind of ["answer", "slow", "prompt"]) if (paths[kind]) group.append(s("path", { d: paths[kind], class: kind }));
    if (best.width > (job > 8 ? 22 : 14)) group.append(s("text", { x: best.from + best.width / 2, y: y + 18, "text-anchor": "middle",
      class: "number " + best.kind + "-text" }, String(job + 1)));
    group.append(s("path", { d: `M${x(run.steps[first][0]).toFixed(1)} ${y}v${ROW}`, class: "edge" }));
    marks.push(group);
  }
  const queue = waiting(run, jobs), most = Math.max(1, ...queue.map(([, count]) => count)), floor = TOP - 8;
  let line = `M${x(0)} ${floor}`, before = 0;
  for (const [time, count] of queue) {
    line += `H${x(time).toFixed(1)}V${(floor - (count / crowd) * QUEUE).toFixed(1)}`;
    before = count;
  }
  marks.push(s("path", { d: line + (before ? "" : `V${floor}`) + "Z", class: "queue" }),
    s("text", { x: LEFT - 8, y: floor, "text-anchor": "end", class: "soft" }, "waiting"));
  const peak = queue.find(([, count]) => count === most);
  marks.push(s("text", { x: x(peak[0]), y: floor - (most / crowd) * QUEUE - 4, class: "soft" }, `${most}`));
  const now = at ? run.steps[at - 1][1] : 0;
  if (at < run.steps.length) marks.push(
    s("rect", { x: x(now), y: 0, width: width - x(now), height: low - GAP + 1, class: "future" }),
    s("path", { d: `M${x(now)} 6V${low}`, class: "now" }));
  const apart = spacing(longest);
  for (let time = 0; time <= longest + 1e-9; time += apart) marks.push(s("path", { d: `M${x(time)} ${low}v5`, class: "guide" }),
    s("text", { x: x(time), y: low + 19, "text-anchor": time ? (longest - time < apart / 4 ? "end" : "middle") : "start", class: "soft" }, `${Number(time.toFixed(2))}`));
  marks.push(s("text", { x: (LEFT + width - right) / 2, y: low + 35, "text-anchor": "middle", class: "soft" }, "time (s)"));
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img",
    "aria-label": `${slots} slots over ${run.end.toFixed(2)} seconds; ${Math.round(100 * run.utilisation)} % of their time is used` }, marks);
}

function render({ state, el }) {
  const all = {};
  for (const [name, run] of Object.entries(state.runs)) all[name] = unpack(run, state.tick);
  const hollow = Object.values(all).some((run) => run.steps.some(([start, end]) => end - start > slowFrom(run)));
  let at = Infinity, timer;
  const reset = () => { stop(); at = Infinity; draw(); };
  const policy = toggle({ label: "Policy", options: state.policies.map((name) => [name, name]), value: state.policy, oninput: reset });
  const slots = slider({ label: "Slots", values: state.slots, value: state.slot, oninput: reset });
  const budget = slider({ label: "Tokens a step at most", values: state.budgets, value: state.budget, oninput: reset,
    format: (value) => (policy.value === "chunked" ? integer(value) : "no limit") });
  const scrub = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => { stop(); at = Number(scrub.value); draw(); } });
  const go = (to) => () => { stop(); at = to(); draw(); };
  const start = h("button", { type: "button", onclick: go(() => 0) }, "Start");
  const back = h("button", { type: "button", onclick: go(() => at - 1) }, "Back");
  const next = h("button", { type: "button", onclick: go(() => at + 1) }, "Next step");
  const play = h("button", { type: "button", class: "first", onclick: () => (timer ? stop() : run()) }, "Play");
  const stage = h("div", { class: "stage" }), where = h("p", { class: "where" }), table = stats(4);
  const verdict = h("p", { class: "verdict" }), voice = announcer(), heading = h("h3", {});
  const legend = h("p", { class: "legend" }, [["prompt", "piece of a prompt"], ["answer", "token of an answer"], ...(hollow ? [["slow", "token in a slow step"]] : []), ["free", "idle slot"]].map(([kind, text]) =>
    h("span", {}, h("i", { class: "swatch " + kind }), text)));

  const keyOf = (kind) => `${kind} ${slots.value}` + (kind === "chunked" ? ` ${budget.value}` : "");
  function stop() { clearInterval(timer); timer = undefined; play.textContent = "Play"; }
  function run() {
    const { steps, end } = all[keyOf(policy.value)];
    if (at >= steps.length) at = 0;
    let time = at ? steps[at - 1][1] : 0;
    play.textContent = "Pause";
    timer = setInterval(() => { // ten seconds, whatever the run takes
      if (!stage.isConnected) return stop();
      time += end / 200;
      while (at < steps.length && steps[at][1] <= time) at += 1;
      if (at >= steps.length) stop();
      draw();
    }, 50);
  }
  function told(shown, step) {
    if (!step) return "Nothing has been computed yet.";
    const [from, until] = shown.steps[step - 1], inStep = shown.spans.filter(({ first, counts }) => first < step && step <= first + counts.length);
    const counts = inStep.map(({ first, counts }) => counts[step - 1 - first]);
    const prompt = counts.reduce((a, b) => a + b, 0), answers = counts.filter((count) => !count).length;
    const queue = waiting(shown, state.jobs).filter(([time]) => time <= from + 1e-9).at(-1)?.[1] ?? 0;
    const parts = [answers ? `${answers} token${answers > 1 ? "s" : ""} of answers` : "", prompt ? `${integer(prompt)} of prompts` : ""].filter(Boolean);
    return `${parts.join(" and ")} in ${si(until - from, "s")}; ${slots.value - inStep.length} of ${slots.value} slots idle, ${queue} waiting.`;
  }
  function draw() {
    const shown = all[keyOf(policy.value)], steps = shown.steps.length;
    at = Math.max(0, Math.min(at, steps));
    const same = Object.keys(all).filter((name) => name.split(" ")[1] === String(slots.value));
    const longest = Math.max(...same.map((name) => all[name].end));
    const crowd = Math.max(6, ...same.flatMap((name) => waiting(all[name], state.jobs).map(([, count]) => count)));
    stage.replaceChildren(picture(shown, state.jobs, slots.value, longest, crowd, at, stage.clientWidth || 640));
    scrub.max = steps;
    scrub.value = at;
    scrub.setAttribute("aria-valuetext", `step ${at} of ${steps}`);
    where.replaceChildren(h("b", {}, `Step ${at} of ${steps}. `), told(shown, at));
    const sofar = soFar(shown, state.jobs, slots.value, at), begun = sofar.first.filter((time) => time !== undefined);
    if (at === steps) Object.assign(sofar, { gap: shown.gap, used: shown.utilisation, rate: shown.rate }); // counted before rounding
    const watched = state.watched, none = "none yet";
    const mean = at === steps ? shown.ttft : begun.length && begun.reduce((a, b) => a + b, 0) / begun.length;
    const own = watched === null ? mean : sofar.first[watched];
    const whose = watched === null ? "mean TTFT" : `TTFT of the ${integer(state.jobs[watched][1])}`;
    table.show([["tokens/s", at ? integer(sofar.rate) : none], ["slots in use", at ? Math.round(100 * sofar.used) + " %" : none],
      [whose, own ? si(own, "s") : none], ["longest gap in an answer", sofar.gap ? si(sofar.gap, "s") : none]]);
    heading.textContent = state.title.replace("{slots}", slots.value);
    const first = state.policies[0], base = all[keyOf(first)];
    const text = policy.value === first ? `All ${state.jobs.length} requests are done after ${shown.end.toFixed(2)} s.`
      : `All ${state.jobs.length} requests are done after ${shown.end.toFixed(2)} s; ${first} takes ${base.end.toFixed(2)} s with as many slots.`;
    verdict.textContent = text;
    back.disabled = start.disabled = at === 0;
    next.disabled = at === steps;
    budget.row.classList.toggle("off", policy.value !== "chunked");
    const input = budget.row.querySelector("input");
    input.disabled = policy.value !== "chunked";
    budget.row.querySelector(".value").textContent = input.disabled ? "no limit" : integer(budget.value);
    if (!timer) voice.say(`${text} Slots in use ${Math.round(100 * shown.utilisation)} %. ${where.textContent}`);
  }
  el.append(heading, h("p", { class: "lead" }, state.lead), policy.row,
    h("div", { class: "controls pair" }, slots.row, budget.row), stage, legend,
    h("label", { class: "control scrub" }, h("span", { class: "name" }, "Step"), scrub), h("div", { class: "buttons" }, play, back, next, start),
    where, table.el, verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.stage { margin-top: 6px; overflow: hidden; } .pair { margin-top: 10px; } .off input { opacity: .45; }
.guide { stroke: var(--line); fill: none; } .hatch { fill: var(--line); } .free { fill: url(#idle); stroke: var(--line); }
.prompt { fill: var(--orange); } .answer { fill: var(--blue); } .slow { fill: var(--bluewash); stroke: var(--blue); } .edge { stroke: var(--card); stroke-width: 1.2; }
svg .number { fill: var(--on); font-weight: 600; } svg .slow-text { fill: var(--ink); } .queue { fill: var(--grid); stroke: var(--soft); stroke-linejoin: round; }
.future { fill: var(--card); opacity: .86; } .now { stroke: var(--ink); stroke-width: 1.5; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 6px 0 8px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.swatch { width: 22px; height: 14px; display: inline-block; border: 1px solid transparent; }
.swatch.prompt { background: var(--orange); } .swatch.answer { background: var(--blue); height: 9px; }
.swatch.slow { background: var(--bluewash); border-color: var(--blue); height: 10px; }
.swatch.free { border-color: var(--line); background: repeating-linear-gradient(45deg, var(--line) 0 1.4px, transparent 1.4px 5px); }
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin: 4px 0 10px; } .where { min-height: 3em; margin: 0; }
`;

export default { title: "Batching timelines", style, render };
