/** Readers of strangers' files: strict JSON, base64, envelopes, canonical msgpack; and how messages show their values. */
import { refuse } from "./module.js";

const NOT_PRINTABLE = /[\p{C}\p{Z}]/u;
/** A sentence that may quote strangers, without what a screen would not show as it is. */
export const printable = (text) => Array.from(text, (c) => (c !== " " && c !== "\n" && NOT_PRINTABLE.test(c) ? "?" : c)).join("");

const SHORT = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** A text in quotes, with escapes for what cannot be shown. @param {boolean} [asciiOnly] @returns {string} */
export function quoted(text, asciiOnly = false) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const one = (c) => {
    const code = c.codePointAt(0);
    if (c === quote) return `\\${c}`;
    if (SHORT[c]) return SHORT[c];
    if (c === " " || !(NOT_PRINTABLE.test(c) || (asciiOnly && code > 126))) return c;
    const [letter, width] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
    return `\\${letter}${code.toString(16).padStart(width, "0")}`;
  };
  return quote + Array.from(text, one).join("") + quote;
}

/** A JSON value in a message, as the command line shows it: a text as it is, at most `size` characters. */
export const shown = (value, size = 200) => (typeof value === "string" ? value : nested(value, size)).slice(0, size);

function nested(value, size) {
  if (typeof value === "string") return quoted(value.slice(0, size));
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  const few = (items) => Array.from({ length: Math.min(items.length, size) }, (_, n) => items[n]);
  if (Array.isArray(value)) return `[${few(value).map((one) => nested(one, size)).join(", ")}]`;
  if (!(value instanceof Map)) return String(value);
  return `{${few([...value]).map(([key, one]) => `${quoted(key)}: ${nested(one, size)}`).join(", ")}}`;
}

const KINDS = { bigint: "int", number: "float", string: "str", boolean: "bool" };
const kindOf = (value) => (value === null ? "NoneType" : Array.isArray(value) ? "list"
  : value instanceof Uint8Array ? "bytes" : value instanceof Map ? "dict" : KINDS[typeof value]);

export const commas = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const isInteger = (value, low, high) => typeof value === "bigint" && value >= low && value <= high;

/** Sorted as Python sorts: by code points. */
export const sorted = (texts) => [...texts].sort((a, b) => {
  let k = 0;
  while (k < a.length && a[k] === b[k]) k++;
  return (a.codePointAt(k) ?? -1) - (b.codePointAt(k) ?? -1);
});

// ---------------------------------------------------------------- JSON

