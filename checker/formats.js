/** Readers of strangers' files: strict JSON, base64 and envelopes; and how messages show what they hold. */
import { Refused, refuse } from "./module.js";

/** A sentence that may quote strangers, with a question mark for each character that a screen would not show as it is. */
export const printable = (text) => text.replace(/(?![ \n])[\p{C}\p{Z}]/gu, "?");

/** A text in the quotes that Python gives it. */
export function quoted(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  return quote + printable(text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll(quote, `\\${quote}`)) + quote;
}

/** The beginning of a JSON value in a message. */
export const shown = (value) => quoted((typeof value === "string" ? value : dumps(value)).slice(0, 200));

export const commas = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
export const isInteger = (value, low, high) => typeof value === "bigint" && value >= low && value <= high;

/** Sorted as Python sorts: by code points. */
export const sorted = (texts) => [...texts].sort((a, b) => {
  let k = 0;
  while (k < a.length && a[k] === b[k]) k++;
  return (a.codePointAt(k) ?? -1) - (b.codePointAt(k) ?? -1);
});

// ---------------------------------------------------------------- JSON

/** Strings, of which one may lack its end; numbers; constants that are not JSON; and what structure is made of. */
const TOKENS = /"[^"\\]*(?:\\[^][^"\\]*)*(?:"|\\?$)|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|NaN|-?Infinity|[:[\]{}]/g;
const INTEGER = /^-?(?:0|[1-9]\d*)$/, MAX_DIGITS = 4300;

export class TooDeep extends Refused {}

/**
 * A JSON value whose objects are Maps, and integers BigInts. Before `JSON.parse` reads it, a letter in front of each string
 * and integer tells them apart, keeps long integers exact, and makes any name one that JavaScript gives no meaning.
 * @param {Uint8Array} bytes @param {number} depth the most brackets inside each other
 * @param {boolean} lenient whether repeated names, NaN, infinities and bytes that are not UTF-8 pass
 */
export function parseJson(bytes, depth, lenient = false) {
  let deep = 0, colons = 0, members = 0, longest = 0;
  const tag = (token) => {
    if (token[0] === '"') return `"s${token.slice(1)}`;
    if (token === ":") colons++;
    else if (token === "[" || token === "{") {
      if (++deep > depth) throw new TooDeep(`expected at most ${depth} brackets inside each other, got more`);
    } else if (token === "]" || token === "}") deep--;
    else if (INTEGER.test(token)) {
      longest = Math.max(longest, token.length - (token[0] === "-" ? 1 : 0));
      return `"i${token}"`;
    } else if (lenient && /[NI]/.test(token)) return " 1e999";
    return token;
  };
  const untagged = (value) => {
    if (typeof value === "string") return value[0] === "s" ? value.slice(1) : BigInt(value.slice(1));
    if (Array.isArray(value)) return value.map(untagged);
    if (value === null || typeof value !== "object") return value;
    const names = Object.keys(value);
    members += names.length;
    if (!names.every((name) => name[0] === "s")) refuse("expected names in quotes, got an integer");
    return new Map(names.map((name) => [name.slice(1), untagged(value[name])]));
  };
  let found = null;
  try {
    const text = new TextDecoder("utf-8", { fatal: !lenient, ignoreBOM: !lenient }).decode(bytes).replace(TOKENS, tag);
    if (longest > MAX_DIGITS) refuse(`expected integers of at most ${MAX_DIGITS} digits, got one of ${longest}`);
    found = untagged(JSON.parse(text));
  } catch (error) {
    if (error instanceof Refused) throw error;
    refuse("bytes that are not UTF-8, or break a rule of JSON");
  }
  return lenient || members === colons ? found : refuse("a name appears twice");
}

/** The one JSON of a value: sorted names, no spaces, ASCII. Objects may be Maps; fields that are undefined are left out. */
export function dumps(value) {
  if (typeof value === "string") {
    return JSON.stringify(value).replace(/[^ -~]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  }
  if (Array.isArray(value)) return `[${value.map(dumps).join(",")}]`;
  if (value === null || typeof value !== "object") return String(value);
  const fields = value instanceof Map ? value : new Map(Object.entries(value));
  const names = sorted(fields.keys()).filter((name) => fields.get(name) !== undefined);
  return `{${names.map((name) => `${dumps(name)}:${dumps(fields.get(name))}`).join(",")}}`;
}

const PRINTABLE = /^[ -~]{0,255}$/;

/** The fields of an object, each of which is taken once. Every error names the field. */
export class JsonFields {
  constructor(name, data) {
    if (!(data instanceof Map)) refuse(`${name}: expected an object, got another value`);
    this.name = name;
    this.left = new Map(data);
  }

  static parse(name, bytes, depth) {
    let data = null;
    try {
      data = parseJson(bytes, depth);
    } catch (error) {
      refuse(`${name}: expected JSON, got something else: ${error.message}`);
    }
    return new JsonFields(name, data);
  }

  take(key, expected, allows) {
    if (!this.left.has(key)) refuse(`${this.name}: expected a field ${quoted(key)}, got none`);
    const value = this.left.get(key);
    this.left.delete(key);
    return allows(value) ? value : refuse(`${this.name}, ${key}: expected ${expected}, got ${shown(value)}`);
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
    const isDigest = (item) => typeof item === "string" && /^[0-9a-f]{64}$/.test(item);
    return this.take(key, "a list of roots", (items) => Array.isArray(items) && items.every(isDigest));
  }
  same(key, value, source = "") { this.take(key, `${value}${source}`, (found) => found === value); }
  inner(key) {
    return new JsonFields(`${this.name}, ${key.slice(0, 200)}`, this.take(key, "an object", (x) => x instanceof Map));
  }
  /** All fields that are left: printable names, each with what `read` takes of it. */
  all(read) {
    const names = [...this.left.keys()];
    if (!names.every((name) => PRINTABLE.test(name))) refuse(`${this.name}: expected printable names, got others`);
    return new Map(names.map((name) => [name, read(name)]));
  }
  printable(key) { return this.text(key, PRINTABLE, "printable text"); }
  texts() { return this.all((name) => this.printable(name)); }
  finish() {
    const [more] = sorted(this.left.keys());
    if (more !== undefined) refuse(`${this.name}: expected no other fields, got ${quoted(more.slice(0, 200))}`);
  }
}

// ---------------------------------------------------------------- base64 and envelopes (DSSE v1)

export const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

/** The bytes of which a text is the one base64. */
export function fromBase64(name, text) {
  const isShaped = text.length % 4 === 0 && /^[A-Za-z0-9+/]*={0,2}$/.test(text);
  const bytes = Uint8Array.from(isShaped ? atob(text) : "", (c) => c.charCodeAt(0));
  return base64(bytes) === text ? bytes : refuse(`${name}: expected base64, got ${quoted(text.slice(0, 40))}`);
}

export const MAX_ENVELOPE = 128 << 10;
const MAX_SIGNATURES = 64, MAX_SIGNATURE = 512;

/** @param {Uint8Array} bytes @returns {{kind: string, payload: Uint8Array, signatures: Map<string, Uint8Array>}} */
export function readEnvelope(bytes) {
  const top = JsonFields.parse("envelope", bytes, 3), signatures = new Map();
  const kind = top.text("payloadType", /^[ -~]{1,128}$/), payload = fromBase64("payload", top.text("payload"));
  const isShort = (list) => Array.isArray(list) && list.length <= MAX_SIGNATURES;
  const listed = top.take("signatures", `up to ${MAX_SIGNATURES} signatures`, isShort);
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
