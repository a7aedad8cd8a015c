// What moves: parts marked data-live take their new content from the server's events. Everything works without it.
"use strict";

function replaceParts(html, which = "[data-live]") {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of fresh.querySelectorAll(which)) {
    const old = document.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
    // What somebody has opened or points at stays as it is until they are done.
    const read = old?.querySelector("details[open]") || (old?.matches(":hover") && old.querySelector(".timeline"));
    if (old && !read && old.innerHTML !== part.innerHTML) {
      const holder = old.contains(document.activeElement) ? document.activeElement.id : "";
      old.replaceChildren(...document.importNode(part, true).childNodes);
      if (holder) document.getElementById(holder)?.focus();
    }
  }
}

function follow(button) {
  let source = null;
  const state = (text, pressed) => {
    button.textContent = text;
    button.setAttribute("aria-pressed", String(pressed));
  };
  const stop = () => {
    source?.close();
    source = null;
    state("Resume updates", true);
  };
  const start = () => {
    source = new EventSource(button.dataset.events);
    source.onmessage = (event) => replaceParts(event.data);
    // Where the session has ended the page itself says so.
    source.onerror = () => source?.readyState === EventSource.CLOSED && location.reload();
    state("Pause updates", false);
  };
  button.hidden = false;
  button.addEventListener("click", () => (source ? stop() : start()));
  // A hidden page sends no requests.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && source) {
      source.close();
      source = null;
    } else if (!document.hidden && !source && button.getAttribute("aria-pressed") !== "true") start();
  });
  if (!document.hidden) start();
}

// Outside HTTPS and localhost there is no clipboard: the text is selected instead.
async function copy(button) {
  const text = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "Selected";
  }
}

const sent = (form, url, accept) =>
  fetch(url, { method: "POST", headers: { accept }, body: new URLSearchParams(new FormData(form)) });

// What answers instead of what was asked for: a page that says what is wrong, or the sign-in.
async function instead(response) {
  if (response.redirected) return location.reload();
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  document.getElementById("main").replaceWith(document.importNode(page.getElementById("main"), true));
}

// The route of the prompt as it is being written.
function previewed(form) {
  let timer = 0, newest = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const mine = ++newest;
      if (!form.elements.prompt.value.trim()) return;
      const response = await sent(form, form.action, "text/html");
      const html = await response.text();
      if (mine === newest && !response.redirected) replaceParts(html, '[data-live="route"]');
    }, 300);
  });
}

// Both answers as they come: lines of JSON, each a piece of a text, or parts of the page.
async function ask(form, button) {
  button.disabled = true;
  form.querySelector("[data-examples]").open = false;
  try {
    const response = await sent(form, button.formAction, "application/x-ndjson");
    if (!response.headers.get("content-type")?.startsWith("application/x-ndjson")) return await instead(response);
    let rest = "";
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let read = await reader.read(); !read.done; read = await reader.read()) {
      const lines = (rest + read.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const said = JSON.parse(line);
        if (said.html) replaceParts(said.html);
        else document.querySelector(`[data-answer="${said.place}"]`)?.append(said.text);
      }
    }
  } finally {
    button.disabled = false;
  }
}

// The values of a chart at the time that is pointed at: a row of its table.
function pointAt(event) {
  const chart = event.target.closest?.(".timeline > svg")?.parentElement;
  if (!chart) return;
  const svg = chart.querySelector("svg");
  const rows = chart.querySelectorAll("tbody tr");
  const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
  const place = Math.min(Math.max(Math.round((x / 600) * (rows.length - 1)), 0), rows.length - 1);
  const cursor = svg.querySelector(".cursor");
  cursor.setAttribute("visibility", "visible");
  cursor.setAttribute("transform", `translate(${(place / Math.max(rows.length - 1, 1)) * 600})`);
  const [at, ...values] = Array.from(rows[place].cells, (cell) => cell.textContent);
  const names = Array.from(chart.querySelectorAll("thead th"), (cell) => cell.textContent).slice(1);
  chart.querySelector(".readout").textContent = `${at}: ${names.map((name, n) => `${name} ${values[n]}`).join(", ")}`;
}

document.documentElement.classList.add("js");
document.addEventListener("pointermove", pointAt);
document.addEventListener("pointerdown", pointAt);
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button[data-copy]");
  if (button) copy(button);
});
for (const button of document.querySelectorAll("button[data-events]")) follow(button);
for (const form of document.querySelectorAll("form[data-confirm]")) {
  form.addEventListener("submit", (event) => confirm(form.dataset.confirm) || event.preventDefault());
}
for (const slider of document.querySelectorAll("[data-mirrors]")) {
  const field = document.getElementById(slider.dataset.mirrors);
  slider.addEventListener("input", () => (field.value = slider.value));
  field.addEventListener("input", () => (slider.value = field.value));
}
for (const field of document.querySelectorAll("[data-submit]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}
for (const form of document.querySelectorAll("form[data-try]")) {
  previewed(form);
  form.addEventListener("submit", (event) => {
    if (event.submitter?.dataset.ask === undefined) return;
    event.preventDefault();
    ask(form, event.submitter);
  });
}
