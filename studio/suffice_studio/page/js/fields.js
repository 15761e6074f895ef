// Labelled fields of forms, and messages.

let fieldNumber = 0;

function labelled(label, control, hint) {
  const id = control.id || `field-${++fieldNumber}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return element(
    "div",
    { class: "field" },
    element("label", { for: id }, label),
    control,
    hint && element("p", { class: "hint", id: `${id}-hint` }, hint),
  );
}

function numberField(label, value, change, { hint, min = 0, id, optional = false } = {}) {
  const input = element("input", {
    type: "text",
    inputmode: "numeric",
    autocomplete: "off",
    id,
    on: {
      input: () => {
        const words = input.value.replace(/[\s,_]/g, "");
        const right = (optional && !words) || (/^\d+$/.test(words) && Number(words) >= min);
        input.setAttribute("aria-invalid", String(!right));
        change(right ? Number(words || 0) : NaN, input.value);
      },
    },
  });
  input.value = String(value);
  return labelled(label, input, hint);
}

function choiceField(label, options, value, change, { hint, id } = {}) {
  const select = element(
    "select",
    { id, on: { change: () => change(select.value) } },
    Object.entries(options).map(([key, name]) => element("option", { value: key }, name)),
  );
  select.value = String(value);
  return labelled(label, select, hint);
}

function switchField(label, value, change, { hint, id } = {}) {
  const input = element("input", {
    type: "checkbox",
    id: id || `field-${++fieldNumber}`,
    on: { change: () => change(input.checked) },
  });
  input.checked = value;
  return element(
    "div",
    { class: "field switch" },
    element("label", { for: input.id }, input, element("span", {}, label)),
    hint && element("p", { class: "hint" }, hint),
  );
}

// One of a few values, as buttons beside each other.
function segments(label, options, value, change) {
  const name = `segments-${++fieldNumber}`;
  const items = Object.entries(options).map(([key, text]) => {
    const input = element("input", {
      type: "radio",
      name,
      value: key,
      on: { change: () => change(key) },
    });
    input.checked = key === String(value);
    return element("label", {}, input, element("span", {}, text));
  });
  return element(
    "fieldset",
    { class: "segments" },
    element("legend", {}, label),
    element("div", {}, items),
  );
}

const notice = (id) => element("p", { class: "notice", role: "alert", id, hidden: true });

function tell(node, error) {
  node.textContent = error ? error.message || String(error) : "";
  node.hidden = !error;
}
