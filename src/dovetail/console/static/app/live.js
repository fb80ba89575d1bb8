/**
 * Documents as they change, over one stream of server-sent events.
 *
 * States: connecting → live → lost → connecting …; paused by the person, asleep while nobody sees
 * the page (the node does no work for it then). Each event carries a whole document, so nothing is
 * missed by a break: the first event after it is the present.
 */

const RETRY_MS = [500, 1000, 2000, 5000, 10_000];

export class Live {
  /**
   * `onDocument(watch, document)`, `onTrouble(watch, error)`, `onState(state)`; `onFailure()` each
   * time that the stream broke or could not be had.
   */
  constructor({ onDocument, onTrouble, onState, onFailure }) {
    this.onFailure = onFailure;
    this.onDocument = onDocument;
    this.onTrouble = onTrouble;
    this.onState = onState;
    this.watches = [];
    this.paused = false;
    this.state = "connecting";
    this.source = null;
    this.timer = null;
    this.failures = 0;
    document.addEventListener("visibilitychange", () => this.#restart());
  }

  /** From now on these documents, and no others. */
  watch(watches) {
    if (watches.join("\n") === this.watches.join("\n") && this.source) return;
    this.watches = watches;
    this.#restart();
  }

  setPaused(paused) {
    this.paused = paused;
    this.#restart();
  }

  #restart() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    if (this.paused) return this.#become("paused");
    if (document.hidden || this.watches.length === 0) return this.#become("asleep");
    return this.#open();
  }

  #open() {
    const query = new URLSearchParams(this.watches.map((name) => ["watch", name]));
    const source = new EventSource(`/v1/live?${query}`);
    this.source = source;
    if (this.state !== "lost") this.#become("connecting");
    source.addEventListener("hello", () => {
      this.failures = 0;
      this.#become("live");
    });
    for (const name of this.watches) {
      source.addEventListener(name, (event) => this.onDocument(name, JSON.parse(event.data)));
    }
    source.addEventListener("trouble", (event) => {
      const { watch, error } = JSON.parse(event.data);
      this.onTrouble(watch, error);
    });
    source.addEventListener("bye", () => this.#lost(source));
    source.onerror = () => this.#lost(source);
  }

  #lost(source) {
    if (source !== this.source) return;
    source.close();
    this.source = null;
    this.#become("lost");
    const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    this.failures += 1;
    this.onFailure();
    this.timer = setTimeout(() => this.#restart(), wait);
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.onState(state);
  }
}
