// The tab of steps: one query of two mechanisms beside each other, played or stepped.

const STEPS = { left: "standard", right: "gqa", causal: true, text: FACTS.steps.text, query: 5, head: 1, step: 0 };
const PACE = 1800; // ms that a step stays while played
const SIDES = ["left", "right"];
const NOTHING = "none";

const readSteps = () => ({ ...STEPS });

function writeSteps(data) {
  const given = known({ left: "", right: "", causal: false, text: "", query: 0, head: 0, step: 0 }, data);
  const names = FACTS.patterns.mechanisms;
  if (!names[given.left]) delete given.left;
  if (!names[given.right] && given.right !== NOTHING) delete given.right;
  for (const name of ["query", "head", "step"]) if (name in given) given[name] = Math.max(0, Math.floor(given[name]));
  Object.assign(STEPS, given);
  STEPS.step = Math.min(STEPS.step, LAST_STEP);
}

// A page without a program has one form of each mechanism, on one text.

function formOf(mechanism) {
  const forms = Object.keys(FACTS.patterns.mechanisms[mechanism].sketches).map((key) => key.endsWith("causal"));
  const causal = CARRIES || STEPS.causal;
  return forms.includes(causal) ? causal : !causal;
}

function buildSteps(panel) {
  sharedState("steps", readSteps, writeSteps);
  const wrong = notice("steps-error");
  const seen = {};
  const boxes = Object.fromEntries(SIDES.map((side) => [side, partOf(side, element("section", { class: "mechanism", id: `steps-${side}` }))]));
  const pair = element("div", { class: "both" }, SIDES.map((side) => boxes[side]));
  const choices = element("div", { class: "choices" });
  const bar = partOf(SIDES.join(" "), element("div", { class: "player" }));
  let timer = 0;

  const shown = (side) => STEPS[side] !== NOTHING && seen[side];
  const draw = (side) => {
    const answer = shown(side);
    boxes[side].hidden = !answer;
    boxes[side].dataset.mechanism = STEPS[side];
    if (!answer) return;
    const at = { query: STEPS.query, step: STEPS.step, head: Math.min(STEPS.head, answer.numbers.heads.length - 1) };
    const box = boxes[side];
    const svg = stepsSvg(answer, at, Math.max(280, box.clientWidth || 560));
    const words = stepWords(answer, at);
    const heading = `${answer.title}, query ${quoted(answer.tokens[at.query])}, head ${at.head + 1}: ${stepNames(answer)[at.step].toLowerCase()}`;
    svg.setAttribute("aria-label", `${heading}. ${words}`);
    replace(box,
      element("h3", {}, answer.title),
      element("p", { class: "hint" }, `Cache: ${answer.state}. ${answer.notes.join(" ")}`),
      element("p", { class: "words" }, element("strong", {}, `${stepNames(answer)[at.step]}. `), words),
      svg,
      saveTools(() => `${STEPS[side]}-step-${at.step + 1}`, { svg: () => svg, rows: () => stepRows(answer, at), label: heading, picture: side }));
  };
  const drawAll = () => {
    SIDES.forEach(draw);
    announce(SIDES.filter(shown).map((side) => `${seen[side].title}: ${boxes[side].querySelector(".words").textContent}`).join(" "));
    remember("steps");
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    const button = byId("steps-play");
    if (button) button.textContent = "Play";
  };
  const go = (step) => {
    STEPS.step = Math.max(0, Math.min(LAST_STEP, step));
    const radio = bar.querySelectorAll("input")[STEPS.step];
    if (radio) radio.checked = true;
    byId("steps-back").disabled = STEPS.step === 0;
    byId("steps-next").disabled = STEPS.step === LAST_STEP;
    drawAll();
  };
  const play = () => {
    if (timer) return stop();
    byId("steps-play").textContent = "Pause";
    if (STEPS.step === LAST_STEP) go(0);
    timer = setInterval(() => {
      if (panel.hidden || STEPS.step === LAST_STEP) return stop();
      go(STEPS.step + 1);
      if (STEPS.step === LAST_STEP) stop();
    }, PACE);
  };
  const byHand = (step) => {
    stop();
    go(step);
  };
  const controls = () => {
    const answer = shown("left");
    const heads = Math.max(...SIDES.filter(shown).map((side) => seen[side].numbers.heads.length));
    STEPS.query = Math.min(STEPS.query, answer.tokens.length - 1);
    STEPS.head = Math.min(STEPS.head, heads - 1);
    const words = Object.fromEntries(answer.tokens.map((word, n) => [n, word]));
    const numbers = Object.fromEntries(Array.from({ length: heads }, (_, n) => [n, n + 1]));
    replace(choices,
      segments("Query", words, STEPS.query, (n) => { STEPS.query = Number(n); drawAll(); }),
      segments(heads > 4 ? "Map (two make a head)" : "Head", numbers, STEPS.head, (n) => { STEPS.head = Number(n); drawAll(); }));
    const names = Object.fromEntries(stepNames(answer).map((name, n) => [n, name]));
    const button = (id, name, act, kind) => element("button", { type: "button", id, class: kind, on: { click: act } }, name);
    replace(bar,
      button("steps-play", "Play", play, "main-action"),
      button("steps-back", "Back", () => byHand(STEPS.step - 1)),
      button("steps-next", "Next", () => byHand(STEPS.step + 1)),
      segments("Step", names, STEPS.step, (n) => byHand(Number(n))));
    go(STEPS.step);
  };
  const refuse = (error) => {
    stop();
    tell(wrong, error);
    stale(pair, error);
  };
  const asking = Object.fromEntries(SIDES.map((side) => [side, latest((answer) => {
    seen[side] = answer;
    if (!seen.left || (STEPS.right !== NOTHING && !seen.right)) return;
    refuse(null);
    controls();
  }, refuse)]));
  const show = () => {
    for (const side of SIDES) {
      const mechanism = STEPS[side];
      if (mechanism === NOTHING) controls();
      else asking[side]("steps", { mechanism, causal: formOf(mechanism), text: STEPS.text });
    }
  };
  const names = Object.fromEntries(Object.entries(FACTS.patterns.mechanisms).map(([name, { title }]) => [name, title]));
  const text = element("input", { type: "text", id: "steps-text", autocomplete: "off", on: { input: later(() => {
    STEPS.text = text.value.trim().split(/\s+/).join(" ");
    show();
  }, 250) } });
  text.value = STEPS.text;
  panel.append(element("div", { class: "main" },
    partOf(SIDES.join(" "), element("h2", {}, "One query, step by step")),
    element("div", { class: "asks" },
      choiceField("Mechanism", names, STEPS.left, (name) => { STEPS.left = name; show(); }, { id: "steps-mechanism" }),
      choiceField("Compare with", { [NOTHING]: "nothing", ...names }, STEPS.right, (name) => { STEPS.right = name; show(); }, { id: "steps-beside" }),
      !CARRIES && labelled("Tokens", text, `${FACTS.steps.fewest} to ${FACTS.steps.most} words`),
      !CARRIES && switchField("Causal", STEPS.causal, (on) => { STEPS.causal = on; show(); }, { id: "steps-causal" })),
    choices, bar, wrong, pair,
    element("p", { class: "hint" }, "Real numbers of one untrained layer, 16 wide with 4 heads, in float64. Both mechanisms read the same embeddings; equal words have equal ones, and maps with the same name and shape are the same.")));
  let width = pair.clientWidth; // a picture depends on nothing else of the room there is
  new ResizeObserver(later(() => {
    if (pair.clientWidth === width) return;
    width = pair.clientWidth;
    SIDES.forEach(draw);
  }, 60)).observe(pair);
  show();
}

// The picture's numbers as a table, a row for each key.
function stepRows(answer, at) {
  const { keys, values, labels, allowed, scores, weights } = numbersAt(answer, at.head, at.query);
  const titles = (name, row) => row.map((_, n) => `${name} ${n + 1}`);
  return [
    ["token", ...titles("key", keys[0]), ...(scores ? ["score"] : []), "allowed", "weight", ...titles("value", values[0])],
    ...labels.map((label, n) => [label, ...keys[n], ...(scores ? [scores[n]] : []), Number(allowed[n]), weights[n], ...values[n]]),
  ];
}

tab("steps", "Steps", buildSteps);
