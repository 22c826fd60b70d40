// Sends a form and tells how much of it has left this device, which fetch cannot tell.

/** Sends a form as a POST request; returns the Response as fetch gives it, but of its headers only Retry-After. */
export function upload(url, { headers, body, signal, onSent }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => { if (total) onSent(loaded / total); });
    request.addEventListener("load", () => {
      const retryAfter = request.getResponseHeader("Retry-After");
      resolve(new Response(request.responseText, { status: request.status, headers: retryAfter === null ? {} : { "Retry-After": retryAfter } }));
    });
    request.addEventListener("error", () => reject(new TypeError("the connection was lost")));
    signal.addEventListener("abort", () => {
      request.abort();
      reject(signal.reason);
    }, { once: true });
    request.send(body);
  });
}
