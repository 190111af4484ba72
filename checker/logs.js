/* The rounding logs of a run's folder: a file for each segment, and in it a log for each step, compressed
   (tiebreak/engine/logged/files.py and encoding.py). The module takes them in the plain form of SPEC section 5.1. */
import { refuse, refusing, hexOf, utf8 } from "./module.js";
import { DTYPES, readAt, widened } from "./tensors.js";
import { decompress } from "./vendor/fzstd.js";

const FILE_HEADER = 48, FRAME = 20, BLOCK = 1 << 16, ENTRY = 9, MAX_LOG = 1 << 29;
const ZSTANDARD = Uint8Array.of(0x28, 0xb5, 0x2f, 0xfd);
const CRC = Uint32Array.from({ length: 256 }, (_, k) => {
  for (let bit = 0; bit < 8; bit++) k = k & 1 ? 0xedb88320 ^ (k >>> 1) : k >>> 1;
  return k;
});
const crc32 = (bytes, before) => ~bytes.reduce((crc, byte) => CRC[(crc ^ byte) & 255] ^ (crc >>> 8), ~before) >>> 0;

const numberIn = (bytes) => BigInt(`0x0${hexOf(bytes)}`);

/** Bytes behind each other. */
export function joined(first, second) {
  const out = new Uint8Array(first.length + second.length);
  out.set(first);
  out.set(second, first.length);
  return out;
}

/** Reads one encoded log. */
class Source {
  constructor(bytes, step) { Object.assign(this, { bytes, step, at: 0 }); }

  fail(rule) { return refuse(`encoded rounding log of step ${this.step}, up to byte ${this.at}: ${rule}`); }

  take(count) {
    const found = this.bytes.subarray(this.at, this.at + count);
    this.at += found.length;
    return found.length < count ? this.fail(`truncated: expected ${count} more bytes, got ${found.length}`) : found;
  }

  number(width) { return Number(numberIn(this.take(width))); }

  /** So many bytes, at most 64 KiB: as they are, or in a Zstandard frame, whose header has one spelling for a size. */
  part(size) {
    const length = this.number(3), kept = this.take(length);
    if (length < 1 || length > size) this.fail(`expected a part of 1 to ${size} bytes, got ${length}`);
    if (length === size) return kept;
    const header = size < 256 ? [0x20, size] : [0x60, (size - 256) & 255, (size - 256) >> 8];
    try {
      if (header.every((byte, k) => kept[k] === byte)) return decompress(joined(ZSTANDARD, kept), new Uint8Array(size));
    } catch { /* A stranger's bytes: refused as those with another header are. */ }
    return this.fail(`expected a Zstandard frame of ${size} bytes, got another`);
  }

  /** The gaps and directions of a block: gaps in as few bytes as they need, and zeros after the directions. */
  block(count) {
    const width = this.number(1), planes = Array.from({ length: Math.min(width, 8) }, () => this.part(count));
    const gapAt = (n) => planes.reduceRight((gap, plane) => 256 * gap + plane[n], 0);
    const gaps = Float64Array.from({ length: count }, (_, n) => gapAt(n));
    const up = this.part((count + 7) >> 3), isShort = width === 1 || planes.at(-1)?.some((byte) => byte);
    if (width > 8 || !isShort || (count & 7 && up.at(-1) & (255 >> (count & 7))))
      this.fail(`expected the one spelling of ${count} entries, got another`);
    return { gaps, up };
  }
}

/** Puts a log into the module in plain form: its address and size, how many entries it has, and its root. */
export function putLog(program, bytes, step) {
  const { recheck, loggedSums: sums, loggable: total, late } = program, source = new Source(bytes, step);
  const [format, number, count] = [1, 8, 8].map((width) => source.number(width));
  if (format !== 1 || BigInt(number) !== step)
    source.fail(`expected format 1 and step ${step}, got ${format} and ${number}`);
  if (count > Math.min(total, 2 ** 32 - 1)) source.fail(`expected at most ${total} entries, got ${count}`);
  const size = late.reduce((all, one) => all + one.bytes, 4 + ENTRY * count);
  const start = recheck.exports.allocate(BigInt(size)) >>> 0;
  let at = start, n = 0, first = 0, place = -1;
  const put = (piece) => { at = recheck.put(piece, at) + piece.length; };
  put(Uint8Array.of(count >>> 24, count >>> 16, count >>> 8, count));
  for (let done = 0; done < count; done += BLOCK) {
    const { gaps, up } = source.block(Math.min(BLOCK, count - done));
    const plain = new DataView(new ArrayBuffer(ENTRY * gaps.length));
    gaps.forEach((gap, k) => {
      place += gap + 1;
      if (place >= total) source.fail("expected elements of the program's sums, got one beyond them");
      while (place >= first + sums[n].elements) first += sums[n++].elements;
      plain.setUint32(ENTRY * k, sums[n].number);
      plain.setUint32(ENTRY * k + 4, place - first);
      plain.setUint8(ENTRY * k + 8, (up[k >> 3] >> (7 - (k & 7))) & 1 ? 2 : 1);
    });
    put(new Uint8Array(plain.buffer));
  }
  for (const { bytes: whole, dtype, name } of late) {
    for (let done = 0; done < whole; done += BLOCK)
      put(widened(name, DTYPES[dtype], source.part(Math.min(BLOCK, whole - done))));
  }
  if (source.at < bytes.length) source.fail(`expected the end, got ${bytes.length - source.at} more bytes`);
  return { at: start, size, count, root: recheck.digest("step_log", program.at, start, size) };
}

