// Writes artifacts/NAME.json from the release build (see the Makefile), or with --check compares them byte for byte.
// What Python needs and nothing that differs between machines: abi, creation code, runtime code, links.

import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "..");
const TARGET = join(ROOT, "artifacts");

/** Contract -> source file under src/, whose output forge puts under out/artifacts/FILE. */
const CONTRACTS = {
  Board: "board/Board.sol",
  CompletionBonus: "examples/CompletionBonus.sol",
  Games: "game/Games.sol",
  Referee: "Referee.sol",
  Transcendentals: "Transcendentals.sol",
};

/** JSON with sorted keys: one encoding of one content. */
function canonical(value) {
  if (Array.isArray(value)) return value.map(canonical);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, canonical(value[key])]));
}

function artifact(name, source) {
  const built = JSON.parse(readFileSync(join(ROOT, "out", "artifacts", source.split("/").at(-1), `${name}.json`), "utf8"));
  const { abi, bytecode, deployedBytecode } = built;
  const content = { abi, bytecode: bytecode.object, deployedBytecode: deployedBytecode.object };
  if (Object.keys(bytecode.linkReferences).length > 0) content.linkReferences = bytecode.linkReferences;
  return JSON.stringify(canonical(content), null, 1) + "\n";
}

function read(path) {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    if (error.code === "ENOENT") return undefined;
    throw error;
  }
}

function present() {
  return readdirSync(TARGET).filter((file) => file.endsWith(".json"));
}

function check(expected) {
  const stale = Object.keys(expected).filter((file) => read(join(TARGET, file)) !== expected[file]);
  const unknown = present().filter((file) => !(file in expected));
  for (const file of stale) console.error(`artifacts/${file} is not what the sources build: run make artifacts`);
  for (const file of unknown) console.error(`artifacts/${file} belongs to no contract of scripts/artifacts.mjs`);
  console.log(`${Object.keys(expected).length} artifacts compared`);
  return stale.length + unknown.length === 0 ? 0 : 1;
}

function write(expected) {
  for (const file of present()) rmSync(join(TARGET, file));
  for (const [file, content] of Object.entries(expected)) writeFileSync(join(TARGET, file), content);
  console.log(`${Object.keys(expected).length} artifacts written`);
  return 0;
}

mkdirSync(TARGET, { recursive: true });
const expected = Object.fromEntries(
  Object.entries(CONTRACTS).map(([name, source]) => [`${name}.json`, artifact(name, source)]),
);
process.exitCode = process.argv.includes("--check") ? check(expected) : write(expected);
