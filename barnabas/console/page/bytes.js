// Bytes of records as text, JSON or hex.

const HEX_BYTES_MAX = 65536;

export function decode(base64) {
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) found[at] = text.charCodeAt(at);
  return found;
}

// null where the bytes are no UTF-8. A character that is cut off at the end of cut bytes does not count.
export function asText(data, isCut) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data, { stream: isCut });
  } catch {
    return null;
  }
}

export function asHex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_BYTES_MAX); at += 16) {
    const part = [...data.subarray(at, at + 16)];
    const hex = part.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    const text = part.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  if (data.length > HEX_BYTES_MAX) lines.push(`... ${data.length - HEX_BYTES_MAX} more bytes`);
  return lines.join("\n");
}

export function isJson(text) {
  if (!/^\s*[[{]/.test(text)) return false;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// Valid JSON with line breaks and indents. Its text stays as it is: numbers beyond a double's digits do not change.
export function indented(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[[\]{}:,]|[^\s[\]{}:,"]+/g) || [];
  const out = [];
  let depth = 0;
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      depth += 1;
      out.push(token, next === "}" || next === "]" ? "" : `\n${"  ".repeat(depth)}`);
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      out.push(isEmpty ? "" : `\n${"  ".repeat(depth)}`, token);
    } else if (token === ",") out.push(`,\n${"  ".repeat(depth)}`);
    else out.push(token === ":" ? ": " : token);
  });
  return out.join("");
}

// [what it is shown as, its text] of a field {data, size}; `mode` is auto, text, json or hex.
export function shown(field, mode) {
  const data = decode(field.data);
  const isCut = data.length < field.size;
  const text = mode === "hex" ? null : asText(data, isCut);
  if (text === null) return ["hex", asHex(data)];
  if (mode !== "text" && !isCut && isJson(text)) return ["JSON", indented(text)];
  return ["text", text];
}

// One line for a table.
export function preview(field, mode, length = 160) {
  const data = decode(field.data).subarray(0, 1024);
  const text = mode === "hex" ? null : asText(data, data.length < field.size);
  const line = text === null ? [...data.subarray(0, 64)].map((each) => each.toString(16).padStart(2, "0")).join(" ") : text.replace(/\s+/g, " ");
  return line.length > length || data.length < field.size ? `${line.slice(0, length)}…` : line;
}