const SPACE = /[ \t\n\r]*/y, PLAIN = /[^"\\\u0000-\u001f]*/y, HEX = /^[0-9a-fA-F]{4}$/;
const NUMBER = /(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?/y;
const WORD = /null|true|false|NaN|-?Infinity/y;
const WORDS = { null: null, true: true, false: false };
const CONSTANTS = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };
const ESCAPES = { '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };
const MAX_DIGITS = 4300;

/** One JSON text: objects are Maps, integers BigInts. Its errors are those of Python's parser. */
class Parser {
  /** @param {boolean} lenient whether repeated names, NaN and infinities pass */
  constructor(text, lenient) { Object.assign(this, { text, lenient, at: 0 }); }

  fail(words, at = this.at) {
    const before = this.text.slice(0, at), line = before.split("\n").length;
    refuse(`${words}: line ${line} column ${at - before.lastIndexOf("\n")} (char ${at})`);
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  /** Goes past a character, and the space around it. */
  skip(character) {
    this.match(SPACE);
    if (this.text[this.at] !== character) return false;
    this.at++;
    this.match(SPACE);
    return true;
  }

  whole() {
    if (this.text.startsWith("\ufeff")) this.fail("Unexpected UTF-8 BOM (decode using utf-8-sig)");
    this.match(SPACE);
    const value = this.value();
    this.match(SPACE);
    return this.at < this.text.length ? this.fail("Extra data") : value;
  }

  value() {
    if (this.text[this.at] === '"') return this.string();
    if (this.text[this.at] === "{") return this.object();
    if (this.text[this.at] === "[") return this.list();
    const word = this.match(WORD)?.[0];
    if (word in CONSTANTS && !this.lenient) refuse(`expected finite numbers, got ${word}`);
    if (word) return word in WORDS ? WORDS[word] : CONSTANTS[word];
    const found = this.match(NUMBER) ?? this.fail("Expecting value");
    if (found[2] || found[3]) return Number(found[0]);
    const digits = found[0].replace("-", "").length;
    if (digits > MAX_DIGITS) {
      refuse(`Exceeds the limit (${MAX_DIGITS} digits) for integer string conversion: value has ${digits} digits; use `
        + "sys.set_int_max_str_digits() to increase the limit");
    }
    return BigInt(found[0]);
  }

  list() {
    const items = [];
    if (this.skip("[") && this.skip("]")) return items;
    do items.push(this.value()); while (this.skip(","));
    return this.skip("]") ? items : this.fail("Expecting ',' delimiter");
  }

  object() {
    const fields = new Map();
    if (this.skip("{") && this.skip("}")) return fields;
    do {
      if (this.text[this.at] !== '"') this.fail("Expecting property name enclosed in double quotes");
      const name = this.string();
      if (fields.has(name) && !this.lenient) refuse("a name appears twice");
      if (!this.skip(":")) this.fail("Expecting ':' delimiter");
      fields.set(name, this.value());
    } while (this.skip(","));
    return this.skip("}") ? fields : this.fail("Expecting ',' delimiter");
  }

  string() {
    const start = this.at++, parts = [];
    for (;;) {
      parts.push(this.match(PLAIN)[0]);
      const c = this.text[this.at++];
      if (c === '"') return parts.join("");
      if (c === undefined) this.fail("Unterminated string starting at", start);
      if (c !== "\\") this.fail("Invalid control character at", this.at - 1);
      const escape = this.text[this.at++];
      if (escape === undefined) this.fail("Unterminated string starting at", start);
      const hex = this.text.slice(this.at, this.at + 4);
      if (escape !== "u") parts.push(ESCAPES[escape] ?? this.fail("Invalid \\escape", this.at - 2));
      else if (!HEX.test(hex)) this.fail("Invalid \\uXXXX escape", this.at - 1);
      else parts.push(String.fromCharCode(parseInt(hex, 16))), this.at += 4;
    }
  }
}

/** Whether more than `depth` brackets of a JSON text are inside each other. @param {Uint8Array} bytes */
export function isDeeper(bytes, depth) {
  for (let at = 0, deep = 0, inside = false; at < bytes.length; at++) {
    const byte = bytes[at];
    if (byte === 0x22) inside = !inside;
    else if (inside) at += byte === 0x5c ? 1 : 0;
    else if (byte === 0x5b || byte === 0x7b) { if (++deep > depth) return true; }
    else if (byte === 0x5d || byte === 0x7d) deep--;
  }
  return false;
}

/** @param {Uint8Array} bytes @param {number} depth the most brackets inside each other */
export function parseJson(bytes, depth, lenient = false) {
  if (isDeeper(bytes, depth)) refuse(`expected at most ${depth} brackets inside each other, got more`);
  let text = "";
  try {
    text = new TextDecoder("utf-8", { fatal: !lenient, ignoreBOM: !lenient }).decode(bytes);
  } catch {
    refuse("expected UTF-8, got other bytes");
  }
  return new Parser(text, lenient).whole();
}

const CONTROL = { "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\" };
const escaped = (c) => CONTROL[c] ?? `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** The one JSON of a value: sorted names, no spaces, ASCII. Objects may be Maps. */
export function dumps(value) {
  if (typeof value === "string") return `"${value.replace(/["\\]|[^ -\x7f]/g, escaped)}"`;
  if (Array.isArray(value)) return `[${value.map(dumps).join(",")}]`;
  if (value === null || typeof value !== "object") return String(value);
  const fields = value instanceof Map ? value : new Map(Object.entries(value));
  return `{${sorted(fields.keys()).map((name) => `${dumps(name)}:${dumps(fields.get(name))}`).join(",")}}`;
}

/** The fields of an object, each of which is taken once. Every error names the field. */
export class JsonFields {
  constructor(name, data) {
    if (!(data instanceof Map)) refuse(`${name}: expected an object, got ${kindOf(data)}`);
    this.name = name;
    this.left = new Map(data);
  }

