// Draws the plotly figures whose JSON is stored in the page. A classic script, so that it also works from file://.
// Each figure is drawn when it comes near the screen, follows the page's light or dark theme, and is laid out again
// when the column gets narrow: the title is wrapped to the width at hand and fonts shrink to no less than 12 px.
(function () {
  "use strict";
  const MIME = "application/vnd.plotly.v1+json";
  const NARROW = 520; // px of column width
  const TWINS = {
    // dark-on-white colours of lumen/explore/figures/theme.py and their brighter twins for a dark page
    "#0072b2": "#5ab4ee", "#bf4e00": "#f58a4b", "#007f5c": "#2fc49b",
    "#a14b86": "#e394c8", "#866500": "#d9ad33", "#69727d": "#a6b0bb",
  };
  const root = document.documentElement;
  const isDark = () => root.dataset.theme === "dark";
  const ink = () => (isDark() ? "#ced6dd" : "#222832");

  function wrapped(text, size, width) {
    const pen = wrapped.pen || (wrapped.pen = document.createElement("canvas").getContext("2d"));
    pen.font = "600 " + size + "px system-ui, sans-serif";
    const lines = [];
    for (const word of text.replace(/<br>/g, " ").split(" ")) {
      const longer = lines.length ? lines[lines.length - 1] + " " + word : word;
      if (lines.length && pen.measureText(longer.replace(/<[^>]*>/g, "")).width <= width) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  }

  // A reveal without the reader's number (see overlay.py) gets it from the box on the page: one row more.
  function withGuess(box, fig) {
    const wanted = fig.layout.meta;
    if (!wanted || wanted.guess === undefined) return;
    const before = (e) => e.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING;
    const asked = Array.from(document.querySelectorAll(".lumen-guess")).filter(before).reverse();
    const from = asked.find((e) => !wanted.guess || e.dataset.guess === wanted.guess);
    if (!from || !from.dataset.value) return;
    const axis = fig.layout.xaxis, log = axis.type === "log", value = Number(from.dataset.value);
    if (log && value <= 0) return;
    const at = log ? Math.log10(value) : value, pad = 0.15 * (axis.range[1] - axis.range[0]);
    const edge = wanted.whole ? 0 : pad; // a whole axis, 0 to 100 %, grows only for a guess beyond it
    if (at < axis.range[0] + edge || at > axis.range[1] - edge) {
      axis.range = [Math.min(axis.range[0], at - pad), Math.max(axis.range[1], at + pad)];
      if (log && axis.range[1] - axis.range[0] > 2) { // decades in place of ticks that end where the model ends
        delete axis.tickvals; delete axis.ticktext;
        Object.assign(axis, { dtick: 1, exponentformat: "SI" });
      }
    }
    const place = (at - axis.range[0]) / (axis.range[1] - axis.range[0]);
    const grey = isDark() ? TWINS["#69727d"] : "#69727d";
    fig.layout.yaxis.range = [fig.data.length + 0.6, -0.8];
    fig.data.unshift({
      type: "scatter", mode: "markers+text", x: [value], y: ["your guess"], text: [from.dataset.text + " " + wanted.unit],
      textposition: place < 0.3 ? "top right" : place > 0.7 ? "top left" : "top center",
      marker: { color: grey, size: 13, symbol: "circle-open", line: { width: 2.5, color: grey } },
      hovertemplate: "your guess<extra></extra>",
    });
  }

  // The figure as it should look in a box this wide, under the theme of the moment.
  function prepared(box) {
    let text = box.querySelector('script[type="' + MIME + '"]').textContent;
    if (isDark()) text = text.replace(/#[0-9a-f]{6}/gi, (c) => TWINS[c.toLowerCase()] || c);
    const fig = JSON.parse(text);
    withGuess(box, fig);
    const layout = fig.layout;
    const width = box.clientWidth;
    const narrow = width < NARROW;
    layout.autosize = true;
    layout.uirevision = "keep"; // a change of theme keeps what the reader zoomed or switched off
    layout.font = Object.assign({}, layout.font, { color: ink(), size: narrow ? 12 : 13 });
    layout.hoverlabel = Object.assign(
      { bgcolor: isDark() ? "#2a3038" : "#ffffff", bordercolor: "#8a939c" }, layout.hoverlabel);
    layout.hoverlabel.font = { color: ink(), size: 13 };
    if (layout.title && layout.title.text) {
      const size = narrow ? 14 : 16;
      const lines = wrapped(layout.title.text, size, width - 24);
      layout.title.text = lines.join("<br>");
      // plotly hangs one line from its top, several from the baseline of the first
      layout.title.y = 1 - (lines.length > 1 ? 8 + 0.75 * size : 8) / (layout.height || 400);
      layout.title.font = Object.assign({}, layout.title.font, { size: size });
      layout.margin = Object.assign({}, layout.margin, { t: 24 + Math.ceil(1.3 * size) * lines.length });
    }
    if (narrow) {
      layout.margin = Object.assign({}, layout.margin, { l: 44, r: 10 });
      layout.dragmode = false; // a finger that scrolls the page must not draw a zoom box
      for (const a of layout.annotations || []) if (a.font) a.font.size = 12;
    }
    fig.config = Object.assign({}, fig.config, { displayModeBar: false, responsive: false, showSendToCloud: false });
    return fig;
  }

  function draw(box) {
    let gd = box.querySelector(".plotly-graph-div");
    const first = !gd;
    if (first) {
      gd = document.createElement("div");
      gd.className = "plotly-graph-div";
      box.append(gd);
    }
    const fig = prepared(box);
    box.drawnWidth = box.clientWidth;
    const done = first
      ? Plotly.newPlot(gd, fig.data, fig.layout, fig.config).then(() => fig.frames && Plotly.addFrames(gd, fig.frames))
      : Plotly.react(gd, fig.data, fig.layout, fig.config);
    return done.then(() => { gd.dataset.ready = "1"; });
  }

  function start() {
    const boxes = Array.from(document.querySelectorAll(".plotly-json"));
    const drawn = () => boxes.filter((box) => box.querySelector(".plotly-graph-div[data-ready]"));
    const near = new IntersectionObserver((entries) => {
      for (const e of entries) if (e.isIntersecting) { near.unobserve(e.target); draw(e.target).then(() => size.observe(e.target)); }
    }, { rootMargin: "400px" });
    const size = new ResizeObserver((entries) => {
      for (const e of entries) if (e.target.clientWidth && e.target.clientWidth !== e.target.drawnWidth) draw(e.target);
    });
    boxes.forEach((box) => near.observe(box));
    let theme = root.dataset.theme;
    new MutationObserver(() => {
      if (theme !== root.dataset.theme) { theme = root.dataset.theme; drawn().forEach(draw); }
    }).observe(root, { attributes: true, attributeFilter: ["data-theme"] });
    document.addEventListener("lumen-guess", () => {
      drawn().filter((box) => box.textContent.includes('"guess":')).forEach(draw);
    });
    window.addEventListener("beforeprint", () => {
      boxes.filter((box) => !box.querySelector(".plotly-graph-div")).forEach(draw);
    });
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
