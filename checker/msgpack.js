/* Canonical msgpack (SPEC section 9): arrays, unsigned integers (as BigInt) and bytes, each value with one encoding. */
import { hexOf, refuse } from "./module.js";
import { isInteger } from "./formats.js";

/** First bytes after which a length or a number comes: its size in bytes, and the least that does not fit into less. */
const LONG = {
  0xc4: [1, 0n], 0xc5: [2, 1n << 8n], 0xdc: [2, 16n],
  0xcc: [1, 1n << 7n], 0xcd: [2, 1n << 8n], 0xce: [4, 1n << 16n], 0xcf: [8, 1n << 32n],
};
const MAX_DEPTH = 8;

/** The one value of a file. @param {Uint8Array} bytes @param {number} limit the most bytes, below 65536 */
export function unpack(bytes, limit) {
  const fail = () => refuse("expected one msgpack value, of arrays, unsigned integers and bytes in shortest form");
  let at = 0;
  const take = (count) => {
    at += count;
    return at > bytes.length ? fail() : bytes.subarray(at - count, at);
  };
  const list = (count, depth) => {
    if (depth > MAX_DEPTH || count > bytes.length - at) fail();
    return Array.from({ length: count }, () => read(depth + 1));
  };
  const read = (depth) => {
    const [first] = take(1);
    if (first < 0x80) return BigInt(first);
    if (first >> 4 === 9) return list(first & 15, depth);
    const [size, least] = LONG[first] ?? fail();
    const number = take(size).reduce((all, byte) => all << 8n | BigInt(byte), 0n);
    if (number < least) fail();
    if (first >= 0xdc) return list(Number(number), depth);
    return first >= 0xcc ? number : take(Number(number));
  };
  if (bytes.length > limit) refuse(`expected at most ${limit} bytes, got ${bytes.length}`);
  const found = read(0);
  return at === bytes.length ? found : fail();
}

const kindOf = (value) => typeof value === "bigint" ? "int"
  : `${value.length} ${Array.isArray(value) ? "fields" : "bytes"}`;
const wanted = (isWanted, name, words, value, got = kindOf(value)) => (
  isWanted ? value : refuse(`${name}: expected ${words}, got ${got}`));

/** Requires that a value is so many bytes. */
export const requireBytes = (name, value, length) => (
  wanted(value instanceof Uint8Array && value.length === length, name, `${length} bytes`, value));

/** Requires an array of so many items. */
export const itemsOf = (name, value, length) => (
  wanted(Array.isArray(value) && value.length === length, name, `an array of ${length} fields`, value));

/** The items of a file after the first, which is its version, 1. */
export function versioned(name, value, length) {
  if (Array.isArray(value) && value[0] > 1n) // another version may have another length
    refuse(`${name}: expected version 1, got ${value[0]}; a later version of tiebreak wrote it`);
  const [version, ...items] = itemsOf(name, value, length);
  return version === 1n ? items : refuse(`${name}: expected version 1, got another`);
}

/** Requires an unsigned integer of some bits, within a range. */
export function uint(name, value, bits, low = 0n, high = (1n << BigInt(bits)) - 1n) {
  const isNumber = typeof value === "bigint", fits = isNumber && !(value >> BigInt(bits));
  const words = fits ? `a number between ${low} and ${high}` : `an unsigned ${bits}-bit integer`;
  return wanted(isInteger(value, low, high), name, words, value, isNumber ? value : kindOf(value));
}

/** The number of 32 bytes, big-endian. */
export const wide = (name, item) => BigInt(`0x${hexOf(requireBytes(name, item, 32))}`);
