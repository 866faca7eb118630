/* Search without a server: browsers refuse workers on pages that are opened from a file, so the
   search runs in a hidden frame instead. The theme looks for the name IFrameWorker. */
if (location.protocol === "file:") {
  const frameSource = (url) => `<!doctype html><html><body><script>
    self.postMessage = (data) =>
      parent.dispatchEvent(new MessageEvent("frame-reply", { data: { data, source: self } }));
    self.importScripts = (...urls) =>
      urls.reduce((done, url) => done.then(() => new Promise((load, fail) => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = load;
        script.onerror = fail;
        document.body.appendChild(script);
      })), Promise.resolve());
  </script><script src="${url}"></script></body></html>`;

  window.IFrameWorker = class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.ready = new Promise((load) => this.frame.addEventListener("load", load));
      this.receive = ({ data }) => {
        if (data.source !== this.frame.contentWindow) return;
        const event = new MessageEvent("message", { data: data.data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      window.addEventListener("frame-reply", this.receive);
      const page = this.frame.contentDocument;
      page.open();
      page.write(frameSource(new URL(url, document.baseURI)));
      page.close();
    }

    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      window.removeEventListener("frame-reply", this.receive);
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
