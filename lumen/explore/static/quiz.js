// Questions with feedback on every answer. Nothing is stored or sent anywhere.
import { h, number } from "./kit.js";

// `code`, **bold** and *emphasis*; everything else is plain text, so no question can inject markup.
export function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\*[^*\s][^*]*\*)/).filter(Boolean).map((part) => {
    if (/^`[^`]+`$/.test(part)) return h("code", {}, part.slice(1, -1));
    if (/^\*\*[^*]+\*\*$/.test(part)) return h("strong", {}, part.slice(2, -2));
    if (/^\*[^*\s][^*]*\*$/.test(part)) return h("em", {}, part.slice(1, -1));
    return part;
  });
}

// What `_folded` in quiz.py packed: the answers do not stand in the page's source for whoever looks at it.
export const unfold = (key) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(key), (c) => c.charCodeAt(0))));

// The verdict on a numeric answer: { ok, why }. `slips` are wrong answers that tell which step went wrong.
export function judge(question, value) {
  if (Math.abs(value - question.answer) <= question.tolerance) return { ok: true, why: question.right };
  const slip = question.slips.find((x) => Math.abs(value - x.answer) <= x.tolerance);
  return { ok: false, why: slip ? slip.why : question.wrong };
}

function card(question, index, count, settled) {
  const out = h("p", { class: "feedback", role: "status", "aria-live": "polite" });
  const form = h("form", { class: "card", novalidate: true });
  const say = (ok, why) => {
    out.className = "feedback " + (ok ? "ok" : "no");
    out.replaceChildren(h("strong", {}, ok ? "✓ Right. " : "✗ Not yet. "), ...inline(why));
    settled(ok);
  };
  const ask = (text) => { out.className = "feedback"; out.textContent = text; };
  let answer;
  if (question.kind === "choice") {
    const name = "a" + Math.random().toString(36).slice(2);
    const inputs = question.choices.map((_, i) => h("input", { type: "radio", name, value: i }));
    form.append(h("fieldset", {}, h("legend", {}, h("span", { class: "count" }, `${index + 1} of ${count}`), h("span", {}, inline(question.question))),
      question.choices.map((c, i) => h("label", { class: "choice" }, inputs[i], h("span", {}, inline(c.text))))));
    answer = () => {
      const picked = question.choices[inputs.findIndex((x) => x.checked)];
      if (picked) say(...unfold(picked.key));
      else ask("Pick one of the answers first.");
    };
  } else {
    const input = h("input", { type: "text", inputmode: "decimal", autocomplete: "off", size: 12 });
    form.append(h("label", { class: "numeric" }, h("span", { class: "legend" }, h("span", { class: "count" }, `${index + 1} of ${count}`),
      h("span", {}, inline(question.question))), h("span", { class: "entry" }, input, " ", question.unit)));
    answer = () => {
      const value = number(input.value, question.unit);
      if (Number.isNaN(value)) ask("Write a number, for example 12.5 or 3e9.");
      else { const verdict = judge(unfold(question.key), value); say(verdict.ok, verdict.why); }
    };
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); answer(); });
  form.append(h("div", { class: "row" }, h("button", { type: "submit" }, "Check"), out));
  return form;
}

function render({ state, el }) {
  const right = new Set(), first = new Set(), tried = new Set();
  const score = h("p", { class: "score", role: "status", "aria-live": "polite" });
  const show = () => {
    const n = state.questions.length;
    score.textContent = !tried.size ? `${n} ${n === 1 ? "question" : "questions"}. Nothing is stored or sent.`
      : `${right.size} of ${n} right, ${first.size} at the first try.` + (right.size === n ? " That is all of them." : "");
  };
  el.append(...state.questions.map((q, i) => card(q, i, state.questions.length, (ok) => {
    if (ok && !tried.has(i)) first.add(i);
    tried.add(i);
    if (ok) right.add(i); else right.delete(i);
    show();
  })), score);
  show();
}

const style = `
.plain { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); } form.card { margin: 0 0 12px; }
fieldset { border: 0; margin: 0; padding: 0; min-width: 0; } fieldset legend, .legend { display: block; width: 100%; padding: 0;
  font-size: 15px; font-weight: 600; color: var(--ink); margin-bottom: 8px; }
.count { display: block; font-size: 13px; font-weight: 400; color: var(--soft); }
.choice { display: flex; gap: 10px; align-items: flex-start; padding: 6px 8px; border-radius: 7px; cursor: pointer; min-height: 36px; }
.choice:hover { background: var(--grid); } .choice input { margin: 4px 0 0; width: 16px; height: 16px; accent-color: var(--blue); flex: none; }
.choice:has(input:checked) { background: var(--bluewash); } .entry { display: flex; align-items: center; gap: 8px; }
.row { display: flex; flex-wrap: wrap; gap: 6px 14px; align-items: center; margin-top: 8px; } .feedback { flex: 1 1 240px; margin: 0; }
.feedback.ok strong { color: var(--green); } .feedback.no strong { color: var(--orange); }
.score { margin: 0; padding: 0 2px; color: var(--ink); } 
`;

export default { title: "Quiz", style, plain: true, render };
