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
  let owesAnswer = false;
  let waitMs = 500;

  function shown() {
    owesAnswer = false;
    if (socket?.readyState === WebSocket.OPEN) socket.send("shown");
  }

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

  function connect() {
    socket = new WebSocket(new URL(table.dataset.live, location.href).href.replace(/^http/, "ws"));
    socket.onopen = () => { lost.hidden = true; waitMs = 500; owesAnswer = false; state.textContent = "waiting for records"; };
    socket.onmessage = (event) => {
      take(JSON.parse(event.data));
      owesAnswer = true;
      if (!isPaused) shown();
    };
    socket.onclose = () => {
      lost.hidden = false;
      setTimeout(connect, waitMs);
      waitMs = Math.min(waitMs * 2, 10000);
    };
  }

  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    if (isPaused) state.textContent = "paused";
    else if (owesAnswer) shown();
  });
  connect();
}
