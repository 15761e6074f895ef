// One query of one mechanism as a picture: its tokens, a column for each step, and the heads below.

const STEP_NAMES = { pairs: ["Scores", "Mask", "Weights", "Values", "Heads"], recurrence: ["State", "Decay", "Write", "Read", "Heads"] };
const LAST_STEP = 4;
const GAP = 12;
const NARROW = 500; // below this width a picture shows only the columns of its step

const stepNames = (answer) => STEP_NAMES[answer.lane] || STEP_NAMES.pairs;

// The numbers of one head and query; heads that share keys have the same.
function numbersAt(answer, head, query) {
  const { numbers } = answer;
  const heads = numbers.heads.length;
  const shared = (name) => numbers[name] && numbers[name][Math.floor((head * numbers[name].length) / heads)];
  const at = { heads, head, query, tokens: answer.tokens, width: numbers.query[0][0].length };
  at.query_ = shared("query")[query];
  at.keys = shared("key");
  at.values = shared("value");
  at.weights = shared("weights")[query];
  at.out = shared("heads")[query];
  at.keyHeads = numbers.key.length;
  if (answer.lane === "recurrence") {
    const empty = numbers.state[head][0].map((row) => row.map(() => 0));
    at.before = query ? numbers.state[head][query - 1] : empty;
    at.kept = numbers.kept[head][query];
    at.after = numbers.state[head][query];
    at.decay = numbers.decay ? numbers.decay[head][query] : null;
    at.beta = numbers.beta ? numbers.beta[head][query][0] : null;
    at.recalled = numbers.recalled[head][query];
    at.allowed = answer.tokens.map((_, n) => n <= query);
  } else {
    at.scores = shared("scores")[query];
    at.allowed = shared("allowed")[query].map(Boolean);
  }
  at.labels = at.keys.length === answer.tokens.length ? answer.tokens : at.keys.map((_, n) => `sum ${n + 1}`);
  at.merged = answer.numbers.merged[query];
  at.output = answer.numbers.output[query];
  at.all = numbers.heads.map((rows) => rows[query]);
  return at;
}

// Elements that a step brings in; before it they are hidden, and keep their place.
const since = (step, now, ...nodes) => drawing("g", { class: now >= step ? "since" : "since later" }, nodes);

function stepsSvg(answer, { head, query, step }, width) {
  const at = numbersAt(answer, head, query);
  const label = Math.min(104, 14 + 7.2 * Math.max(5, ...at.labels.map((word) => word.length)));
  const narrow = width < NARROW;
  const columns = (answer.lane === "recurrence" ? recurrentColumns : pairColumns)(at, answer, step, narrow);
  const free = width - label - columns.reduce((sum, one) => sum + (one.wide || 0) + GAP, 0) - 2;
  const cells = columns.reduce((sum, one) => sum + (one.cells || 0), 0);
  const cell = Math.max(CELL.least, Math.min(CELL.most, free / Math.max(1, cells)));
  const svg = drawing("svg", { class: "chart steps", role: "img" });
  let y = 22;
  let x = label;
  for (const column of columns) {
    svg.append(since(column.from, step, ...column.draw(x, y, cell)));
    x += (column.wide || 0) + (column.cells || 0) * cell + GAP;
  }
  const rows = y + CELL.high;
  at.labels.forEach((word, n) => {
    const own = n === query && at.labels === at.tokens;
    const hidden = !at.allowed[n] && (step > 0 || answer.lane === "recurrence");
    svg.append(writing(label - 8, rows + n * CELL.high + 16, word, `row-name end${own ? " own" : ""}${hidden ? " gone" : ""}`));
  });
  const asks = answer.lane === "recurrence" ? 3 : 0;
  if (columns.some((column) => column.asks)) svg.append(since(asks, step, writing(label - 8, y + 16, "query", "row-name end own")));
  svg.prepend(drawing("rect", { x: 0, y: rows + query * CELL.high, width: x - GAP, height: CELL.high, class: at.labels === at.tokens ? "band" : "band none" }));
  y = rows + (at.labels.length + 1) * CELL.high + 20;
  if (narrow && step === LAST_STEP) replace(svg);
  if (narrow && step === LAST_STEP) y = 4;
  else if (answer.lane === "recurrence") y = drawState(svg, at, step, narrow, label, y, width) + 18;
  if (!narrow || step === LAST_STEP) y = drawHeads(svg, at, answer, step, label, y, width);
  svg.setAttribute("viewBox", `0 0 ${Math.round(width)} ${Math.round(y + 4)}`);
  return svg;
}

