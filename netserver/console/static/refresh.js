// Loads the page again every few seconds and puts its new content in place, unless somebody is at work in it.
const main = document.querySelector("main[data-refresh]");
const lost = document.getElementById("lost");
const everyMs = Number(main?.dataset.refresh ?? 0) * 1000;

function isBusy() {
  const at = document.activeElement;
  return document.hidden || !document.getSelection().isCollapsed ||
    (main.contains(at) && ["INPUT", "SELECT", "TEXTAREA", "BUTTON", "A"].includes(at.tagName));
}

async function refresh() {
  try {
    if (!isBusy()) {
      const answer = await fetch(location.href, {credentials: "same-origin", cache: "no-store"});
      if (answer.redirected) location.reload();
      const text = await answer.text();
      const found = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      if (answer.ok && found && !isBusy()) main.replaceChildren(...found.childNodes);
      lost.hidden = answer.ok;
    }
  } catch {
    lost.hidden = false;
  }
  setTimeout(refresh, everyMs);
}

if (everyMs > 0) setTimeout(refresh, everyMs);
