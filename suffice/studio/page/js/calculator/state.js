// What the calculator's form holds; the address of a static page can carry it.

const CALCULATOR = {
  models: [],
  chosen: 0,
  length: 4096,
  memory: "8 GB",
  number: 0,
};

const knownModel = (name) => FACTS.calculator.known.find((one) => one.model.name === name).model;

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
  CALCULATOR.chosen = Math.min(CALCULATOR.chosen, CALCULATOR.models.length - 1);
}
