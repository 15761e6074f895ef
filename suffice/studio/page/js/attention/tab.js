// The tab of attention maps: a checkpoint, something to read, and who looks at what.

const ATTENTION = { checkpoint: "", about: null, text: "", image: null, scaling: "own", which: "weights", layer: 0, head: 0, seen: null };

const MEAN = -1; // instead of a head: the mean of all heads of a layer
const readAttention = () => {
  const { checkpoint, text, scaling, which, layer, head } = ATTENTION;
  return { checkpoint, text, scaling, which, layer, head };
};
const writeAttention = (data) =>
  Object.assign(ATTENTION, known({ checkpoint: "", text: "", scaling: "", which: "", layer: 0, head: 0 }, data));

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
  const asked = () => ({ checkpoint: ATTENTION.checkpoint, text: ATTENTION.text, image: ATTENTION.image, scaling: ATTENTION.scaling });

  const showMap = latest((answer) => {
    const { labels } = ATTENTION.seen;
    const pointed = (row, column, value, sum, values) => {
      const mine = answer.columns === labels.length;
      const key = mine ? `“${labels[column]}”` : `sum ${column} of keys`;
      caption.textContent = `“${labels[row]}” (${row}) looks at ${key} (${column}): ${value.toFixed(4)}; its row sums to ${sum.toFixed(4)}.`;
      replace(read, readView(ATTENTION.seen, row, mine ? values.subarray(row * answer.columns, (row + 1) * answer.columns) : null));
    };
    const { map, node } = mapView(answer, pointed, labels);
    const head = ATTENTION.head === MEAN ? "mean of the heads" : `head ${ATTENTION.head + 1}`;
    const title = `Layer ${ATTENTION.layer + 1}, ${head}`;
    replace(large, element("h3", {}, title), node, saveTools(fileName(`${ATTENTION.checkpoint} ${title}`), {
      svg: () => map.file(`${ATTENTION.checkpoint}: ${title}`),
      rows: () => map.rows(),
      label: `the map of ${title}`,
    }));
    remember("attention");
  }, refuse);
  const openMap = () => showMap("map", { ...asked(), layer: ATTENTION.layer, head: ATTENTION.head, which: ATTENTION.which });
  const showSeen = () => {
    const { seen } = ATTENTION;
    ATTENTION.layer = Math.min(ATTENTION.layer, seen.layers.length - 1);
    ATTENTION.head = Math.max(MEAN, Math.min(ATTENTION.head, seen.layers[ATTENTION.layer].heads - 1));
    replace(grid, whichMap(seen), thumbGrid(seen));
    openMap();
  };
  const whichMap = (seen) =>
    seen.layers.some((layer) => layer.mixed) &&
    segments("Map", { weights: "Weights of the kernel", effective: "Effective: with the mixing" }, ATTENTION.which, (which) => {
      ATTENTION.which = which;
      showSeen();
    });
  const thumbGrid = (seen) => seen.layers.map((layer, l) =>
    element("div", { class: "layer" }, element("span", { title: layer.name }, `Layer ${l + 1}`),
      element("div", {}, layer.thumbs[ATTENTION.which].map((thumb, h) =>
        thumbnail(thumb, `Layer ${l + 1}, head ${h + 1}`, l === ATTENTION.layer && h === ATTENTION.head, () => {
          [ATTENTION.layer, ATTENTION.head] = [l, h];
          showSeen();
        })),
        layer.heads > 1 && element("button", { type: "button", class: "quiet mean", "aria-pressed": String(l === ATTENTION.layer && ATTENTION.head === MEAN), "aria-label": `Layer ${l + 1}, mean of the heads`, on: { click: () => {
          [ATTENTION.layer, ATTENTION.head] = [l, MEAN];
          showSeen();
        } } }, "mean"))));
  const look = latest((answer) => {
    refuse(null);
    ATTENTION.seen = answer;
    showSeen();
  }, refuse);
  const show = () => look("maps", asked());
  const opened = latest((about) => {
    refuse(null);
    if (ATTENTION.about && ATTENTION.about.reads !== about.reads) ATTENTION.text = ""; // words are no numbers
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
    const nothing = chosen ? "no checkpoint lies there" : "no folder was chosen";
    replace(select, element("option", { value: "" }, checkpoints.length ? "Choose …" : nothing), checkpoints.map((name) => element("option", { value: name }, name)));
    if (checkpoints.includes(ATTENTION.checkpoint)) {
      select.value = ATTENTION.checkpoint;
      opened("checkpoint", { checkpoint: ATTENTION.checkpoint });
    }
    if (!checkpoints.length) replace(inputs, element("p", { class: "hint" }, "Start with suffice studio --checkpoints FOLDER: a folder of suffice train, suffice convert, suffice compare or transformers, or one with such folders."));
  }, refuse);

  panel.append(element("div", { class: "columns" },
    element("aside", { "aria-label": "Checkpoint" }, element("h2", {}, "Checkpoint"), labelled("Model", select), inputs),
    element("div", { class: "main" }, element("h2", {}, "Who looks at what"), wrong,
      replace(seen, element("div", {}, large, caption, read), grid))));
  replace(large, empty("Choose a checkpoint, and give it a text or a picture to read."));
  list("checkpoints", {});
}

