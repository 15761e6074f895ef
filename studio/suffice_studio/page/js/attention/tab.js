// The tab of attention maps: a checkpoint, something to read, and who looks at what.

const STATE = { checkpoint: "", against: "", text: "", newTokens: 0, scaling: "", which: "weights", layer: 0, head: 0 };
const ATTENTION = { ...STATE, about: null, image: null, request: null, seen: null, checkpoints: [] };

const MEAN = -1; // instead of a head: the mean of all heads of a layer
const readAttention = () => known(STATE, ATTENTION);
const writeAttention = (data) => Object.assign(ATTENTION, known(STATE, data));

function buildAttention(panel) {
  sharedState("attention", readAttention, writeAttention);
  const wrong = notice("attention-error");
  const inputs = element("div", { class: "inputs" });
  const grid = element("div", { class: "thumbs", id: "thumbs" });
  const large = element("div", { class: "large" });
  const caption = element("p", { class: "hover", id: "map-hover", "aria-live": "polite" });
  const read = element("div", { class: "read", id: "map-read" });
  const seen = element("div", { class: "attention" });
  const refuse = (error) => {
    tell(wrong, error);
    stale(seen, error);
  };
  const asked = () => ({
    checkpoint: ATTENTION.checkpoint,
    text: ATTENTION.text,
    image: ATTENTION.image,
    scaling: ATTENTION.scaling,
    new_tokens: ATTENTION.about.generates ? ATTENTION.newTokens : 0,
    ...(ATTENTION.against && { against: ATTENTION.against }),
  });

  const showMap = latest((answer) => {
    const { seen: { labels, extra, generated, grid, layers }, request } = ATTENTION;
    const maps = mapsOf(answer, request);
    const row = (map, at) => map.values.subarray(at * map.columns, (at + 1) * map.columns);
    const own = answer.columns === labels.length; // a map of sums of keys is not drawn over the input
    const pointed = (at, column) => {
      caption.textContent = describePair(maps, labels, at, column, generated);
      replace(read, own && maps.map((map) => element("figure", {}, map.title && element("figcaption", {}, map.title), readView(ATTENTION.seen, at, row(map, at), map.most, view.move))), own && grid > 0 && element("p", { class: "hint" }, "A patch that is clicked becomes the query."));
    };
    const view = mapView(maps, labels, { generated, start: grid && extra ? 0 : answer.rows - 1, pointed });
    view.move(grid && extra ? 0 : answer.rows - 1, 0);
    const head = ATTENTION.head === MEAN ? "mean of the heads" : `head ${ATTENTION.head + 1}`;
    const title = `${layerName(layers[ATTENTION.layer], ATTENTION.layer)}, ${head}`;
    seen.classList.toggle("compared", maps.length > 1);
    replace(large, element("h3", {}, title), maps.length > 1 && element("p", { class: "hint" }, `Total variation, mean over queries: ${meanVariation(maps[2]).toFixed(4)}. It is half the sum of the absolute differences of a row: 0 where two rows of weights agree, 1 where they share no key.`), view.node, saveTools(fileName(`${request.checkpoint} ${title}`), {
      svg: () => view.map.file(`${request.checkpoint}: ${title}`),
      rows: () => view.map.rows(),
      label: `the map of ${title}`,
    }));
    remember("attention");
  }, refuse);
  const openMap = () => showMap("map", { ...ATTENTION.request, layer: ATTENTION.layer, head: ATTENTION.head, which: ATTENTION.which });
  const showSeen = () => {
    const { seen } = ATTENTION;
    if (!seen.maps.includes(ATTENTION.which)) [ATTENTION.which] = seen.maps;
    ATTENTION.layer = Math.min(ATTENTION.layer, seen.layers.length - 1);
    ATTENTION.head = Math.max(MEAN, Math.min(ATTENTION.head, seen.layers[ATTENTION.layer].thumbs[ATTENTION.which].length - 1));
    const [of, shown] = [ATTENTION.about.layers.length, seen.layers.length];
    replace(grid, whichMap(seen), shown < of && element("p", { class: "hint" }, `${of - shown} of ${of} layers have no attention weights, and so no map: they keep a state.`), thumbGrid(seen));
    openMap();
  };
  const whichMap = (seen) =>
    seen.maps.length > 1 &&
    segments("Map", { weights: "Weights of the kernel", effective: "Effective: with the mixing" }, ATTENTION.which, (which) => {
      ATTENTION.which = which;
      showSeen();
    });
  const thumbGrid = (seen) => seen.layers.map((layer, l) =>
    element("div", { class: "layer" }, element("span", { title: layer.name }, layerName(layer, l)),
      element("div", {}, layer.thumbs[ATTENTION.which].map((thumb, h) =>
        thumbnail(thumb, `${layerName(layer, l)}, head ${h + 1}${layer.variation.length ? `: total variation ${layer.variation[h].toFixed(4)}` : ""}`, l === ATTENTION.layer && h === ATTENTION.head, () => {
          [ATTENTION.layer, ATTENTION.head] = [l, h];
          showSeen();
        })),
        layer.thumbs[ATTENTION.which].length > 1 && element("button", { type: "button", class: "quiet mean", "aria-pressed": String(l === ATTENTION.layer && ATTENTION.head === MEAN), "aria-label": `${layerName(layer, l)}, mean of the heads`, on: { click: () => {
          [ATTENTION.layer, ATTENTION.head] = [l, MEAN];
          showSeen();
        } } }, "mean"))));
  const look = latest((answer) => {
    refuse(null);
    ATTENTION.seen = answer;
    showSeen();
  }, refuse);
  const show = () => {
    ATTENTION.request = asked();
    look("maps", ATTENTION.request);
  };
  const opened = latest((about) => {
    refuse(null);
    if (ATTENTION.about && ATTENTION.about.reads !== about.reads) [ATTENTION.text, ATTENTION.against] = ["", ""]; // words are not numbers
    ATTENTION.about = about;
    replace(inputs, aboutModel(about), inputFields(about, show, refuse));
    replace(grid);
    replace(large, empty("Give it something to read."));
    replace(read);
    caption.textContent = "";
    if (ATTENTION.text && about.reads !== "image") show();
  }, (error) => {
    replace(inputs);
    refuse(error);
  });
  const select = element("select", { id: "checkpoint", on: { change: () => {
    ATTENTION.checkpoint = select.value;
    if (select.value) opened("checkpoint", { checkpoint: select.value });
  } } });
  const list = latest(({ chosen, checkpoints }) => {
    tell(wrong, null);
    ATTENTION.checkpoints = checkpoints;
    const nothing = chosen ? "no checkpoint lies there" : "no folder was chosen";
    replace(select, element("option", { value: "" }, checkpoints.length ? "Choose …" : nothing), checkpoints.map((name) => element("option", { value: name }, name)));
    if (checkpoints.includes(ATTENTION.checkpoint)) {
      select.value = ATTENTION.checkpoint;
      opened("checkpoint", { checkpoint: ATTENTION.checkpoint });
    }
    if (!checkpoints.length) replace(inputs, element("p", { class: "hint" }, "Start with suffice studio --checkpoints FOLDER: a folder of suffice train, suffice convert, suffice compare or transformers, or one with such folders."));
  }, refuse);

  panel.append(element("div", { class: "columns" },
    element("aside", { "aria-label": "Checkpoint" }, element("h2", {}, "Checkpoint"), labelled("Model", select, "of suffice, or of transformers as it is"), inputs),
    element("div", { class: "main" }, element("h2", {}, "Who looks at what"), wrong,
      replace(seen, element("div", {}, large, caption, read), grid))));
  replace(large, empty("Choose a checkpoint, and give it a text or a picture to read."));
  list("checkpoints", {});
}

