// What the coordinator says, as it comes.
const source = new EventSource("/api/events");
source.addEventListener("field", (event) => {
  const field = JSON.parse(event.data);
  const pre = document.createElement("pre");
  pre.textContent = JSON.stringify(field.run, null, 2);
  document.getElementById("view-overview").replaceChildren(pre);
});