  static parse(name, bytes, depth) {
    try {
      return new JsonFields(name, parseJson(bytes, depth));
    } catch (error) {
      if (error.message.startsWith(`${name}: expected an object`)) throw error;
      return refuse(`${name}: expected JSON, got something else: ${error.message}`);
    }
  }

  take(key, expected, allows) {
    if (!this.left.has(key)) refuse(`${this.name}: expected a field ${quoted(key)}, got none`);
    const value = this.left.get(key);
    this.left.delete(key);
    if (!allows(value)) refuse(`${this.name}, ${key}: expected ${expected}, got ${quoted(shown(value))}`);
    return value;
  }

  has(key) { return this.left.has(key); }
  integer(key, low, high) {
    return this.take(key, `an integer from ${low} to ${high}`, (value) => isInteger(value, low, high));
  }
  /** @param {RegExp} pattern for the whole text */
  text(key, pattern = /^/, expected = "text") {
    return this.take(key, expected, (value) => typeof value === "string" && pattern.test(value));
  }
  /** Bytes in lower-case hex after a prefix, as hex without it. */
  hex(key, length, prefix = "0x") {
    const words = `${prefix && `${prefix} and `}${2 * length} hex digits`;
    return this.text(key, new RegExp(`^${prefix}[0-9a-f]{${2 * length}}$`), words).slice(prefix.length);
  }
  digest(key) { return this.hex(key, 32, ""); }
  digests(key) {
    return this.take(key, "a list of roots", Array.isArray)
      .map((item) => new JsonFields(key, new Map([["root", item]])).digest("root"));
  }
  same(key, value, source = "") { this.take(key, `${value}${source}`, (found) => found === value); }
  inner(key) {
    return new JsonFields(`${this.name}, ${key.slice(0, 200)}`, this.take(key, "an object", (x) => x instanceof Map));
  }
  /** Any printable names, each with a printable text. */
  texts() {
    const found = new Map([...this.left.keys()].map((name) => [name, this.text(name, /^[ -~]{0,255}$/, "printable text")]));
    if (![...found.keys()].every((name) => /^[ -~]*$/.test(name))) refuse("statement: expected printable names, got others");
    return found;
  }
  finish() {
    if (this.left.size) refuse(`${this.name}: expected no other fields, got ${quoted(sorted(this.left.keys())[0].slice(0, 200))}`);
  }
}

// ---------------------------------------------------------------- base64 and envelopes (DSSE v1)

export const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

export function fromBase64(name, text) {
  if (text.length % 4 || !/^[A-Za-z0-9+/]*={0,2}$/.test(text)) refuse(`${name}: expected base64, got ${quoted(text.slice(0, 40))}`);
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return base64(bytes) === text ? bytes : refuse(`${name}: expected the one base64 of these bytes, got another`);
}

export const MAX_ENVELOPE = 128 << 10;
const MAX_SIGNATURES = 64, MAX_SIGNATURE = 512;

/** @param {Uint8Array} bytes @returns {{kind: string, payload: Uint8Array, signatures: Map<string, Uint8Array>}} */
export function readEnvelope(bytes) {
  if (bytes.length > MAX_ENVELOPE) refuse(`envelope: expected at most ${MAX_ENVELOPE} bytes, got ${bytes.length}`);
  const top = JsonFields.parse("envelope", bytes, 3), signatures = new Map();
  const kind = top.text("payloadType", /^[ -~]{1,128}$/), payload = fromBase64("payload", top.text("payload"));
  const few = (list) => Array.isArray(list) && list.length <= MAX_SIGNATURES;
  const listed = top.take("signatures", `up to ${MAX_SIGNATURES} signatures`, few);
  top.finish();
  listed.forEach((item, n) => {
    const one = new JsonFields(`envelope, signature ${n + 1}`, item);
    const key = one.text("keyid", /^[ -~]{0,128}$/, "up to 128 printable characters");
    const signature = fromBase64("signature", one.text("sig"));
    one.finish();
    if (signatures.has(key) || signature.length > MAX_SIGNATURE)
      refuse(`envelope: expected one short signature for each key id, got ${quoted(key)} otherwise`);
    signatures.set(key, signature);
  });
  return { kind, payload, signatures };
}
