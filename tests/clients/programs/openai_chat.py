"""A tool loop with the openai client: chats, streamed."""

import json

from documented import client

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
messages = [{"role": "user", "content": "Add 1 and 2, 3 and 4, then both sums."}]
for _ in range(5):
    with client.chat.completions.stream(model="auto", messages=messages, tools=[TOOL]) as stream:
        for _event in stream:
            pass
        message = stream.get_final_completion().choices[0].message
    messages.append(message.to_dict())
    if not message.tool_calls:
        print(message.content)
        break
    for call in message.tool_calls:
        given = json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})
