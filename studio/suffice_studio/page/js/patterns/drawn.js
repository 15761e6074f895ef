// A pattern as data to draw; tests compare it with suffice.view.draw.

const SIDE = 64; // of a block that is computed whole
const LONGEST_DRAWN = 2048;
const MOST_HEADS = 64;

/* The parts of a pattern and where each allows a pair: [{kind, name, mask}], the union is the
   pattern. Of parts joined by & the most specific one is named. at = [queries, keys, q(i), k(j)]. */
function layersOf(pattern, at) {
  const { kind, fields } = pattern;
  if (kind === "Or") {
    // whole rows stay whole, and what is drawn at random shows only where nothing else allows it
    const painted = (part) => FACTS.patterns.painted[part.kind] ?? 1;
    const parts = [...flatParts(pattern)].sort((a, b) => painted(a) - painted(b));
    return parts.flatMap((part) => layersOf(part, at));
  }
  if (kind === "And") return layersJoined(flatParts(pattern), at);
  if (kind === "Block" && written(fields.over) !== "Window(size=1)") {
    const [queries, keys, q, k] = at;
    const over = (to) => (i) => Math.floor(to(i) / fields.size);
    return layersOf(fields.over, [queries, keys, over(q), over(k)]).map((layer) => ({
      ...layer,
      name: `${layer.name} over blocks of ${fields.size}`,
    }));
  }
  return [{ kind, name: written(pattern), mask: maskOf(pattern, at) }];
}

function maskOf(pattern, [queries, keys, q, k]) {
  const allowed = allowedBy(pattern);
  const mask = new Uint8Array(queries * keys);
  const ks = Array.from({ length: keys }, (_, j) => k(j));
  for (let i = 0; i < queries; i += 1) {
    const own = q(i);
    for (let j = 0; j < keys; j += 1) if (allowed(own, ks[j])) mask[i * keys + j] = 1;
  }
  return mask;
}

function layersJoined(parts, at) {
  const masks = parts.map((part) => maskOf(part, at));
  const pairs = masks.map(countOnes);
  let named = 0;
  parts.forEach((part, i) => {
    const [mine, best] = [isDense(part), isDense(parts[named])];
    if (mine < best || (mine === best && pairs[i] < pairs[named])) named = i;
  });
  const others = masks.filter((_, i) => i !== named);
  return layersOf(parts[named], at).map((layer) => {
    const mask = Uint8Array.from(layer.mask);
    for (const other of others) for (let n = 0; n < mask.length; n += 1) mask[n] &= other[n];
    return { ...layer, mask };
  });
}

function countOnes(mask) {
  let sum = 0;
  for (let n = 0; n < mask.length; n += 1) sum += mask[n];
  return sum;
}

// Pairs an op computes: whole blocks that are touched, spaced parts residue by residue.
function computedPairs(pattern, queries, keys) {
  if (isDense(pattern)) return queries * keys;
  const terms = termsOf(pattern);
  const near = terms.filter((term) => spacingOf(term) === 1).map(allowedBy);
  let total = near.length
    ? inBlocks((q, k) => near.some((one) => one(q, k)), queries, keys, keys - queries)
    : 0;
  for (const term of terms.filter((one) => spacingOf(one) > 1)) total += inResidues(term, queries, keys);
  return Math.min(queries * keys, total);
}

function inResidues(term, queries, keys) {
  const step = spacingOf(term);
  const allowed = allowedBy(term);
  let total = 0;
  for (let first = 0; first < Math.min(step, keys); first += 1) {
    const last = Math.floor((keys - 1 - first) / step);
    const ofQueries = last - Math.floor((keys - queries - 1 - first) / step);
    const inside = (q, k) => allowed(first + step * q, first + step * k);
    if (ofQueries > 0) total += inBlocks(inside, ofQueries, last + 1, last + 1 - ofQueries);
  }
  return total;
}

function inBlocks(allowed, queries, keys, first) {
  let touched = 0;
  for (let row = 0; row < queries; row += SIDE) {
    for (let column = 0; column < keys; column += SIDE) {
      touched += touches(allowed, row, column, queries, keys, first) ? 1 : 0;
    }
  }
  return Math.min(queries * keys, touched * SIDE * SIDE);
}

function touches(allowed, row, column, queries, keys, first) {
  for (let i = row; i < Math.min(row + SIDE, queries); i += 1) {
    for (let j = column; j < Math.min(column + SIDE, keys); j += 1) {
      if (allowed(first + i, j)) return true;
    }
  }
  return false;
}

function partColours(parts) {
  const { colours, free } = FACTS.patterns;
  const palette = [...free, ...new Set(Object.values(colours))];
  const taken = [];
  for (const { kind } of parts) {
    const wanted = colours[kind] ? [colours[kind], ...palette] : palette;
    const counts = wanted.map((one) => taken.filter((other) => other === one).length);
    taken.push(wanted[counts.indexOf(Math.min(...counts))]);
  }
  return taken;
}

function runsOf(cells, queries, keys) {
  return Array.from({ length: queries }, (_, i) => {
    const runs = [];
    for (let j = 0; j < keys; j += 1) {
      const number = cells[i * keys + j];
      if (runs.length && runs.at(-2) === number) runs[runs.length - 1] += 1;
      else runs.push(number, 1);
    }
    return runs;
  });
}

function drawPattern(pattern, queries, keys) {
  const heads = headsOf(pattern) || 1;
  const at = [queries, keys, (i) => keys - queries + i, (j) => j];
  const parts = [];
  const panels = [];
  for (let head = 0; head < heads; head += 1) {
    const own = ofHead(pattern, head);
    const cells = new Uint8Array(queries * keys);
    for (const { kind, name, mask } of layersOf(own, at)) {
      let number = parts.findIndex((part) => part.kind === kind && part.name === name);
      if (number < 0) number = parts.push({ name, kind }) - 1;
      for (let n = 0; n < cells.length; n += 1) if (mask[n] && !cells[n]) cells[n] = number + 1;
    }
    const same = panels.find((panel) => panel.cells.every((one, n) => one === cells[n]));
    if (same) same.heads.push(head + 1);
    else panels.push({ heads: [head + 1], cells, computed: computedPairs(own, queries, keys) });
  }
  const taken = partColours(parts);
  return {
    expression: written(pattern),
    queries,
    keys,
    causal: isCausal(pattern),
    parts: parts.map((part, n) => ({ ...part, colour: taken[n] })),
    panels: panels.map(({ heads: same, cells, computed }) => ({
      heads: same,
      visible: cells.reduce((sum, one) => sum + (one > 0), 0),
      computed,
      rows: runsOf(cells, queries, keys),
    })),
  };
}

function patternDrawing({ expression, queries, keys }) {
  const pattern = readPattern(expression);
  const across = keys === null || keys === undefined ? queries : keys;
  const longest = longestOf(pattern);
  for (const size of [queries, across]) {
    if (!(Number.isInteger(size) && size >= 1 && size <= LONGEST_DRAWN)) {
      throw new Error(`${queries} queries and ${across} keys cannot be drawn; give 1 to ${LONGEST_DRAWN} of each.`);
    }
  }
  if (longest !== null && across > longest) {
    throw new Error(`${written(pattern)} is made for at most ${longest} positions; ${across} cannot be drawn.`);
  }
  if (headsOf(pattern) > MOST_HEADS) {
    throw new Error(`${headsOf(pattern)} heads cannot be drawn; give at most ${MOST_HEADS}.`);
  }
  return drawPattern(pattern, queries, across);
}