const empty = (words) => element("p", { class: "empty" }, words);

function aboutModel(about) {
  const kinds = [...new Set(about.layers)];
  return element("div", { class: "about" },
    element("p", {}, `${about.layers.length} layer${about.layers.length > 1 ? "s" : ""} of attention:`),
    element("ul", {}, kinds.map((kind) => element("li", {}, kind))));
}

// The number of a layer is the first one in its name: layers without weights have no map.
function layerName(layer, place) {
  const number = /\.(\d+)\./.exec(layer.name);
  return `Layer ${(number ? Number(number[1]) : place) + 1}`;
}

const LEAST_SHADED = 1e-3; // differences by rounding stay pale

// The map of an answer; of two models: both on one scale, and their difference on one around 0.
function mapsOf(answer, request) {
  const most = (...maps) => Math.max(...maps.flatMap((map) => [Math.abs(map.low), Math.abs(map.high)]));
  const unpack = (map, title, largest, ends = {}) => ({ ...map, ...ends, title, values: unpacked(map.values, "float"), most: largest });
  const { against, difference } = answer;
  if (!against) return [unpack(answer, "", most(answer) || 1)];
  const [both, moved] = [most(answer, against), Math.max(LEAST_SHADED, most(difference))];
  return [
    unpack(answer, request.checkpoint, both, { low: 0, high: both }),
    unpack(against, request.against, both, { low: 0, high: both }),
    unpack(difference, "the first less the second", moved, { low: -moved, high: moved }),
  ];
}

const variationOf = (map, row) => map.values.subarray(row * map.columns, (row + 1) * map.columns).reduce((sum, value) => sum + Math.abs(value) / 2, 0);
const meanVariation = (map) => Array.from({ length: map.rows }, (_, row) => variationOf(map, row)).reduce((sum, one) => sum + one, 0) / map.rows;

