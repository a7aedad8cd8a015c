// A tool loop of the AI SDK, by its default the responses API, streamed.
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { model } from "./documented.mjs";

const add = tool({
  description: "Adds two numbers.",
  inputSchema: z.object({ a: z.number(), b: z.number() }),
  execute: async ({ a, b }) => String(a + b),
});
const result = streamText({
  model,
  prompt: "Add 1 and 2, 3 and 4, then both sums.",
  tools: { add },
  stopWhen: stepCountIs(20),
  maxRetries: 0,
  onError: ({ error }) => {
    console.error(error);
    process.exitCode = 1;
  },
});
await result.consumeStream();
console.log(await result.text);
