// Selecting rows of a list for what is done to many of them. The boxes and the form work without this; here all are ticked at once, a
// range is with Shift, and it is told how many there are.

const boxes = () => [...document.querySelectorAll('input[type="checkbox"][form="selected"]')];

function show() {
  const form = document.getElementById("selected");
  if (!form) return;
  const all = boxes();
  const ticked = all.filter((box) => box.checked).length;
  const count = document.getElementById("selected-count");
  count.hidden = false;
  count.textContent = ` (${ticked})`;
  for (const button of form.querySelectorAll("button")) button.disabled = !ticked;
  const whole = document.getElementById("select-all");
  whole.hidden = false;
  whole.checked = ticked > 0 && ticked === all.length;
  whole.indeterminate = ticked > 0 && ticked < all.length;
}

export function selection() {
  let last = null;
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!box.matches?.('input[type="checkbox"]')) return;
    if (box.id === "select-all") {
      for (const each of boxes()) each.checked = box.checked;
    } else if (box.getAttribute("form") === "selected") {
      const all = boxes();
      const [from, to] = [all.indexOf(last), all.indexOf(box)].sort((one, other) => one - other);
      if (event.shiftKey && from >= 0) for (const each of all.slice(from, to + 1)) each.checked = box.checked;
      last = box;
    } else {
      return;
    }
    show();
  });
  // what is drawn anew knows nothing of this
  document.addEventListener("rota:drawn", show);
  addEventListener("pageshow", show);
  show();
}
