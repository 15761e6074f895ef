// How far a query hears after several layers of one pattern.

function cellsOf(drawn, panel) {
  const cells = new Uint8Array(drawn.queries * drawn.keys);
  drawn.panels[panel].rows.forEach((runs, i) => {
    let j = i * drawn.keys;
    for (let n = 0; n < runs.length; n += 2) {
      if (runs[n]) cells.fill(runs[n], j, j + runs[n + 1]);
      j += runs[n + 1];
    }
  });
  return cells;
}

/* Which positions reach a query after 1, 2, ... layers: [Uint8Array], every head of a layer counts.
   It ends where another layer changes nothing. Asked only where keys are the queries' positions. */
function receptive(drawn, query, most) {
  const { queries, keys } = drawn;
  const seen = new Uint8Array(queries * keys);
  drawn.panels.forEach((_, panel) => {
    cellsOf(drawn, panel).forEach((one, n) => {
      if (one) seen[n] = 1;
    });
  });
  let now = new Uint8Array(keys);
  now[query] = 1;
  const layers = [];
  for (let layer = 0; layer < most; layer += 1) {
    const next = new Uint8Array(keys);
    now.forEach((on, i) => {
      if (!on) return;
      for (let j = 0; j < keys; j += 1) if (seen[i * keys + j]) next[j] = 1;
    });
    if (layers.length && next.every((one, j) => one === layers.at(-1)[j])) break;
    layers.push(next);
    now = next;
  }
  return layers;
}
