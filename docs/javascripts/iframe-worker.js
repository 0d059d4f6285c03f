// A page that is opened from disk may not start a Worker, and the theme searches in one. So there the
// worker's script runs in a hidden frame. The theme would fetch such a file from another site; its
// plugin `offline` leaves that out for a file of this name (see mkdocs.yml).
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      const page = frame.contentDocument;
      page.open();
      this.scope.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => this.scope.addEventListener("load", done));
      page.write(`<script src="${url}"></script>`);
      page.close();
    }

    async postMessage(data) {
      await this.ready;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
