"use strict";
// Without this script the page shows everything; with it long tables can be searched, sorted and unfolded.
for (const table of document.querySelectorAll("table[data-shown]")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const shown = innerWidth < 600 ? 12 : Number(table.dataset.shown);
  const isCards = table.classList.contains("cards");
  const find = isCards ? document.getElementById("find") : null, losers = isCards ? document.getElementById("losers") : null;
  const count = isCards ? document.getElementById("count") : null;
  const button = isCards ? document.getElementById("all") : table.parentElement.insertAdjacentElement("afterend", document.createElement("button"));
  let all = rows.length <= shown;
  button.type = "button";
  button.className = "all";
  button.textContent = `Show all ${rows.length.toLocaleString("en")} clients`;

  const update = () => {
    const word = find ? find.value.trim().toLowerCase() : "";
    const fitting = [...body.rows].filter(
      (row) => (!word || row.dataset.client.toLowerCase().includes(word)) && (!losers || !losers.checked || row.classList.contains("loses")));
    const visible = new Set(all ? fitting : fitting.slice(0, shown));
    for (const row of rows) row.classList.toggle("hidden", !visible.has(row));
    button.hidden = all || fitting.length <= shown;
    if (count) count.textContent = `${visible.size.toLocaleString("en")} of ${rows.length.toLocaleString("en")} clients shown`;
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
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[place].dataset.value;
        const ordered = [...rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = Number.isNaN(Number(x)) || Number.isNaN(Number(y)) ? x.localeCompare(y, "en", { numeric: true }) : Number(x) - Number(y);
          return down ? -order : order;
        });
        body.append(...ordered);
        update();
      });
    });
  }
  update();
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
