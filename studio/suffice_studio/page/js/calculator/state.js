// What the calculator's form holds; the address carries it.

const CALCULATOR = {
  models: [],
  chosen: 0,
  length: 4096,
  memory: "24 GiB",
  number: 0,
};
const FIRST_MODELS = ["Llama 3.1 8B", "Qwen3 8B", "Gemma 3 12B"];

let publishedModels = null;

// Published models by name, each read from its config.json.
function knownModels() {
  publishedModels ||= Object.fromEntries(FACTS.calculator.known.map(({ title, config, also }) =>
    [title, { ...FACTS.calculator.empty, ...modelOfConfig(JSON.stringify(config)), name: title, ...also }]));
  return publishedModels;
}

const knownModel = (name) => knownModels()[name];
const isKnownModel = (name) => Object.hasOwn(knownModels(), name);

function addModel(model) {
  const number = CALCULATOR.number++;
  const names = CALCULATOR.models.map((one) => one.model.name);
  let name = model.name;
  for (let copy = 2; names.includes(name); copy += 1) name = `${model.name} (${copy})`;
  CALCULATOR.models.push({ number, model: { ...FACTS.calculator.empty, ...model, name } });
  CALCULATOR.chosen = CALCULATOR.models.length - 1;
}

function removeModel(place) {
  CALCULATOR.models.splice(place, 1);
  CALCULATOR.chosen = Math.max(0, Math.min(CALCULATOR.chosen, CALCULATOR.models.length - 1));
}

// A model as what differs from a known one, or from an empty one.
function modelForLink(model) {
  const base = isKnownModel(model.name) ? knownModel(model.name) : FACTS.calculator.empty;
  const changed = Object.entries(model).filter(([name, value]) => name === "name" || value !== base[name]);
  return Object.fromEntries(changed);
}

function modelFromLink(data) {
  const { empty } = FACTS.calculator;
  const given = known(empty, data);
  const base = isKnownModel(given.name) ? knownModel(given.name) : empty;
  return { ...empty, ...base, ...given };
}

const readCalculator = () => ({
  models: CALCULATOR.models.map(({ model }) => modelForLink(model)),
  chosen: CALCULATOR.chosen,
  length: CALCULATOR.length,
  memory: CALCULATOR.memory,
});

function writeCalculator(data) {
  Object.assign(CALCULATOR, known({ length: 0, memory: "" }, data));
  if (!Array.isArray(data.models)) return;
  CALCULATOR.models = [];
  CALCULATOR.number = 0;
  for (const model of data.models.slice(0, SERIES)) {
    if (model && typeof model === "object") addModel(modelFromLink(model));
  }
  CALCULATOR.chosen = Number.isInteger(data.chosen) && data.chosen >= 0 && data.chosen < CALCULATOR.models.length ? data.chosen : 0;
}
