/* Canonical msgpack (SPEC section 9): arrays, unsigned integers (as BigInt) and bytes, each value with one encoding. */
import { refuse, hexOf } from "./module.js";

const NOT_ONE = "expected one msgpack value, got bytes that are not";

/** Whether a value is one of this kind: what it is called in messages. */
const kindOf = (value) => typeof value === "bigint" ? "int" : value instanceof Uint8Array ? "bytes"
  : Array.isArray(value) ? "list" : value.kind;

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
    this.isShortest = true;
  }

  take(count) {
    if (count > this.bytes.length - this.at) refuse(NOT_ONE);
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  /** A big-endian number of some bytes, which must not fit into fewer: below `least` it does. */
  number(size, least) {
    const found = this.take(size).reduce((all, byte) => all * 256n + BigInt(byte), 0n);
    if (found < least) this.isShortest = false;
    return found;
  }

  list(count, depth) {
    if (count > this.bytes.length - this.at || depth > 1000) refuse(NOT_ONE);
    return Array.from({ length: count }, () => this.value(depth + 1));
  }

  value(depth = 0) {
    const first = this.take(1)[0], size = 1 << (first & 3);
    if (first < 0x80) return BigInt(first);
    if (first >= 0x90 && first < 0xa0) return this.list(first & 15, depth);
    if (first >= 0xcc && first <= 0xcf) return this.number(size, [0x80n, 0x100n, 0x10000n, 0x100000000n][first & 3]);
    if (first >= 0xc4 && first <= 0xc6) return this.take(Number(this.number(1 << first - 0xc4, [0n, 0x100n, 0x10000n][first - 0xc4])));
    if (first === 0xdc) return this.list(Number(this.number(2, 16n)), depth);
    if (first === 0xdd) return this.list(Number(this.number(4, 0x10000n)), depth);
    if (first >= 0xe0 || (first >= 0xd0 && first <= 0xd3)) return this.negative(first);
    return this.other(first);
  }

  negative(first) {
    const bits = first >= 0xe0 ? 8 : 8 << (first & 3), raw = first >= 0xe0 ? BigInt(first) : this.number(bits / 8, 0n);
    const found = BigInt.asIntN(bits, raw);
    if (found < 0n) return { kind: "int", found };
    this.isShortest = false;
    return found;
  }

  /** What no file of this project holds: its kind. */
  other(first) {
    const plain = { 0xc0: "NoneType", 0xc2: "bool", 0xc3: "bool", 0x80: "dict" };
    if (plain[first]) return { kind: plain[first] };
    if (first === 0xca || first === 0xcb) return this.take(first === 0xca ? 4 : 8) && { kind: "float" };
    const width = { 0xd9: 1, 0xda: 2, 0xdb: 4 }[first];
    if (!width && !(first >= 0xa0 && first < 0xc0)) refuse(NOT_ONE);
    const text = this.take(width ? Number(this.number(width, 0n)) : first & 31);
    try {
      new TextDecoder("utf-8", { fatal: true }).decode(text);
    } catch {
      refuse(NOT_ONE);
    }
    return { kind: "str" };
  }
}

function check(value, depth = 0) {
  if (Array.isArray(value)) {
    if (depth > 8) refuse("expected arrays nested at most 8 deep");
    value.forEach((item) => check(item, depth + 1));
  } else if (value.kind === "int") refuse(`number: expected an unsigned 64-bit integer, got ${value.found}`);
  else if (value.kind) refuse(`expected arrays, unsigned integers and bytes, got ${value.kind}`);
}

/** @param {Uint8Array} bytes @param {number} limit the most bytes */
export function unpack(bytes, limit) {
  if (bytes.length > limit) refuse(`expected at most ${limit} bytes, got ${bytes.length}`);
  const reader = new Reader(bytes), value = reader.value();
  if (reader.at < bytes.length) refuse(NOT_ONE);
  check(value);
  return reader.isShortest ? value : refuse("expected the shortest msgpack forms, got another encoding");
}

/** Requires that a value is so many bytes. */
export function requireBytes(name, value, length) {
  if (!(value instanceof Uint8Array) || value.length !== length)
    refuse(`${name}: expected ${length} bytes, got ${value instanceof Uint8Array ? `${value.length} bytes` : kindOf(value)}`);
  return value;
}

/** The items of an array of so many. */
export function itemsOf(name, value, length) {
  if (!Array.isArray(value) || value.length !== length)
    refuse(`${name}: expected an array of ${length} fields, got ${Array.isArray(value) ? `${value.length} fields` : kindOf(value)}`);
  return value;
}

/** The items of a file whose first is its version, 1. */
export function versioned(name, value, length) {
  const version = Array.isArray(value) && typeof value[0] === "bigint" ? value[0] : 1n;
  if (version !== 1n) refuse(`${name}: expected version 1, got ${version}${version > 1n ? "; a later version of tiebreak wrote it" : ""}`);
  const items = itemsOf(name, value, length);
  uint(`${name}, field 1`, items[0], 8);
  return items;
}

/** Requires an unsigned integer of some bits, within a range. */
export function uint(name, value, bits, low = 0n, high = (1n << BigInt(bits)) - 1n) {
  if (typeof value !== "bigint" || value >> BigInt(bits)) {
    const got = typeof value === "bigint" ? value : value instanceof Uint8Array ? `bytes 0x${hexOf(value.subarray(0, 40))}` : kindOf(value);
    refuse(`${name}: expected an unsigned ${bits}-bit integer, got ${got}`);
  }
  return value >= low && value <= high ? value : refuse(`${name}: expected a number between ${low} and ${high}, got ${value}`);
}

/** The number of 32 bytes, big-endian. */
export const wide = (name, item) => BigInt(`0x${hexOf(requireBytes(name, item, 32))}`);
