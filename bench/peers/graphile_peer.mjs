// Graphile Worker with a local queue of 1,000, which a sweep found to be its best; on its defaults if asked to.
// It speaks the command line that shape.py describes.
import fs from "node:fs";
import { createRequire } from "node:module";
import { parseArgs } from "node:util";

const require = createRequire(`${process.env.BENCH_NODE_FOLDER}/any.js`);
const { Logger, makeWorkerUtils, run, runMigrations } = require("graphile-worker");

const logger = new Logger(() => () => {});
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const names = ["dsn", "mode", "lanes", "jobs", "seconds", "gap", "out", "settings", "progress", "starts", "go"];
const { values: given, positionals } = parseArgs({
  allowPositionals: true,
  options: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
});
const connectionString = given.dsn;
const AT_ONCE = 1000;

async function client(lanes) {
  const utils = await makeWorkerUtils({ connectionString, maxPoolSize: lanes, logger });
  return {
    one: (i) => utils.addJob("noop", { i }),
    many: (numbers) => utils.addJobs(numbers.map((i) => ({ identifier: "noop", payload: { i } }))),
  };
}

async function enqueue() {
  const lanes = Number(given.lanes ?? 1);
  const jobs = await client(lanes);
  const limit = given.seconds ? Infinity : Number(given.jobs);
  const began = now();
  const until = given.seconds ? began + Number(given.seconds) : Infinity;
  let done = 0;
  const room = () => done < limit && now() < until;
  if (given.mode === "one") {
    const lane = async () => {
      while (room()) await jobs.one(++done);
    };
    await Promise.all(Array.from({ length: lanes }, lane));
  } else {
    while (room()) {
      const count = Math.min(AT_ONCE, limit - done);
      await jobs.many(Array.from({ length: count }, (_, i) => done + i));
      done += count;
    }
  }
  console.log(JSON.stringify({ jobs: done, seconds: now() - began }));
}

async function pickup() {
  const jobs = await client(1);
  for (let i = 0; i < 3; i++) await jobs.one(-1);
  await sleep(0.5);
  const moments = [];
  for (let i = 0; i < Number(given.jobs); i++) {
    const called = now();
    await jobs.one(i);
    moments.push([called, now()]);
    await sleep(Math.max(0, called + Number(given.gap ?? 0.01) - now()));
  }
  fs.writeFileSync(given.out, JSON.stringify(moments));
}

async function work() {
  const file = fs.openSync(given.progress, "w");
  const bytes = Buffer.alloc(24);
  const starts = {};
  let count = 0;
  let first = 0;
  let last = 0;
  const flush = () => {
    bytes.writeBigInt64LE(BigInt(count), 0);
    bytes.writeDoubleLE(first, 8);
    bytes.writeDoubleLE(last, 16);
    fs.writeSync(file, bytes, 0, 24, 0);
  };
  const noop = async ({ i }) => {
    last = now();
    if (count === 0) first = last;
    count += 1;
    if (given.starts) starts[i] = last;
  };
  process.on("SIGTERM", () => {
    flush();
    if (given.starts) fs.writeFileSync(given.starts, JSON.stringify(starts));
    process.exit(0);
  });
  flush();
  setInterval(flush, 10);
  const options = { connectionString, logger, taskList: { noop }, noHandleSignals: true };
  const best = {
    connectionString,
    concurrentJobs: 24,
    maxPoolSize: 12,
    localQueue: { size: 1000 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  };
  while (given.go && !fs.existsSync(given.go)) await sleep(0.001);
  const { defaults } = JSON.parse(given.settings ?? "{}");
  await run(defaults ? options : { ...options, preset: { worker: best } });
}

const commands = { setup: () => runMigrations({ connectionString, logger }), enqueue, pickup, work };
await commands[positionals[0]]();
if (positionals[0] !== "work") process.exit(0);
