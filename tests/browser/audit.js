// Run inside a page by the browser tests: draws everything, then reports what a reader would trip over.
// Returns { theme, faults: [...] }; an empty list is a good page. A fault may begin with "[rule] ": see not_yet.py.
async ({ theme, first }) => {
  const root = document.documentElement, faults = [], pause = (ms) => new Promise((r) => setTimeout(r, ms));
  const until = async (test, what) => {
    for (let i = 0; i < 200; i++) { if (test()) return; await pause(25); }
    faults.push(what());
  };
  root.dataset.theme = theme;
  root.dataset.mode = theme;
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  const boxes = [...document.querySelectorAll(".plotly-json")];
  if (first) window.dispatchEvent(new Event("beforeprint")); // opens the folds and draws what nobody scrolled to
  const dull = () => boxes.filter((b) => !b.querySelector(".plotly-graph-div[data-ready] .main-svg"));
  await until(() => !dull().length, () => `${dull().length} of ${boxes.length} figures were not drawn`);
  const widgets = [...document.querySelectorAll(".lumen-widget")];
  const idle = () => widgets.filter((w) => !w.shadowRoot || !w.shadowRoot.querySelector("h3, form, svg"));
  await until(() => !idle().length, () => `${idle().length} of ${widgets.length} explorers did not start`);
  const ink = theme === "dark" ? "rgb(206, 214, 221)" : "rgb(34, 40, 50)"; // of plotly-render.js
  const stale = () => boxes.filter((b) => getComputedStyle(b.querySelector(".gtitle") ?? b).fill !== ink && b.querySelector(".gtitle"));
  await until(() => !stale().length, () => `${stale().length} of ${boxes.length} figures did not follow the theme`);
  await pause(30);

  // a label at a point outside its axes, be it by a rounding error, is left out in silence
  for (const plot of first ? document.querySelectorAll(".plotly-graph-div[data-ready]") : []) {
    const wanted = (plot.layout.annotations || []).length, drawn = plot.querySelectorAll(".annotation-text").length;
    if (drawn < wanted) faults.push(`${wanted - drawn} of ${wanted} labels are not drawn: ${plot.layout.title.text}`);
  }

  // words, headings, pictures
  if (first) {
    const math = document.querySelectorAll(".math:not(:has(mjx-container))").length;
    if (math) faults.push(`${math} formulas were not rendered`);
    for (const e of document.querySelectorAll("mjx-merror, [data-mjx-error]")) faults.push("broken formula: " + e.textContent);
    const h1 = [...document.querySelectorAll("h1")].filter((e) => e.checkVisibility()).length; // the theme hides one for printing
    if (h1 !== 1) faults.push(`${h1} h1 headings, want one`);
    for (const img of document.querySelectorAll("article img")) if (!img.getAttribute("alt")) faults.push("no alt text: " + img.src);
    for (const img of document.images) if (img.complete && !img.naturalWidth && img.checkVisibility()) faults.push("image not shown: " + img.src);
    if (document.querySelector(".jupyter-widgets, script[type^='application/vnd.jupyter.widget']")) faults.push("stored widget state");
  }
  const extra = root.scrollWidth - root.clientWidth;
  if (extra > 0) {
    const wide = [...document.querySelectorAll("article *")].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 3);
    faults.push(`page scrolls sideways by ${extra} px: ` + wide.map((e) => `${e.tagName.toLowerCase()}.${e.className}`).join(", "));
  }

  // nothing is cut: no code, output or formula scrolls sideways on a desk, no table on a phone
  for (const e of document.querySelectorAll("article :is(pre, .pst-scrollable-table-container, .cell_output, .output, div.math)")) {
    if (!first || !e.checkVisibility() || e.closest("details.quiet, .tag_setup, .wide")) continue;
    const scrolls = ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1;
    const table = e.matches(".pst-scrollable-table-container");
    if (scrolls && (innerWidth > 1000 || table)) {
      faults.push(`[${table ? "tables_fit" : "nothing_cut"}] ${e.scrollWidth} px in ${e.clientWidth}: "${e.textContent.trim().slice(0, 40)}"`);
    }
  }

  // contrast: text against the first opaque ground behind it
  const parse = (c) => { // "rgb(0, 127, 92)" or, from color-mix, "color(srgb 0 0.5 0.36 / 0.09)"
    const m = c.match(/[\d.]+(e-\d+)?/g).map(Number), [r, g, b, a = 1] = m;
    return c.startsWith("color(") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const up = (e) => e.assignedSlot || e.parentElement || (e.getRootNode() instanceof ShadowRoot ? e.getRootNode().host : null);
  const ground = (e) => {
    const layers = [];
    for (; e; e = up(e)) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3]) layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((below, c) => over(c, below), theme === "dark" ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  // a word in a drawing stands on the last shape that was painted under its middle
  const shape = (e) => {
    if (!(e instanceof SVGTextElement)) return null;
    const { x, y, width, height } = e.getBoundingClientRect(), [cx, cy] = [x + width / 2, y + height / 2];
    let found = null;
    for (const s of e.ownerSVGElement.querySelectorAll("rect, path")) {
      if (!(s.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING)) break;
      const b = s.getBoundingClientRect(), fill = getComputedStyle(s).fill;
      if (fill.startsWith("rgb") && b.left <= cx && cx <= b.right && b.top <= cy && cy <= b.bottom) found = parse(fill);
    }
    return found;
  };
  const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const seen = new Set(), NOTHING = ":not(*)";
  const check = (scope, name, left = NOTHING) => {
    for (const e of scope.querySelectorAll("p, span, dt, dd, h1, h2, h3, a, em, label, legend, summary, button, code, strong, b, li, td, th, text")) {
      if (e.closest(left)) continue;
      const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (!own || !e.checkVisibility() || e.closest(".sr, :disabled, [aria-hidden=true]")) continue;
      const style = getComputedStyle(e), on = shape(e), back = on ? over(on, ground(e)) : ground(e);
      let alpha = 1;
      for (let p = e; p; p = up(p)) alpha *= Number(getComputedStyle(p).opacity);
      const ink = parse(e instanceof SVGElement ? style.fill : style.color);
      const value = contrast(over([...ink.slice(0, 3), ink[3] * alpha], back), back);
      const size = parseFloat(style.fontSize), words = e.textContent.trim().slice(0, 30);
      const key = `${name} ${e.tagName} ${value.toFixed(1)}`;
      if (value < 4.5 && !seen.has(key)) { seen.add(key); faults.push(`contrast ${value.toFixed(2)}: ${name}: "${words}"`); }
      if (size < 12 && left === NOTHING) faults.push(`text of ${size} px: ${name}: "${words}"`);
    }
  };
  // labs and explorers: in the dark no bar or box shines, and no word is cut by its box or leaves its card
  const boxed = (scope, name, card) => {
    for (const e of scope.querySelectorAll("*")) {
      if (!e.checkVisibility() || e.closest(".sr") || e instanceof HTMLScriptElement) continue;
      const style = getComputedStyle(e), box = e.getBoundingClientRect();
      if (theme === "dark" && !(e instanceof SVGElement) && parse(style.backgroundColor)[3] && box.width * box.height > 400
          && light(ground(e)) > 0.55) faults.push(`[labs] light in the dark: ${name}: <${e.localName}> "${e.textContent.trim().slice(0, 30)}"`);
      if (!first) continue;
      const words = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
      if (words && style.overflowX !== "visible" && e.scrollWidth > e.clientWidth + 1 && !e.matches("input, select, pre")) {
        faults.push(`[labs] cut: ${name}: "${e.textContent.trim().slice(0, 40)}"`);
      }
      if (words && box.width && (box.right > card.right + 1 || box.left < card.left - 1)) {
        faults.push(`[labs] outside its card: ${name}: "${e.textContent.trim().slice(0, 40)}"`);
      }
    }
  };
  for (const w of widgets) if (w.shadowRoot) boxed(w.shadowRoot, w.dataset.widget, w.getBoundingClientRect());
  for (const lab of document.querySelectorAll(".lumen-lab")) boxed(lab, "lab", lab.getBoundingClientRect());

  for (const w of widgets) if (w.shadowRoot) check(w.shadowRoot, w.dataset.widget);
  for (const c of document.querySelectorAll(".callout, .lumen-lab")) check(c, c.className);
  check(document.body, "page", ".highlight, .plotly-json, mjx-container, .callout, .lumen-lab, .sr, .headerlink"); // code has its own colours

  // numbers in a heat map stand on its cells: every colour of its scale is a ground
  const cells = (box) => {
    const probe = box.appendChild(document.createElement("i")), found = [];
    for (const trace of box.querySelector(".plotly-graph-div").data) {
      for (const [, colour] of trace.colorscale ?? []) { probe.style.color = colour; found.push(parse(getComputedStyle(probe).color)); }
    }
    probe.remove();
    return found;
  };

  // figures: text of 12 px at least that can be read, nothing cut off at the sides
  for (const box of boxes) {
    const area = box.getBoundingClientRect(), title = box.getAttribute("aria-label").slice(0, 50);
    for (const t of box.querySelectorAll("svg text")) {
      if (!t.textContent.trim() || !t.checkVisibility()) continue;
      const style = getComputedStyle(t), r = t.getBoundingClientRect();
      if (parseFloat(style.fontSize) < 12) faults.push(`text of ${style.fontSize}: ${title}: "${t.textContent}"`);
      const grounds = t.closest(".heatmaplayer") ? cells(box) : [ground(box)];
      if (grounds.some((back) => contrast(parse(style.fill), back) < 4.5)) faults.push(`contrast: ${title}: "${t.textContent}"`);
      if (r.width && (r.left < area.left - 2 || r.right > area.right + 2 || r.top < area.top - 2)) faults.push(`cut off: ${title}: "${t.textContent}"`);
    }
  }
  // figures: no label lies over another one
  for (const box of first ? boxes : []) {
    const title = box.getAttribute("aria-label").slice(0, 50);
    const labels = [...box.querySelectorAll(".annotation-text, .textpoint text, .xtick text, .ytick text, .legendtext")]
      .filter((t) => t.textContent.trim() && t.checkVisibility() && Number(getComputedStyle(t).opacity) > 0)
      .map((t) => [t, t.getBoundingClientRect()]).filter(([, r]) => r.width && r.height < 2.2 * r.width + 40);
    for (let i = 0; i < labels.length; i++) for (let j = 0; j < i; j++) {
      const [[a, r], [b, s]] = [labels[i], labels[j]];
      const wide = Math.min(r.right, s.right) - Math.max(r.left, s.left), high = Math.min(r.bottom, s.bottom) - Math.max(r.top, s.top);
      if (wide > 3 && high > 3 && wide * high > 0.2 * Math.min(r.width * r.height, s.width * s.height)) {
        faults.push(`[figures] "${a.textContent}" lies over "${b.textContent}": ${title}`);
      }
    }
  }
  return { theme, faults: [...new Set(faults)] };
}
