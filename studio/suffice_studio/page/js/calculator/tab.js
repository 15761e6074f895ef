// The calculator's tab: models at the left, what they take at the right.

function buildCalculator(panel) {
  sharedState("calculator", readCalculator, writeCalculator);
  if (!CALCULATOR.models.length) {
    for (const name of FIRST_MODELS) addModel(knownModel(name));
    CALCULATOR.chosen = 0;
  }
  const list = element("ul", { class: "models", "aria-label": "Models compared" });
  const form = element("div", { class: "composition" });
  const results = element("div", { class: "found" });
  const wrong = notice("calculator-error");
  const full = notice("calculator-full");
  const shown = element("output", { class: "shown", for: "length" });

  const refresh = () => {
    let memory = null;
    try {
      memory = readBytes(CALCULATOR.memory);
      if (CALCULATOR.models.some(({ model }) => Object.values(model).some(Number.isNaN))) {
        throw new Error("A size is not a whole number of its least or more; see the marked field.");
      }
      if (!(CALCULATOR.length >= 1)) throw new Error("Give a length of at least 1 token.");
    } catch (error) {
      tell(wrong, error);
      stale(results, error);
      shown.textContent = "";
      return;
    }
    stale(results, null);
    remember("calculator");
    shown.textContent = `${whole(CALCULATOR.length)} tokens`;
    tell(wrong, null);
    const { models, length } = CALCULATOR;
    const answers = calculate({ models: models.map(({ model }) => model), length, memory });
    announce(`KV cache of ${whole(length)} tokens: ${answers.map((answer) => `${answer.name ?? "a model"} ${answer.error || bytes(answer.state)}`).join("; ")}`);
    replace(
      results,
      resultTable(models, answers, memory),
      saveTools("calculator", { rows: () => resultRows(models, answers), label: "the table" }),
      element("h3", {}, "KV cache by program"),
      engineTable(models, answers),
      element("h3", {}, "What fits"),
      partOf("fits", element("div", {}, memoryBars(models, answers, memory))),
      element("h3", {}, "KV cache over length"),
      partOf("cache", element("div", {}, curves(models, answers, length, memory))),
    );
  };
  const changed = later(refresh, 20);

  const drawList = () => {
    replace(list, CALCULATOR.models.map((held, at) => modelItem(held, at, choose, remove)));
  };
  const choose = (at) => {
    CALCULATOR.chosen = at;
    remember("calculator");
    drawList();
    const held = CALCULATOR.models[at];
    replace(form, held ? compositionForm(held.model, changed, () => { drawList(); changed(); }) : element("p", { class: "hint" }, "Add a model."));
  };
  const remove = (at) => {
    removeModel(at);
    tell(full, null);
    choose(CALCULATOR.chosen);
    refresh();
  };
  const add = (model) => {
    if (CALCULATOR.models.length >= SERIES) {
      tell(full, new Error(`At most ${SERIES} models are compared at once; take one away.`));
      return;
    }
    addModel(model);
    choose(CALCULATOR.chosen);
    refresh();
  };

  panel.append(
    element(
      "div",
      { class: "columns" },
      element("aside", { "aria-label": "Models" }, element("h2", {}, "Models"), list, full, adder(add), configBox(add), form),
      element(
        "div",
        { class: "main" },
        element("h2", {}, "KV cache, weights, activations"),
        element("div", { class: "asked" }, lengthFields(shown, changed), memoryField(changed)),
        wrong,
        results,
        element("p", { class: "hint" }, "KV cache: the state of one batch; for linear attention and recurrences their sums. Activations: the peak of one block during a prefill chunk, without a score matrix. Sizes are in KiB, MiB and GiB, powers of 1024; point at a number for its exact bytes."),
        articleNote(),
      ),
    ),
  );
  choose(CALCULATOR.chosen);
  refresh();
}

function modelItem(held, at, choose, remove) {
  const name = held.model.name;
  return element(
    "li",
    { class: at === CALCULATOR.chosen ? "chosen" : null },
    element(
      "button",
      { type: "button", "aria-pressed": String(at === CALCULATOR.chosen), on: { click: () => choose(at) } },
      element("span", { class: `swatch series-${(held.number % SERIES) + 1}`, "aria-hidden": "true" }),
      name,
    ),
    element("button", { type: "button", class: "quiet", "aria-label": `Remove ${name}`, title: "Remove", on: { click: () => remove(at) } }, "×"),
  );
}

function adder(add) {
  const known = Object.keys(knownModels());
  const select = element(
    "select",
    {
      id: "add-model",
      on: {
        change: () => {
          const chosen = CALCULATOR.models[CALCULATOR.chosen];
          if (select.value === "copy" && chosen) add(chosen.model);
          else if (select.value === "article") add(FACTS.calculator.article.model);
          else if (known.includes(select.value)) add(knownModel(select.value));
          select.value = "";
        },
      },
    },
    element("option", { value: "" }, "Add a model …"),
    known.map((name) => element("option", { value: name }, name)),
    element("option", { value: "article" }, FACTS.calculator.article.model.name),
    element("option", { value: "copy" }, "A copy of the chosen one"),
  );
  return element("div", { class: "field" }, element("label", { for: "add-model", class: "unseen" }, "Add a model"), select);
}

function lengthFields(shown, changed) {
  const slider = element("input", { type: "range", id: "length", min: "7", max: "20", step: "0.125" });
  const input = element("input", { type: "text", inputmode: "numeric", id: "length-number", "aria-label": "Length in tokens", autocomplete: "off" });
  const set = (length, from) => {
    CALCULATOR.length = length;
    if (from !== slider && length >= 1) slider.value = String(Math.log2(length));
    if (from !== input) input.value = String(length);
    changed();
  };
  slider.addEventListener("input", () => {
    const power = Number(slider.value);
    set(Math.round(2 ** power / 16) * 16, slider);
  });
  input.addEventListener("input", () => {
    const right = /^\d+$/.test(input.value.trim()) && Number(input.value) >= 1;
    input.setAttribute("aria-invalid", String(!right));
    set(right ? Number(input.value) : NaN, input);
  });
  slider.value = String(Math.log2(CALCULATOR.length) || 12);
  input.value = String(CALCULATOR.length);
  return element("div", { class: "field length" }, element("label", { for: "length" }, "Length "), shown, element("div", { class: "pair" }, slider, input));
}

function memoryField(changed) {
  const input = element("input", {
    type: "text",
    id: "memory",
    autocomplete: "off",
    on: {
      input: () => {
        CALCULATOR.memory = input.value;
        changed();
      },
    },
  });
  input.value = CALCULATOR.memory;
  return labelled("Available memory", input, "optional, such as 24 GiB; 8 GB are 7.45 GiB");
}

tab("calculator", "Calculator", buildCalculator);