function describePair(maps, labels, row, column, generated) {
  const { columns, rows, sums } = maps[0];
  const key = columns === labels.length ? `“${labels[column]}”` : `sum ${column} of keys`;
  const value = (map) => map.values[row * columns + column].toFixed(4).replace(/^-(0\.0*)$/, "$1");
  const query = `“${labels[row]}” (${row}${row >= rows - generated ? ", generated" : ""})`;
  if (maps.length === 1) return `${query} looks at ${key} (${column}): ${value(maps[0])}; its row sums to ${sums[row].toFixed(4)}.`;
  return `${query} looks at ${key} (${column}): ${value(maps[0])} and ${value(maps[1])}, a difference of ${value(maps[2])}; total variation of its row: ${variationOf(maps[2], row).toFixed(4)}.`;
}

function inputFields(about, show, refuse) {
  const others = Object.fromEntries(ATTENTION.checkpoints.map((name) => [name, name]));
  const against = choiceField("Compare with", { "": "nothing", ...others }, others[ATTENTION.against] || "", (name) => {
    ATTENTION.against = name;
    remember("attention");
  }, { id: "against", hint: "a model that reads the same, such as a conversion" });
  if (!others[ATTENTION.against]) ATTENTION.against = "";
  const button = element("button", { type: "button", class: "main-action", id: "look", on: { click: show } }, "Show the maps");
  if (about.reads === "image") {
    const file = element("input", { type: "file", id: "picture", accept: "image/png,image/jpeg", on: { change: async () => {
      try {
        ATTENTION.image = file.files[0] ? await base64Of(file.files[0]) : null;
      } catch (error) {
        refuse(error);
      }
    } } });
    const scalings = { ...(about.trained && { trained: "as in training" }), own: "by the picture's own mean and deviation", plain: "from −1 to 1" };
    if (!scalings[ATTENTION.scaling]) [ATTENTION.scaling] = Object.keys(scalings);
    return [
      labelled("Picture", file, `JPEG or PNG; resized to ${about.image_size} × ${about.image_size}`),
      choiceField("Pixels", scalings, ATTENTION.scaling, (how) => {
        ATTENTION.scaling = how;
      }, { id: "scaling" }),
      against,
      button,
    ];
  }
  const text = element("textarea", { id: "attention-text", rows: "5", on: { input: () => {
    ATTENTION.text = text.value;
    remember("attention");
  } } });
  text.value = ATTENTION.text;
  const hint = about.reads === "ids" ? "numbers of tokens, such as 3 1 4: the folder has no tokenizer" : `at most ${whole(Math.min(256, about.length))} tokens`;
  return [
    labelled(about.reads === "ids" ? "Tokens" : "Text", text, hint),
    about.generates && numberField("New tokens", ATTENTION.newTokens, (count) => {
      ATTENTION.newTokens = count;
      remember("attention");
    }, { id: "new-tokens", hint: "that the model continues with, the most probable ones" }),
    against,
    button,
  ];
}

function base64Of(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.onerror = () => failed(new Error(`${file.name} could not be read; choose it again.`));
    reader.readAsDataURL(file);
  });
}

// What was read, shaded by how much a query takes of it, next to `most`; a patch becomes the query.
function readView(seen, row, values, most, choose) {
  const shade = (at) => Math.round(255 * Math.sqrt(Math.abs(values[at]) / most));
  if (seen.grid) {
    const svg = drawing("svg", { viewBox: `0 0 ${seen.grid} ${seen.grid}`, class: "patches", role: "img", "aria-label": "Patches, shaded by weight" });
    const kind = ATTENTION.image.startsWith("iVBOR") ? "png" : "jpeg";
    svg.append(drawing("image", { href: `data:image/${kind};base64,${ATTENTION.image}`, width: seen.grid, height: seen.grid, preserveAspectRatio: "none" }));
    for (let at = 0; at < seen.grid ** 2; at += 1) {
      const place = at + seen.extra;
      svg.append(drawing("rect", { x: at % seen.grid, y: Math.floor(at / seen.grid), width: 1, height: 1, class: place === row ? "own" : null, fill: colour(values[place] < 0 ? "bad" : "accent"), "fill-opacity": (0.85 * shade(place)) / 255, on: { click: () => choose(place) } },
        drawing("title", {}, `${seen.labels[place]}: ${values[place].toFixed(4)}`)));
    }
    const before = seen.labels.slice(0, seen.extra).map((label, place) => element("button", { type: "button", class: "quiet", "aria-pressed": String(place === row), on: { click: () => choose(place) } }, `${label}: ${values[place].toFixed(4)}`));
    return [svg, element("div", {}, before)];
  }
  return seen.labels.map((label, at) => {
    const generated = at >= seen.labels.length - seen.generated;
    const word = element("span", { class: `${at === row ? "own" : ""} ${generated ? "generated" : ""}`.trim() || null, title: `${values[at].toFixed(4)}${generated ? ", generated" : ""}` }, label);
    word.style.backgroundColor = `color-mix(in srgb, ${values[at] < 0 ? "var(--bad)" : "var(--accent)"} ${Math.round(shade(at) / 5.1)}%, transparent)`;
    return word;
  });
}

tab("attention", "Attention", buildAttention);
