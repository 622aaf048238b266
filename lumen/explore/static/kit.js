// What the explorers share: elements, controls, number formats, light and dark. Inlined before each module.

export function h(tag, attrs, ...children) {
  const el = document.createElement(tag);
  for (const [key, value] of Object.entries(attrs || {})) {
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (value === true) el.setAttribute(key, "");
    else if (value !== false && value != null) el.setAttribute(key, value);
  }
  el.append(...children.flat().filter((c) => c != null));
  return el;
}

export function s(tag, attrs, ...children) {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attrs || {})) if (value != null) el.setAttribute(key, value);
  el.append(...children.flat());
  return el;
}

export const significant = (x, digits = 3) => {
  if (!isFinite(x)) return "∞";
  if (x === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(x))));
  return Number(x.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: Math.min(places, 12) });
};
export const integer = (x) => Math.round(x).toLocaleString("en-US");

// 12.3 TFLOP/s, 4.5 ms: decimal prefixes, for rates and times.
export function si(x, unit, digits = 3) {
  if (x === 0 || !isFinite(x)) return significant(x) + " " + unit;
  const steps = ["n", "µ", "m", "", "k", "M", "G", "T", "P"];
  const rounded = Number(x.toPrecision(digits));
  const i = Math.min(8, Math.max(0, 3 + Math.floor(Math.log10(Math.abs(rounded)) / 3 + 1e-9)));
  return significant(rounded / 1000 ** (i - 3), digits) + " " + steps[i] + unit;
}

// 22.5 KiB, 1.25 GiB: binary prefixes, for memory that we count.
export function bytes(x, digits = 3) {
  const steps = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let i = 0;
  while (i < 5 && Math.abs(x) >= 1024) { x /= 1024; i += 1; }
  return significant(x, digits) + " " + steps[i];
}

// "39.4", "39,4", "1,024", "1e3", "12 ms": a number, or NaN. A comma is a decimal comma unless three digits follow it.
// The twin of `number` in guesses.py.
export function number(text, unit) {
  let rest = text.trim().replace(/−/g, "-");
  if (unit && rest.toLowerCase().endsWith(unit.toLowerCase())) rest = rest.slice(0, -unit.length).trim();
  rest = rest.replace(/[\s_](?=\d{3}(?!\d))/g, "");
  if (/^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?(e[-+]?\d+)?$/i.test(rest)) rest = rest.replace(/,/g, "");
  else if (rest.split(",").length === 2 && !rest.includes(".")) rest = rest.replace(",", ".");
  return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(rest) && isFinite(rest) ? Number(rest) : NaN;
}

// A range input over a list of values: { row, get value, set index }. The value is written beside the label.
export function slider({ label, values, value, format = integer, oninput }) {
  const at = Math.max(0, values.indexOf(value));
  const out = h("span", { class: "value" });
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: at, "aria-label": label });
  const show = () => {
    out.textContent = format(values[input.value]);
    input.setAttribute("aria-valuetext", out.textContent);
  };
  input.addEventListener("input", () => { show(); oninput(); });
  show();
  return { row: h("label", { class: "control" }, h("span", { class: "name" }, label, out), input),
           get value() { return values[input.value]; } };
}

// A row of radio buttons that looks like one switch.
export function toggle({ label, options, value, oninput }) {
  const name = "t" + Math.random().toString(36).slice(2);
  let now = value;
  const row = h("fieldset", { class: "control toggle" }, h("legend", {}, label),
    h("div", { class: "options" }, options.map(([key, text]) => h("label", {},
      h("input", { type: "radio", name, value: key, checked: key === value, onchange: () => { now = key; oninput(); } }),
      h("span", {}, text)))));
  return { row, get value() { return now; } };
}

