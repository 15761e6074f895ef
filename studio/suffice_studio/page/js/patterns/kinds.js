// The patterns: which keys a query may attend to. Tests compare them with suffice.patterns.

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const atLeastOne = (...names) => (fields) => {
  const wrong = names.filter((name) => !(fields[name] >= 1));
  return wrong.length ? `${wrong[0]}=${fields[wrong[0]]} holds no key; give at least 1.` : null;
};

const WORD = (1n << 64n) - 1n;
const GOLDEN = 0x9e3779b97f4a7c15n;

function mixedWord(word) {
  for (const [shift, factor] of [[30n, 0xbf58476d1ce4e5b9n], [27n, 0x94d049bb133111ebn]]) {
    word = ((word ^ (word >> shift)) * factor) & WORD;
  }
  return word ^ (word >> 31n);
}

// The keys drawn for one query: a hash of seed, query and number of the draw.
function randomDraws({ keys, length, seed }, q) {
  if (q < 0) return [];
  const start = mixedWord((BigInt(seed) + GOLDEN) & WORD);
  const ofQuery = mixedWord(start ^ BigInt(q));
  const candidates = length === null ? q + 1 : length;
  const parts = Math.min(candidates, keys);
  return Array.from({ length: parts }, (_, j) => {
    const first = Math.floor((candidates * j) / parts);
    const size = Math.floor((candidates * (j + 1)) / parts) - first;
    const number = mixedWord((ofQuery + BigInt(j + 1) * GOLDEN) & WORD) & ((1n << 63n) - 1n);
    return first + Number(number % BigInt(size));
  });
}

// A pattern of images: pairs of cells whose row and column are both seen; cells begin at `first`.
const grid = (interval) => ({
  allowed: (fields) => (q, k) => {
    const { rows, columns, first } = fields;
    const [from, to] = [q - first, k - first];
    if (from < 0 || to < 0) return false;
    const seen = (ofQuery, ofKey, lines) => {
      const [least, most] = interval(fields, ofQuery, lines);
      return ofKey >= least && ofKey <= most;
    };
    const row = (cell) => Math.floor(cell / columns);
    return seen(row(from), row(to), rows) && seen(from % columns, to % columns, columns);
  },
  longest: ({ rows, columns, first }) => first + rows * columns,
});

/* Each kind: allowed(fields) returns (q, k) => boolean; what else it says is as in Python. */
const KINDS = {
  Full: { allowed: () => () => true, dense: () => true },
  Causal: { allowed: () => (q, k) => k <= q, dense: () => true, causal: () => true },
  Window: {
    allowed: ({ size }) => (q, k) => Math.abs(q - k) < size,
    refuse: atLeastOne("size"),
  },
  Dilated: {
    allowed: ({ size, dilation }) => (q, k) => {
      const distance = Math.abs(q - k);
      return distance <= (size - 1) * dilation && distance % dilation === 0;
    },
    spacing: ({ dilation }) => dilation,
    refuse: atLeastOne("size", "dilation"),
  },
  Neighbourhood: {
    ...grid(({ size }, line, lines) => {
      const least = Math.min(Math.max(line - Math.floor(size / 2), 0), lines - size);
      return [least, least + size - 1];
    }),
    refuse: (fields) =>
      atLeastOne("rows", "columns", "size")(fields) ||
      (fields.size > Math.min(fields.rows, fields.columns)
        ? `a square of ${fields.size} x ${fields.size} does not fit; give a smaller size.`
        : null),
  },
  ShiftedWindows: {
    ...grid(({ size, shift }, line) => {
      const least = Math.floor((line - shift) / size) * size + shift;
      return [least, least + size - 1];
    }),
    refuse: (fields) =>
      atLeastOne("rows", "columns", "size")(fields) ||
      (fields.shift < 0 || fields.shift >= fields.size
        ? `shift=${fields.shift}: give a shift from 0 to ${fields.size - 1}.`
        : null),
  },
  Strided: {
    allowed: ({ stride }) => (q, k) => Math.abs(q - k) % stride === 0,
    spacing: ({ stride }) => stride,
    refuse: atLeastOne("stride"),
  },
  Fixed: {
    allowed: ({ stride, tail }) => (q, k) => modulo(k, stride) >= stride - tail,
    refuse: ({ stride, tail }) =>
      stride >= 1 && tail >= 1 && tail <= stride
        ? null
        : `Fixed(stride=${stride}, tail=${tail}): give 1 <= tail <= stride.`,
  },
  Global: {
    allowed: ({ tokens: hubs }) => (q, k) => q < hubs || k < hubs,
    refuse: atLeastOne("tokens"),
  },
  Random: {
    allowed: (fields) => {
      const known = new Map();
      return (q, k) => {
        if (!known.has(q)) known.set(q, randomDraws(fields, q));
        return known.get(q).includes(k);
      };
    },
    causal: ({ length }) => length === null,
    longest: ({ length }) => length,
    refuse: ({ keys, length }) =>
      keys >= 1 && (length === null || length >= 1)
        ? null
        : `Random(keys=${keys}, length=${length}) draws nothing; give at least 1.`,
  },
  Block: {
    allowed: ({ size, over }) => {
      const inner = allowedBy(over);
      return (q, k) => inner(Math.floor(q / size), Math.floor(k / size));
    },
    dense: ({ over }) => isDense(over),
    longest: ({ size, over }) => (longestOf(over) === null ? null : size * longestOf(over)),
    refuse: ({ size, over }) =>
      typeof over !== "object" || over === null || !over.kind
        ? "Block(over=...) takes a pattern of blocks, such as Window(1)."
        : atLeastOne("size")({ size }),
  },
  PerHead: {
    allowed: () => {
      throw new Error("each head has a pattern of its own.");
    },
    causal: ({ patterns }) => patterns.every(isCausal),
    dense: ({ patterns }) => patterns.every(isDense),
    longest: ({ patterns }) => least(patterns.map(longestOf)),
    refuse: ({ patterns }) =>
      Array.isArray(patterns) && patterns.length && patterns.every((p) => p && p.kind)
        ? patterns.some((p) => headsOf(p) !== null)
          ? "PerHead takes the pattern of one head in each place."
          : null
        : "PerHead takes a tuple of patterns, one for each head.",
  },
  And: {
    allowed: ({ parts }) => {
      const all = parts.map(allowedBy);
      return (q, k) => all.every((one) => one(q, k));
    },
    causal: ({ parts }) => parts.some(isCausal),
    dense: ({ parts }) => parts.every(isDense),
    spacing: ({ parts }) =>
      parts.map(spacingOf).reduce((a, b) => (a * b) / gcd(a, b)),
    longest: ({ parts }) => least(parts.map(longestOf)),
  },
  Or: {
    allowed: ({ parts }) => {
      const all = parts.map(allowedBy);
      return (q, k) => all.some((one) => one(q, k));
    },
    causal: ({ parts }) => parts.every(isCausal),
    dense: ({ parts }) => parts.some(isDense),
    longest: ({ parts }) => least(parts.map(longestOf)),
  },
};