/** The logs of a segment of a run. */
export class SegmentLogs {
  constructor(run, checkpoint) {
    const [first, last] = run.span(checkpoint), name = `logs/${String(last).padStart(12, "0")}.log`;
    const path = `${run.name}/${name}`;
    Object.assign(this, { run, first, last, name, path, places: [FILE_HEADER], roots: [], entries: 0 });
  }

  /** Reads all logs, which must have the committed root. */
  async open(committed, tell) {
    const { run, first, last, path } = this, { recheck, program } = run;
    for (let step = first; step <= last; step++) {
      await refusing(async () => {
        if (step === first) await this.readHeader();
        const log = await this.read(step), more = this.file.size - this.places.at(-1);
        if (step === last && more)
          refuse(`${path}: expected the end after the log of step ${last}, got ${more} more bytes`);
        const { count, root } = recheck.scratch(() => putLog(program, log, step));
        this.entries += count;
        this.roots.push(root);
      }, (said) => refuse(
        `${run.name}: log of step ${step}: expected what was committed, got none that can be read: ${said}`));
      await tell();
    }
    this.root = recheck.tree(this.roots);
    if (this.root !== committed)
      refuse(`${run.name}: logs of steps ${first} to ${last}: expected log root ${committed}, as committed, got `
        + `${this.root}; without the committed logs nobody can say whether these steps are right`);
    return this;
  }

  /** What puts the log of a step into the module, which must be what it was when all were read. */
  async log(step) {
    const bytes = await this.read(step), expected = this.roots[Number(step - this.first)], { name, program } = this.run;
    return () => {
      const log = putLog(program, bytes, step);
      return log.root === expected ? log
        : refuse(`${name}: log of step ${step}: expected ${expected}, as it was before, got ${log.root}`);
    };
  }

  async readHeader() {
    const { run, path, first } = this, file = this.file = run.file(this.name);
    const head = await readAt(file, path, 0, Math.min(FILE_HEADER, file.size)), kind = hexOf(head.subarray(0, 8));
    const job = hexOf(head.subarray(8, 40)), begins = numberIn(head.subarray(40));
    if (kind !== hexOf(utf8("TBLOGS01"))) refuse(`${path}: expected a file of rounding logs, got another`);
    if (job !== run.id) refuse(`${path}: expected logs of job ${run.id}, got ${job}`);
    if (begins !== first) refuse(`${path}: expected a segment from step ${first}, got ${begins}`);
  }

  /** The encoded log of a step, if those before it have been read. */
  async read(step) {
    const { file, path, places } = this, k = Number(step - this.first), at = places[k], from = at + FRAME;
    const head = await file.slice(at, from);
    const [found, length] = [head.subarray(0, 8), head.subarray(8, 16)].map(numberIn);
    const to = places[k + 1] = from + Number(length);
    if (to > file.size || from > file.size)
      refuse(`${path}: expected the log of step ${step}, got the end after ${k} logs`);
    if (found !== step) refuse(`${path}: expected the log of step ${step}, got one of step ${found}`);
    if (length > MAX_LOG) refuse(`${path}: expected a log of at most ${MAX_LOG} bytes, got ${length}`);
    const log = await readAt(file, path, from, to), expected = hexOf(head.subarray(16));
    const sum = crc32(log, crc32(head.subarray(0, 16), 0)).toString(16).padStart(8, "0");
    return sum === expected ? log
      : refuse(`${path}: expected checksum ${expected} of the log of step ${step}, got ${sum}`);
  }
}
