// The tab of the adviser: a form, and its ranked answer.

const ADVICE = { task: "lm", length: 4096, memory: "2 GiB", latency: "", quality: "1", model: "", minutes: 1, recall: false };
const TASKS = { lm: "write text", classify: "classify text", image: "classify images", translate: "translate" };

const readAdvice = () => ({ ...ADVICE });
const writeAdvice = (data) => {
  const given = known(ADVICE, data);
  if (!TASKS[given.task]) delete given.task;
  Object.assign(ADVICE, given);
};

function buildAdvise(panel) {
  sharedState("advise", readAdvice, writeAdvice);
  const wrong = notice("advise-error");
  const shown = element("div", { id: "advice" });
  const button = element("button", { type: "submit", class: "main-action", id: "advise" }, "Ask");
  const answer = latest((advice) => {
    button.disabled = false;
    tell(wrong, null);
    replace(shown, adviceView(advice));
    announce(advice.sentence);
  }, (error) => {
    button.disabled = false;
    replace(shown);
    tell(wrong, error);
  });
  const text = (name, label, hint) => {
    const input = element("input", { type: "text", id: `advise-${name}`, autocomplete: "off", on: { input: () => { ADVICE[name] = input.value; } } });
    input.value = ADVICE[name];
    return labelled(label, input, hint);
  };
  const form = element("form", { on: { submit: (event) => {
    event.preventDefault();
    try {
      const request = adviceRequest();
      button.disabled = true;
      tell(wrong, null);
      replace(shown, element("p", { class: "hint" }, `Measuring on this machine, up to ${ADVICE.minutes} minutes …`));
      answer("advise", request);
    } catch (error) {
      tell(wrong, error);
    }
  } } },
    choiceField("What for", TASKS, ADVICE.task, (task) => { ADVICE.task = task; }, { id: "advise-task" }),
    numberField("Length, tokens", ADVICE.length, (n) => { ADVICE.length = n; }, { min: 1, id: "advise-length" }),
    text("memory", "Memory", "such as 2 GiB; empty = this machine's"),
    text("latency", "Milliseconds of a token, at most", "empty = any"),
    text("quality", "Points of quality to lose, at most", "percent"),
    text("model", "Size of the model", "such as 110m; empty = a usual one"),
    switchField("Has to look things up in its input", ADVICE.recall, (yes) => { ADVICE.recall = yes; }, { id: "advise-recall", hint: "of what writes text" }),
    numberField("Minutes to measure", ADVICE.minutes, (n) => { ADVICE.minutes = n; }, { min: 1, id: "advise-minutes" }),
    button);
  form.addEventListener("input", () => remember("advise"));
  panel.append(element("div", { class: "columns" },
    element("aside", { "aria-label": "Question" }, element("h2", {}, "What is enough?"), form),
    element("div", { class: "main" }, element("h2", {}, "Advice"), wrong, shown,
      element("p", { class: "hint" }, "Compositions that are legal are ruled out by cost, then measured in turn on this machine. What was not measured is said to be."))));
}

function adviceRequest() {
  const number = (words, name) => {
    if (!words.trim()) return null;
    if (!(Number(words) > 0)) throw new Error(`${name} "${words}" is no number above 0.`);
    return Number(words);
  };
  if (!(ADVICE.length >= 1) || !(ADVICE.minutes >= 1)) throw new Error("Give a length and minutes of at least 1.");
  const latency = number(ADVICE.latency, "latency");
  const quality = number(ADVICE.quality, "quality");
  return {
    task: ADVICE.task,
    length: ADVICE.length,
    memory: readBytes(ADVICE.memory),
    latency: latency === null ? null : latency / 1000,
    quality: quality === null ? null : quality / 100,
    model: ADVICE.model.trim() || null,
    minutes: ADVICE.minutes,
    recall: (ADVICE.task === "lm" && ADVICE.recall) || null,
  };
}

function adviceView(advice) {
  const code = (title, lines) =>
    lines.length && [
      element("h3", {}, title),
      element("div", { class: "code" }, element("pre", { tabindex: 0 }, lines.join("\n")), copyButton(() => lines.join("\n"))),
    ];
  return [
    element("p", { class: `verdict ${advice.known ? "suffices" : "undecided"}` }, advice.sentence),
    advice.trial && code("The comparison that would decide", [advice.trial.command]),
    advice.notes.length > 0 && element("ul", {}, advice.notes.map((note) => element("li", {}, note))),
    element("h3", {}, `Measured with ${advice.model}, ${whole(advice.length)} tokens, on ${advice.device}`),
    adviceTable(advice),
    code("Python", advice.python),
    code("Command line", advice.cli),
  ];
}

const milliseconds = (seconds) => `${Number((1000 * seconds).toPrecision(3))} ms`;

function adviceTable(advice) {
  const columns = ["Place", "Composition", `A ${advice.unit}`, "Against standard", "Needs"];
  const cells = (place) => [
    element("td", {}, place.rank === null ? "–" : String(place.rank)),
    element("th", { scope: "row", class: "text" }, place.name,
      element("small", {}, place.status === "measured" ? place.reason : `${place.status}: ${place.reason}`),
      element("small", {}, `Quality: ${place.evidence_told || "none"}`)),
    element("td", {}, place.seconds ? milliseconds(place.seconds.median) : "not measured"),
    element("td", {}, place.ratio ? [`${place.ratio.median.toFixed(2)}×`, element("small", {}, `${place.ratio.low.toFixed(2)} to ${place.ratio.high.toFixed(2)}`)] : "–"),
    element("td", {}, place.needs ? bytes(adviceNeeds(place.needs)) : "–"),
  ];
  const table = (places, id, label) => element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    element("table", { id, class: "advice" },
      element("thead", {}, element("tr", {}, columns.map((name, at) => element("th", { scope: "col", class: at === 1 ? "text" : null }, name)))),
      element("tbody", {}, places.map((place) => element("tr", { class: place.name === advice.winner ? "winner" : null }, cells(place))))));
  const [measured, others] = [true, false].map((wanted) => advice.places.filter((place) => Boolean(place.seconds) === wanted));
  return [
    table(measured, "advice-table", "Measured compositions"),
    others.length > 0 && element("details", {}, element("summary", {}, `${whole(others.length)} others: ruled out or not measured`), table(others, "advice-others", "Other compositions")),
  ];
}

const adviceNeeds = ({ weights, state, activations }) => weights + state + activations;

tab("advise", "Advise", buildAdvise);