const least = (numbers) => {
  const known = numbers.filter((number) => number !== null);
  return known.length ? Math.min(...known) : null;
};
const property = (name, otherwise) => (pattern) => {
  const answer = KINDS[pattern.kind][name];
  return answer ? answer(pattern.fields) : otherwise;
};
const isCausal = property("causal", false);
const isDense = property("dense", false);
const spacingOf = property("spacing", 1);
const longestOf = property("longest", null);
const allowedBy = (pattern) => KINDS[pattern.kind].allowed(pattern.fields);
const isJoined = (pattern) => pattern.kind === "And" || pattern.kind === "Or";

function madeOf(kind, fields) {
  const wrong = KINDS[kind].refuse && KINDS[kind].refuse(fields);
  if (wrong) throw new Error(wrong);
  const pattern = { kind, fields };
  if (isJoined(pattern)) {
    const heads = new Set(fields.parts.map(headsOf).filter((n) => n !== null));
    if (heads.size > 1) throw new Error(`${kind} combines patterns made for different numbers of heads.`);
  }
  return pattern;
}

// The number of heads a pattern is made for; null = any.
function headsOf({ kind, fields }) {
  if (kind === "PerHead") return fields.patterns.length;
  if (kind === "Block") return headsOf(fields.over);
  if (kind !== "And" && kind !== "Or") return null;
  const found = fields.parts.map(headsOf).find((heads) => heads !== null);
  return found === undefined ? null : found;
}

function ofHead(pattern, head) {
  const { kind, fields } = pattern;
  if (headsOf(pattern) === null) return pattern;
  if (kind === "PerHead") return fields.patterns[head];
  if (kind === "Block") return madeOf(kind, { ...fields, over: ofHead(fields.over, head) });
  return madeOf(kind, { parts: fields.parts.map((part) => ofHead(part, head)) });
}

// Patterns whose union this is, every `|` taken out of the `&`.
function termsOf(pattern) {
  if (pattern.kind === "Or") return pattern.fields.parts.flatMap(termsOf);
  if (pattern.kind !== "And") return [pattern];
  const choices = pattern.fields.parts
    .map(termsOf)
    .reduce((all, terms) => all.flatMap((one) => terms.map((term) => [...one, term])), [[]]);
  return choices.map((parts) => madeOf("And", { parts }));
}
