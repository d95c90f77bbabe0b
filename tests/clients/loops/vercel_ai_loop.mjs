import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: "qwen3-a8w8", baseURL: process.env.BASE_URL, supportsStructuredOutputs: true,
});
const ask = { model: provider(process.env.MODEL), maxRetries: 0, seed: 1, maxOutputTokens: 300 };

const whole = await generateText({ ...ask, prompt: "Say hello." });
const stream = streamText({ ...ask, prompt: "Say hello." });
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, whole.text);
assert.equal((await stream.reasoningText) ?? "", whole.reasoningText ?? "");
assert.equal(whole.usage.inputTokens + whole.usage.outputTokens, whole.usage.totalTokens);
console.log("stream");

const cities = [];
const tools = {
  weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.enum(["Berlin", "Paris"]) }),
    execute: async ({ city }) => { cities.push(city); return `sunny in ${city}`; },
  }),
};
const called = await generateText({ ...ask, tools, toolChoice: "required", prompt: "Weather?" });
assert(cities.length > 0 && cities.every((city) => ["Berlin", "Paris"].includes(city)));
assert.equal(called.toolResults.length, cities.length);
const question = { role: "user", content: "Weather?" };
const after = await generateText({
  ...ask, tools, toolChoice: "none", messages: [question, ...called.response.messages],
});
assert.equal(after.toolCalls.length, 0);
console.log("tools");

const { object } = await generateObject({
  ...ask, schema: z.object({ name: z.string(), is_adult: z.boolean() }), prompt: "Who?",
});
assert.equal(typeof object.is_adult, "boolean");
console.log("structured");

const again = await generateText({
  ...ask,
  messages: [
    { role: "user", content: "Say hello." },
    ...whole.response.messages,
    { role: "user", content: "Again." },
  ],
});
assert(!again.text.includes("<think>"));
console.log("history");
