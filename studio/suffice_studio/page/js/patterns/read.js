// Patterns from the code people write, and back: (Window(size=8) | Global(tokens=1)) & Causal()

const LONGEST_CODE = 2000;
const LARGEST_NUMBER = 2 ** 30;

function words(code) {
  const found = code.match(/[A-Za-z_]\w*|\d+|[()[\],=&|-]|\S/g) || [];
  const strange = found.find((word) => !/^(\w+|[()[\],=&|-])$/.test(word));
  if (strange) throw new Error(`${code} cannot be read at "${strange}"; write such as Window(size=8) & Causal().`);
  return found;
}

function readPattern(code) {
  if (!code.trim()) throw new Error("write a pattern, such as Window(size=8) & Causal().");
  if (code.length > LONGEST_CODE) throw new Error(`write at most ${whole(LONGEST_CODE)} characters.`);
  const rest = words(code);
  const value = readUnion(rest);
  if (rest.length || !value || !value.kind) {
    throw new Error(`${code} is no pattern; write such as Window(size=8) & Causal().`);
  }
  return value;
}

function joined(rest, sign, kind, next) {
  let value = next(rest);
  while (rest[0] === sign) {
    rest.shift();
    const other = next(rest);
    if (!value || !value.kind || !other || !other.kind) {
      throw new Error(`${sign} joins two patterns, such as Window(size=8) ${sign} Causal().`);
    }
    value = madeOf(kind, { parts: [value, other] });
  }
  return value;
}

const readUnion = (rest) =>
  joined(rest, "|", "Or", (inner) => joined(inner, "&", "And", readPiece));

function readPiece(rest) {
  const word = rest.shift();
  if (word === undefined) throw new Error("the pattern ends too early; write such as Window(size=8).");
  if (word === "(" || word === "[") return readBracket(rest, word === "(" ? ")" : "]");
  if (word === "-") return -readPiece(rest);
  if (/^\d+$/.test(word)) {
    if (Number(word) > LARGEST_NUMBER) throw new Error(`${word} is more than ${whole(LARGEST_NUMBER)}.`);
    return Number(word);
  }
  if (word === "None") return null;
  if (word === "True" || word === "False") return word === "True";
  if (rest[0] !== "(" || !/^[A-Za-z]/.test(word)) {
    throw new Error(`"${word}" is no pattern and no whole number.`);
  }
  rest.shift();
  return readCall(word, rest);
}

function readBracket(rest, end) {
  const parts = [];
  let comma = end === "]";
  while (rest[0] !== end) {
    parts.push(readUnion(rest));
    if (rest[0] === ",") {
      rest.shift();
      comma = true;
    } else if (rest[0] !== end) throw new Error(`"${end}" is missing; write such as (Window(8) | Global(1)) & Causal().`);
  }
  rest.shift();
  return comma ? parts : parts[0];
}

function readCall(kind, rest) {
  const known = FACTS.patterns.kinds[kind];
  if (!known || !KINDS[kind] || kind === "And" || kind === "Or") {
    const legal = Object.keys(KINDS).filter((name) => name !== "And" && name !== "Or");
    throw new Error(`unknown pattern "${kind}". Legal: ${legal.join(", ")}.`);
  }
  const names = known.map(([name]) => name);
  const fields = {};
  let place = 0;
  while (rest[0] !== ")") {
    let name = names[place++];
    if (rest[1] === "=") {
      name = rest.shift();
      rest.shift();
    }
    if (!names.includes(name) || name in fields) {
      throw new Error(`${kind} takes ${names.join(", ") || "nothing"}; give each once.`);
    }
    fields[name] = readUnion(rest);
    if (rest[0] === ",") rest.shift();
    else if (rest[0] !== ")") throw new Error(`")" is missing after ${kind}(.`);
  }
  rest.shift();
  return madeOf(kind, withDefaults(kind, known, fields));
}

function withDefaults(kind, known, fields) {
  const whole = {};
  for (const [name, otherwise] of known) {
    const given = name in fields;
    if (!given && otherwise === undefined) throw new Error(`${kind} needs ${name}; give it.`);
    whole[name] = given ? fields[name] : typeof otherwise === "string" ? readPattern(otherwise) : otherwise;
    const number = typeof whole[name] === "number";
    if (given && (typeof otherwise === "number" || name === "size") && !number) {
      throw new Error(`${name} of ${kind} is a whole number.`);
    }
  }
  return whole;
}

const flatParts = (pattern) =>
  pattern.fields.parts.flatMap((part) => (part.kind === pattern.kind ? flatParts(part) : [part]));

// A pattern as code, without the fields that are as they are by default.
function written(pattern) {
  if (isJoined(pattern)) {
    return flatParts(pattern)
      .map((part) => (isJoined(part) ? `(${written(part)})` : written(part)))
      .join(pattern.kind === "And" ? " & " : " | ");
  }
  const given = FACTS.patterns.kinds[pattern.kind]
    .map(([name, otherwise]) => [name, writtenValue(pattern.fields[name]), otherwise])
    .filter(([, value, otherwise]) => value !== writtenValue(otherwise))
    .map(([name, value]) => `${name}=${value}`);
  return `${pattern.kind}(${given.join(", ")})`;
}

function writtenValue(value) {
  if (value === null) return "None";
  if (value === undefined || typeof value === "string") return value;
  if (Array.isArray(value)) return `(${value.map(writtenValue).join(", ")}${value.length === 1 ? "," : ""})`;
  return typeof value === "object" ? written(value) : String(value);
}