const empty = (words) => element("p", { class: "empty" }, words);

function aboutModel(about) {
  const kinds = [...new Set(about.layers.map((layer) => layer.description))];
  return element("div", { class: "about" },
    element("p", {}, `${about.layers.length} layer${about.layers.length > 1 ? "s" : ""} of attention:`),
    element("ul", {}, kinds.map((kind) => element("li", {}, kind))));
}

function inputFields(about, show, refuse) {
  const button = element("button", { type: "button", class: "main-action", id: "look", on: { click: show } }, "Show the maps");
  if (about.reads === "image") {
    const file = element("input", { type: "file", id: "picture", accept: "image/png,image/jpeg", on: { change: async () => {
      try {
        ATTENTION.image = file.files[0] ? await base64Of(file.files[0]) : null;
      } catch (error) {
        refuse(error);
      }
    } } });
    return [
      labelled("Picture", file, `JPEG or PNG; resized to ${about.image_size} × ${about.image_size}`),
      choiceField("Pixels", { own: "by the picture's own mean and deviation", plain: "from −1 to 1" }, ATTENTION.scaling, (how) => {
        ATTENTION.scaling = how;
      }, { id: "scaling" }),
      button,
    ];
  }
  const text = element("textarea", { id: "attention-text", rows: "5", on: { input: () => {
    ATTENTION.text = text.value;
    remember("attention");
  } } });
  text.value = ATTENTION.text;
  const hint = about.reads === "ids" ? "numbers of tokens, such as 3 1 4: no tokenizer lies beside it" : `at most ${whole(Math.min(256, about.length))} tokens`;
  return [labelled(about.reads === "ids" ? "Tokens" : "Text", text, hint), button];
}

function base64Of(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.split(",")[1]);
    reader.onerror = () => failed(new Error(`${file.name} could not be read; choose it again.`));
    reader.readAsDataURL(file);
  });
}

// What was read, shaded by how much a query takes of it.
function readView(seen, row, values) {
  if (!values) return [];
  const most = Math.max(...values.map(Math.abs)) || 1;
  const shade = (at) => Math.round(255 * Math.sqrt(Math.abs(values[at]) / most));
  if (seen.grid) {
    const svg = drawing("svg", { viewBox: `0 0 ${seen.grid} ${seen.grid}`, class: "patches", role: "img", "aria-label": "Patches, shaded by weight" });
    const kind = ATTENTION.image.startsWith("iVBOR") ? "png" : "jpeg";
    svg.append(drawing("image", { href: `data:image/${kind};base64,${ATTENTION.image}`, width: seen.grid, height: seen.grid, preserveAspectRatio: "none", opacity: 0.35 }));
    for (let at = 0; at < seen.grid ** 2; at += 1) {
      const place = at + seen.extra;
      svg.append(drawing("rect", { x: at % seen.grid, y: Math.floor(at / seen.grid), width: 1, height: 1, class: place === row ? "own" : null, fill: colour(values[place] < 0 ? "bad" : "accent"), "fill-opacity": (0.8 * shade(place)) / 255 }));
    }
    return [svg];
  }
  return seen.labels.map((label, at) => {
    const word = element("span", { class: at === row ? "own" : null, title: values[at].toFixed(4) }, label);
    word.style.backgroundColor = `color-mix(in srgb, ${values[at] < 0 ? "var(--bad)" : "var(--accent)"} ${Math.round(shade(at) / 5.1)}%, transparent)`;
    return word;
  });
}

tab("attention", "Attention", buildAttention);
