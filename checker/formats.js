/** Readers of strangers' files: strict JSON, base64 and envelopes; and how messages show what they hold. */
import { Refused, naming, refuse } from "./module.js";

const escaped = (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`;

/** A sentence that may quote strangers, with a question mark for what a screen would not show as it is. */
export const printable = (text) => text.replace(/(?![ \n])[\p{C}\p{Z}]/gu, "?");

/** A text in the quotes that Python gives it, with escapes for what a screen would not show as it is. */
export function quoted(text) {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inside = JSON.stringify(text).slice(1, -1).replaceAll('\\"', '"').replaceAll(quote, `\\${quote}`);
  return quote + inside.replace(/(?! )[\p{C}\p{Z}]/gu, escaped) + quote;
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

/** Escapes and quotes; numbers; constants that are not JSON; and what structure is made of. */
const TOKENS = /\\[^]|"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|NaN|-?Infinity|[:[\]{}]/g;
const INTEGER = /^-?(?:0|[1-9]\d*)$/, MAX_DIGITS = 4300;

export class TooDeep extends Refused {}

/**
 * A JSON value whose objects are Maps, and integers BigInts. Before `JSON.parse` reads it, a letter in front of each
 * string and integer tells them apart, keeps long integers exact, and makes names such as `__proto__` ordinary.
 * @param {Uint8Array} bytes @param {number} depth the most brackets inside each other
 * @param {boolean} lenient whether repeated names, NaN, infinities and bytes that are not UTF-8 pass
 */
export function parseJson(bytes, depth, lenient = false) {
  let isInside = false, deep = 0, colons = 0, members = 0, longest = 0;
  const tag = (token) => {
    if (token === '"') isInside = !isInside;
    if (token === '"') return isInside ? '"s' : token;
    if (isInside) return token;
    if (lenient && /[NI]/.test(token)) return " 1e999 ";
    colons += token === ":" ? 1 : 0;
    deep += "[{".includes(token) ? 1 : "]}".includes(token) ? -1 : 0;
    if (deep > depth) throw new TooDeep(`expected at most ${depth} brackets inside each other, got more`);
    if (!INTEGER.test(token)) return token;
    longest = Math.max(longest, token.replace("-", "").length);
    return `"i${token}"`;
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
    if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error; // such as a lack of memory
    refuse("bytes that are not UTF-8, or break a rule of JSON");
  }
  return lenient || members === colons ? found : refuse("a name appears twice");
}

/** The one JSON of a value: sorted names, no spaces, ASCII. Objects may be Maps. */
export function dumps(value) {
  if (typeof value === "string") return JSON.stringify(value).replace(/[^ -~]/g, escaped);
  if (Array.isArray(value)) return `[${value.map(dumps).join(",")}]`;
  if (value === null || typeof value !== "object") return String(value);
  const fields = value instanceof Map ? value : new Map(Object.entries(value));
  return `{${sorted(fields.keys()).map((name) => `${dumps(name)}:${dumps(fields.get(name))}`).join(",")}}`;
}

/** Kinds of JSON values: each in words, and what is one. */
export const matching = (words, pattern) => [words, (value) => typeof value === "string" && pattern.test(value)];
export const prefixedHex = (size) => matching(`0x and ${2 * size} hex digits`, new RegExp(`^0x[0-9a-f]{${2 * size}}$`));
export const upTo = (high, low = 0n) => [`an integer from ${low} to ${high}`, (value) => isInteger(value, low, high)];
export const listOf = (words, [, allows], least = 0) => [words,
  (value) => Array.isArray(value) && value.length >= least && value.every(allows)];
export const DIGEST = matching("64 hex digits", /^[0-9a-f]{64}$/);
export const PRINTABLE = matching("printable text", /^[ -~]{0,255}$/);

/** The fields of an object, each of which is taken once. Every error names the field. */
export class JsonFields {
  constructor(name, data) {
    if (!(data instanceof Map)) refuse(`${name}: expected an object, got another value`);
    Object.assign(this, { name, data, left: new Map(data), parts: [] });
  }

  static parse(name, bytes, depth) {
    return new JsonFields(name, naming(`${name}: expected JSON, got something else`, () => parseJson(bytes, depth)));
  }

  take(key, expected, allows) {
    if (!this.left.has(key)) refuse(`${this.name}: expected a field ${quoted(key)}, got none`);
    const value = this.left.get(key);
    this.left.delete(key);
    return allows(value) ? value : refuse(`${this.name}, ${key}: expected ${expected}, got ${shown(value)}`);
  }

  has(key) { return this.left.has(key); }
  integer(key, low, high) { return this.take(key, ...upTo(high, low)); }
  /** @param {RegExp} pattern for the whole text */
  text(key, pattern = /^/, expected = "text") { return this.take(key, ...matching(expected, pattern)); }
  digest(key) { return this.take(key, ...DIGEST); }
  same(key, value, source = "") { this.take(key, `${value}${source}`, (found) => found === value); }
  allSame(values) { for (const [key, value] of Object.entries(values)) this.same(key, value); }
  /** Fields of these kinds. @returns {object} */
  record(kinds) {
    return Object.fromEntries(Object.entries(kinds).map(([key, kind]) => [key, this.take(key, ...kind)]));
  }
  /** All fields that are left, of one kind, at least so many. @returns {Map<string, any>} */
  each(kind, least = 0) {
    const names = [...this.left.keys()];
    if (names.length < least || !names.every((name) => /^[ -~]*$/.test(name)))
      refuse(`${this.name}: expected printable names, got others`);
    return new Map(names.map((name) => [name, this.take(name, ...kind)]));
  }
  /** The fields of a value, which are to be taken too. */
  part(name, data) {
    this.parts.push(new JsonFields(name, data));
    return this.parts.at(-1);
  }
  inner(key) {
    return this.part(`${this.name}, ${key.slice(0, 200)}`, this.take(key, "an object", (x) => x instanceof Map));
  }
  /** Requires that all fields were taken, of the parts too. */
  finish() {
    this.parts.forEach((part) => part.finish());
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
  listed.forEach((item, n) => {
    const one = top.part(`envelope, signature ${n + 1}`, item);
    const key = one.text("keyid", /^[ -~]{0,128}$/, "up to 128 printable characters");
    const signature = fromBase64("signature", one.text("sig"));
    if (signatures.has(key) || signature.length > MAX_SIGNATURE)
      refuse(`envelope: expected one short signature for each key id, got ${quoted(key)} otherwise`);
    signatures.set(key, signature);
  });
  top.finish();
  return { kind, payload, signatures };
}
