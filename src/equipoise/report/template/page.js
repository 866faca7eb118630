"use strict";
// Without this script the page shows everything; with it long tables can be searched, sorted and unfolded.
function enhance(table) {
  const body = () => table.tBodies[0];
  const shown = innerWidth < 600 ? 12 : Number(table.dataset.shown);
  const isCards = table.classList.contains("cards");
  const find = isCards ? document.getElementById("find") : null, losers = isCards ? document.getElementById("losers") : null;
  const count = isCards ? document.getElementById("count") : null;
  const button = isCards ? document.getElementById("all") : table.parentElement.insertAdjacentElement("afterend", document.createElement("button"));
  let all = false, sorted = null;
  button.type = "button";
  button.className = "all";

  const update = () => {
    const rows = [...body().rows], few = all || rows.length <= shown;
    const word = find ? find.value.trim().toLowerCase() : "";
    const fitting = rows.filter(
      (row) => (!word || row.dataset.client.toLowerCase().includes(word)) && (!losers || !losers.checked || row.classList.contains("loses")));
    const visible = new Set(few ? fitting : fitting.slice(0, shown));
    for (const row of rows) row.classList.toggle("hidden", !visible.has(row));
    button.textContent = `Show all ${rows.length.toLocaleString("en")} clients`;
    button.hidden = few || fitting.length <= shown;
    if (count) count.textContent = `${visible.size.toLocaleString("en")} of ${rows.length.toLocaleString("en")} clients shown`;
  };
  const sort = () => {
    if (!sorted) return;
    const key = (row) => row.cells[sorted.place].dataset.value;
    body().append(...[...body().rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = Number.isNaN(Number(x)) || Number.isNaN(Number(y)) ? x.localeCompare(y, "en", { numeric: true }) : Number(x) - Number(y);
      return sorted.down ? -order : order;
    }));
  };
  button.addEventListener("click", () => { all = true; update(); });
  for (const control of [find, losers]) control?.addEventListener("input", update);

  if (isCards) {
    document.querySelector(".controls").hidden = false;
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      const sorter = document.createElement("button");
      sorter.type = "button";
      sorter.textContent = head.textContent;
      head.replaceChildren(sorter);
      sorter.addEventListener("click", () => {
        sorted = { place, down: head.getAttribute("aria-sort") === "ascending" };
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
        sort();
        update();
      });
    });
    document.addEventListener("swapped", () => { sort(); update(); });
  }
  update();
}

// A frame that scrolls says so, since a phone shows no scroll bar; the words go once its end was reached.
function hint(frame) {
  const cue = frame.previousElementSibling;
  const look = () => { cue.hidden = frame.scrollLeft + frame.clientWidth >= frame.scrollWidth - 2; };
  frame.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(frame);
}

function ready(root) {
  root.querySelectorAll("table[data-shown]").forEach(enhance);
  root.querySelectorAll(".wide").forEach(hint);
}
ready(document);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