const headName = (name, at, count) => {
  const group = at.heads / count;
  if (group <= 1) return name;
  const first = Math.floor(at.head / group) * group;
  return `${name}, heads ${first + 1}–${first + group}`;
};

// A column of vectors: a heading, the query's own one on top if there is one, one for each key.
function vectors(from, name, rows, { top, bottom, counts = () => 1 }) {
  const most = largest([rows, top || [], bottom || []]);
  return {
    from,
    cells: rows[0].length,
    asks: Boolean(top),
    draw: (x, y, cell) => [
      writing(x, y - 8, name, "name"),
      top ? rowOf(x, y, cell, top, most) : [],
      rows.map((row, n) => rowOf(x, y + (n + 1) * CELL.high, cell, row, most, counts(n))),
      bottom ? [rowOf(x, y + (rows.length + 1) * CELL.high + 5, cell, bottom, most)] : [],
    ].flat(Infinity),
  };
}

function pairColumns(at, answer, step, narrow) {
  const sums = answer.lane === "sums";
  const bottom = at.labels.length + 1;
  const [most, heaviest] = [largest(at.scores), largest(at.weights)];
  const keys = vectors(0, headName(sums ? "φ(key)" : "keys", at, at.keyHeads), at.keys, { top: at.query_, counts: (n) => Number(step < 1 || at.allowed[n]) });
  const scores = {
    from: 0,
    wide: 50,
    draw: (x, y) => [
      writing(x + 25, y - 8, sums ? "φ(q)·φ(k)" : "score", "name middle"),
      ...at.scores.map((score, n) => cellOf(x, y + (n + 1) * CELL.high, 50, score, most, Number(step === 0 || at.allowed[n]))),
      ...at.scores.map((_, n) => step > 0 && !at.allowed[n] && drawing("path", { d: `M${x + 5} ${y + (n + 1) * CELL.high + 12}h40`, class: "struck" })).filter(Boolean),
    ],
  };
  const weights = {
    from: 2,
    wide: 104,
    draw: (x, y) => [
      writing(x + 38, y - 8, "weight", "name"),
      ...at.weights.flatMap((weight, n) => (at.allowed[n] ? barOf(x, y + (n + 1) * CELL.high, 104, weight, heaviest) : [])),
      writing(x + 33, y + bottom * CELL.high + 21, short(at.weights.reduce((sum, one) => sum + one, 0)), "number end"),
      writing(x + 40, y + bottom * CELL.high + 21, "sum", "name"),
    ],
  };
  const values = vectors(3, headName("values", at, answer.numbers.value.length), at.values, { bottom: at.out, counts: (n) => Math.abs(at.weights[n]) / heaviest });
  if (!narrow) return [keys, scores, weights, values];
  return [[keys, scores], [keys, scores], [scores, weights], [weights, values], [weights, values]][step];
}

function recurrentColumns(at, answer, step, narrow) {
  const past = (n) => Number(at.allowed[n]);
  const keys = vectors(0, headName("keys", at, at.keyHeads), at.keys, { top: step >= 3 && at.query_, counts: past });
  const values = vectors(0, headName("values", at, answer.numbers.value.length), at.values, { counts: past });
  const weights = {
    from: 3,
    wide: 104,
    draw: (x, y) => [
      writing(x + 38, y - 8, "remaining", "name"),
      ...at.weights.flatMap((weight, n) => (past(n) ? barOf(x, y + (n + 1) * CELL.high, 104, weight, largest(at.weights)) : [])),
    ],
  };
  if (!narrow) return [keys, values, weights];
  return step < 3 ? [keys, values] : [values, weights];
}

// The matrix that stands for all tokens before: as it was, faded, with the token, and read.
function drawState(svg, at, step, narrow, label, y, width) {
  const [rows, across] = [at.after.length, at.after[0].length];
  const shown = narrow ? [[0], [0, 1], [1, 2], [2], [2]][step] : [0, 1, 2];
  const start = shown.length === 2 ? 2 : label;
  const matrices = [[0, "state before", at.before], [1, !at.decay ? "nothing fades" : at.decay.length === 1 ? `faded × ${short(at.decay[0])}` : "its rows faded", at.kept], [2, at.beta === null ? "+ k vᵀ" : "+ β k (v − held)ᵀ", at.after]];
  const cell = Math.max(CELL.least, Math.min(CELL.most, (width - start - (shown.length - 1) * 46 - 2) / (across * shown.length)));
  const most = largest([at.before, at.kept, at.after]);
  let x = start;
  for (const place of shown) {
    const [from, name, numbers] = matrices[place];
    const side = [];
    if (place === 2) side.push(...columnOf(x - cell - 4, y, cell, step >= 3 ? at.query_ : at.keys[at.query], largest([at.query_, at.keys])), writing(x - 4 - cell / 2, y - 8, step >= 3 ? "q" : "k", "name middle"));
    svg.append(since(from, step, writing(x, y - 8, name, "name"), ...matrixOf(x, y, cell, numbers, most), ...side));
    x += across * cell + 46;
  }
  const end = y + rows * CELL.high + 8;
  const last = x - across * cell - 46;
  svg.append(since(3, step, writing(last - 8, end + 16, "q · S", "row-name end"), ...rowOf(last, end, cell, at.out, largest(at.out))));
  return end + CELL.high;
}

