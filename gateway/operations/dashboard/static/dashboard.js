// What moves: parts marked data-live take their new content from the server's events. Everything works without it.
"use strict";

function replaceParts(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of fresh.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
    if (old && old.innerHTML !== part.innerHTML) {
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

document.documentElement.classList.add("js");
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