export function select({ label, options, value, oninput }) {
  const input = h("select", { onchange: () => oninput() },
    options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
  return { row: h("label", { class: "control" }, h("span", { class: "name" }, label), input),
           get value() { return input.value; } };
}

// A polite live region that waits until the reader's hand rests.
export function announcer() {
  let timer;
  const el = h("p", { class: "sr", "aria-live": "polite" });
  return { el, say(text) { clearTimeout(timer); timer = setTimeout(() => { el.textContent = text; }, 300); } };
}

// Numbers in a row: show([["time per step", "7.0 ms", "accent"], …]).
export function stats(columns = 4) {
  const el = h("dl", { class: "stats", style: `--columns: ${columns}` });
  return { el, show(items) {
    el.replaceChildren(...items.map(([name, value, tone]) =>
      h("div", { class: tone || "" }, h("dt", {}, name), h("dd", {}, value))));
  } };
}

export const STYLE = `
:host { all: initial; display: block; color-scheme: light;
  --page: #ffffff; --card: #f7f9fb; --ink: #1f262d; --soft: #55606b; --line: #d3dae1; --grid: #e4e9ee;
  --blue: #0067a3; --orange: #b84700; --green: #00714f; --purple: #94407a; --ochre: #7a5c00; --on: #ffffff;
  --bluewash: #dcecf8; --orangewash: #fbe5d6; --greenwash: #d9f1e8; }
:host([data-dark]) { color-scheme: dark;
  --page: #14181e; --card: #1c222a; --ink: #e3e8ed; --soft: #a9b4bf; --line: #3b4550; --grid: #2b333d;
  --blue: #6abcf2; --orange: #f79a62; --green: #45cfa6; --purple: #e7a0ce; --ochre: #dfb74a; --on: #10151a;
  --bluewash: #16344a; --orangewash: #47291a; --greenwash: #133c31; }
* { box-sizing: border-box; }
.card { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; max-width: 860px; }
h3 { font-size: 16px; line-height: 1.3; margin: 0 0 2px; }
p { margin: 0 0 10px; } .lead { color: var(--soft); font-size: 14px; margin-bottom: 12px; }
code { font: .92em/1.4 ui-monospace, Menlo, Consolas, monospace; background: var(--grid); border-radius: 4px; padding: 1px 4px; }
.controls { display: grid; grid-template-columns: repeat(auto-fit, minmax(230px, 1fr)); gap: 10px 24px; margin: 0 0 12px; }
.control { display: block; border: 0; margin: 0; padding: 0; min-width: 0; }
.name, legend { display: flex; justify-content: space-between; gap: 8px; width: 100%; font-size: 14px; color: var(--soft); padding: 0; }
.name .value { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
input[type=range] { width: 100%; height: 24px; margin: 0; accent-color: var(--blue); cursor: pointer; }
select, button, input[type=text] { font: inherit; color: var(--ink); background: var(--page); border: 1px solid var(--line);
  border-radius: 7px; padding: 5px 10px; min-height: 36px; }
select { width: 100%; }
button { cursor: pointer; padding: 5px 14px; } button:hover:not(:disabled) { border-color: var(--blue); }
button.first { background: var(--blue); border-color: var(--blue); color: var(--on); font-weight: 600; }
button:disabled { opacity: .45; cursor: default; }
.options { display: flex; flex-wrap: wrap; gap: 4px; margin-top: 2px; }
.options label { position: relative; flex: 1 1 auto; }
.options input { position: absolute; inset: 0; opacity: 0; margin: 0; cursor: pointer; width: 100%; height: 100%; }
.options span { display: block; text-align: center; border: 1px solid var(--line); border-radius: 7px; padding: 3px 10px;
  background: var(--page); font-size: 14px; white-space: nowrap; }
.options input:checked + span { background: var(--bluewash); border-color: var(--blue); font-weight: 600; }
:is(input, select, button, a):focus-visible, .options input:focus-visible + span { outline: 3px solid var(--blue); outline-offset: 2px; }
.stats { display: grid; grid-template-columns: repeat(var(--columns), 1fr); gap: 10px 18px; margin: 12px 0 0; align-items: end; }
.stats dt { color: var(--soft); font-size: 13px; line-height: 1.35; } .stats dd { margin: 0; font-size: 18px; font-weight: 600;
  font-variant-numeric: tabular-nums; line-height: 1.35; }
.stats .blue dd { color: var(--blue); } .stats .orange dd { color: var(--orange); } .stats .green dd { color: var(--green); }
.verdict { margin: 12px 0 0; } svg { display: block; width: 100%; overflow: visible; }
svg text { font: 13px system-ui, sans-serif; fill: var(--ink); } svg .soft { fill: var(--soft); }
.sr { position: absolute; width: 1px; height: 1px; margin: -1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 480px) { .card { padding: 14px 12px; } .stats { grid-template-columns: 1fr 1fr; } .stats dd { font-size: 17px; } }
`;

// Is the page around us dark? The book says so in data-theme, Jupyter and VS Code on the body, Colab on the root.
export function isDark() {
  const root = document.documentElement, body = document.body;
  if (root.dataset.theme) return root.dataset.theme === "dark";
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind) return /dark|high-contrast$/.test(body.dataset.vscodeThemeKind);
  if (root.getAttribute("theme")) return root.getAttribute("theme") === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function mount(id, widget, state) {
  for (const host of document.querySelectorAll(`[id="${id}"]:not([data-ready])`)) {
    host.dataset.ready = "1";
    const root = host.attachShadow({ mode: "open" });
    const el = h("section", { class: widget.plain ? "plain" : "card", "aria-label": widget.title });
    root.append(h("style", {}, STYLE + (widget.style || "")), el);
    const follow = () => host.toggleAttribute("data-dark", isDark());
    const watch = new MutationObserver(follow);
    for (const target of [document.documentElement, document.body]) watch.observe(target, { attributes: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow);
    follow();
    widget.render({ state, el });
  }
}