// The heads side by side, what is done to them, and the layer's output.
function drawHeads(svg, at, answer, step, label, y, width) {
  const wide = at.out.length;
  const room = width - label - 2;
  const per = Math.min(at.merged.length, Math.max(wide, Math.floor(room / CELL.numbered / wide) * wide));
  const cell = Math.min(CELL.most, room / per);
  const lines = (name, numbers, marked) => {
    const most = largest(numbers);
    const nodes = [writing(label - 8, y + 16, name, "row-name end")];
    for (let n = 0; n < numbers.length; n += per) {
      nodes.push(...rowOf(label, y, cell, numbers.slice(n, n + per), most));
      const first = at.head * wide;
      if (marked && first >= n && first < n + per) nodes.push(drawing("rect", { x: label + (first - n) * cell, y, width: wide * cell, height: CELL.high, rx: 3, class: "own-head" }));
      y += CELL.high + 2;
    }
    svg.append(since(LAST_STEP, step, ...nodes));
    y += 8;
  };
  svg.append(since(LAST_STEP, step, drawing("path", { d: `M0 ${y - 4}H${Math.round(width)}`, class: "grid" })));
  y += 6;
  const heads = at.all.flat();
  lines("heads", heads, true);
  const same = heads.length === at.merged.length && heads.every((one, n) => Math.abs(one - at.merged[n]) < 2e-6);
  if (!same) lines(answer.combine.length ? "merged" : "with past", at.merged, false);
  lines("output", at.output, false);
  return y;
}

const quoted = (word) => `“${word}”`;

// The step in one sentence or two, with its numbers.
function stepWords(answer, { head, query, step }) {
  const at = numbersAt(answer, head, query);
  const word = quoted(answer.tokens[query]);
  if (step === LAST_STEP) {
    const done = answer.combine.map(([title]) => title);
    return `The ${at.heads} heads stand side by side${done.length ? `; then ${done.join(", then ")}` : ""}. The output map W_O makes the layer's output for ${word} of them.`;
  }
  return (answer.lane === "recurrence" ? recurrentWords : pairWords)(at, answer, step, word);
}

function pairWords(at, answer, step, word) {
  const seen = at.allowed.filter(Boolean).length;
  const best = at.weights.indexOf(Math.max(...at.weights));
  const sums = answer.lane === "sums";
  return [
    sums ? `Features φ of the query ${word} times those of each key: one positive number for each.` : `The query ${word}, top row, times each key, over the root of its width: one score for each.`,
    `${answer.pattern}: ${word} may see ${seen} of ${at.labels.length} keys. The others are left out.`,
    seen ? `${sums ? "Each product over the sum of all." : "Softmax: exp of each score over the sum of all."} The largest weight, ${short(at.weights[best])}, goes to ${quoted(at.labels[best])}.` : `${word} may see no key, so every weight is 0.`,
    "Each value times its weight; their sum, the last row, is what this head says.",
  ][step];
}

function recurrentWords(at, answer, step, word) {
  const fades = !at.decay ? "Nothing fades in this mechanism." : at.decay.length === 1 ? `The whole state fades: × ${short(at.decay[0])}.` : `Each row fades by a factor of its own: ${at.decay.map(short).join(", ")}.`;
  return [
    at.query ? `All that came before ${word} stands in one matrix; it never grows. Keys of before are gone.` : "Nothing came before, so the state is 0.",
    fades,
    at.beta === null ? `Key times value of ${word} is added, row by column.` : `The state held [${at.recalled.map(short).join(", ")}] for this key. β = ${short(at.beta)} of the difference to the value is added there.`,
    `The query ${word} reads the state: q · S is what this head says. The bars tell what is left of each token in it.`,
  ][step];
}
