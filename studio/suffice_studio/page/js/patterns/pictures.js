// The drawing as files: SVG written by hand, PNG of the same picture, Python that makes it.

const xml = (words) => words.replace(/[<>&"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

function patternSvg(drawn, title) {
  const { queries, keys, parts, panels } = drawn;
  const side = Math.max(1, Math.floor(512 / Math.max(queries, keys)));
  const [wide, high] = [side * keys, side * queries];
  const width = Math.max(560, panels.length * (wide + 60) + 24);
  const height = 96 + high + 20 * parts.length + 24;
  const text = (x, y, size, fill, content) =>
    `<text x="${x}" y="${y}" font-size="${size}" fill="${fill}">${xml(content)}</text>`;
  const found = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" ` +
      `viewBox="0 0 ${width} ${height}" font-family="DejaVu Sans, Verdana, Arial, sans-serif">`,
    `<title>${xml(title)}</title>`,
    `<rect width="${width}" height="${height}" fill="#ffffff"/>`,
    text(24, 34, 15, "#1f2430", title),
  ];
  panels.forEach((panel, n) => {
    const x = 24 + n * (wide + 60);
    found.push(text(x, 56, 11, "#5f6775", panelCounts(drawn, panel)));
    found.push(`<g transform="translate(${x} 70) scale(${side})" shape-rendering="crispEdges">`);
    found.push(`<rect width="${keys}" height="${queries}" fill="#f2f4f7"/>`);
    const pieces = parts.map(() => "");
    panel.rows.forEach((runs, row) => {
      let column = 0;
      for (let at = 0; at < runs.length; at += 2) {
        if (runs[at]) pieces[runs[at] - 1] += `M${column} ${row}h${runs[at + 1]}v1h-${runs[at + 1]}z`;
        column += runs[at + 1];
      }
    });
    pieces.forEach((d, part) => d && found.push(`<path fill="${parts[part].colour}" d="${d}"/>`));
    found.push("</g>");
  });
  parts.forEach((part, n) => {
    const y = 90 + high + 20 * n;
    found.push(`<rect x="24" y="${y}" width="13" height="13" fill="${part.colour}"/>`);
    found.push(text(46, y + 11, 12, "#1f2430", part.name));
  });
  return `${found.join("\n")}\n</svg>\n`;
}

function panelCounts(drawn, panel) {
  const all = drawn.queries * drawn.keys;
  return (
    (drawn.panels.length > 1 ? `heads ${panel.heads.join(", ")}: ` : "") +
    `${whole(panel.visible)} of ${whole(all)} pairs visible (${percent(panel.visible / all)}), ` +
    `${whole(panel.computed)} computed`
  );
}

// line: the preset of a mechanism; layer: else the heads of a layer with this pattern, if it has one.
function patternPython(drawn, line, layer) {
  const kinds = [...new Set(drawn.expression.match(/[A-Z]\w*/g))].filter((name) => name !== "None");
  const names = kinds.filter((name) => FACTS.patterns.kinds[name]).sort();
  const keys = drawn.keys === drawn.queries ? "" : `, ${drawn.keys}`;
  const own = !line && layer;
  return [
    ...(line ? ["import suffice", "", `spec = ${line}`, "", "# its pattern, as a picture"] : own ? ["import suffice"] : []),
    `from suffice.patterns import ${names.join(", ")}`,
    "from suffice.view import picture",
    "",
    `pattern = ${drawn.expression}`,
    ...(own ? [`spec = suffice.AttentionSpec(d_model=${LAYER_WIDTH}, num_heads=${layer.heads}, num_kv_heads=${layer.kv}, pattern=pattern)`] : []),
    `picture("pattern.svg", pattern, ${drawn.queries}${keys})`,
  ].join("\n");
}
