"use strict";
// The server renders the state, with all text escaped; this script only replaces it by the next one.
const state = document.getElementById("state");
const offline = document.getElementById("offline");
const events = new EventSource("events");
events.onmessage = (event) => {
  state.innerHTML = JSON.parse(event.data);
  offline.hidden = true;
};
events.onerror = () => { offline.hidden = false; };
