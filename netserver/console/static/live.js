// Puts the newest records on top of the table while they come. Texts only: nothing of a record becomes markup.
const table = document.querySelector("table[data-live]");
const lost = document.getElementById("lost");
const ROWS = 200;

if (table) {
  const state = document.getElementById("live-state");
  const pause = document.getElementById("live-pause");
  const template = document.getElementById("live-row");
  let socket = null;
  let isPaused = false;
  let held = null; // what came while it was paused; no more comes before that was shown
  let waitMs = 500;

  function rowOf(record) {
    const row = template.content.firstElementChild.cloneNode(true);
    for (const cell of row.querySelectorAll("[data-field]")) cell.textContent = record[cell.dataset.field];
    row.querySelector("a").href = record.href;
    row.querySelector("[data-cut]").hidden = !record.cut;
    return row;
  }

  function take(message) {
    const body = table.tBodies[0];
    body.prepend(...message.rows.map(rowOf).reverse());
    while (body.rows.length > ROWS) body.lastElementChild.remove();
    const passed = message.passed === "0" ? "" : `, ${message.passed} of the last ${message.new} passed over`;
    state.textContent = `${message.rate} records a second${passed}`;
  }

  function release() {
    take(held);
    held = null;
    if (socket?.readyState === WebSocket.OPEN) socket.send("shown");
  }

  // A server that was started anew knows nobody: then the page leads to the login.
  async function again() {
    try {
      const answer = await fetch(location.href, {credentials: "same-origin", cache: "no-store"});
      if (answer.redirected) location.reload();
      else connect();
    } catch {
      setTimeout(again, waitMs);
      waitMs = Math.min(waitMs * 2, 10000);
    }
  }

  function connect() {
    socket = new WebSocket(new URL(table.dataset.live, location.href).href.replace(/^http/, "ws"));
    socket.onopen = () => { lost.hidden = true; waitMs = 500; held = null; state.textContent = "waiting for records"; };
    socket.onmessage = (event) => {
      held = JSON.parse(event.data);
      if (!isPaused) release();
    };
    socket.onclose = () => {
      lost.hidden = false;
      setTimeout(again, waitMs);
    };
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    if (isPaused) state.textContent = "paused";
    else if (held) release();
  });
  connect();
}
